"""The TensorFlow that the driver is for."""

VERSION = "2.21"
"""Its minor version: the private names in `port` are those of this one."""
