"""Eager operators: taps on TensorFlow's tapes and dispatch."""
