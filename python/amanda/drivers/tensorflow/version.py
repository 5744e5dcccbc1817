"""The TensorFlow that the driver is for."""

VERSION = "2.21"
"""The minor version of TensorFlow whose private names are in `port`."""
