"""The Python part of the TensorFlow driver. This file does not import TensorFlow."""
