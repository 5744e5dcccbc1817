"""Names of places in a program: the id, the module path and the source line of an operator."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from typing import NamedTuple

import tensorflow as tf

from amanda.driver.identity import frames
from amanda.drivers.tensorflow.lower import vectorized
from amanda.drivers.tensorflow.view import bodies, layers

# Libraries that build graphs for the program.
_LIBRARIES = ("tensorflow", "keras", "tf_keras")
_SITES = tuple({*site.getsitepackages(), sysconfig.get_path("purelib"), os.path.dirname(os.path.dirname(tf.__file__))})


class Place(NamedTuple):
    id: int
    module_path: str
    source: str


def place_of(op: tf.Operation, function: str = "", path: str = "") -> Place:
    """The same in every process that builds the same program.

    `function`: the Python function that was traced, if the graph is one's. `path`: of the loops and conditionals that the
    graph is the body of, "loop.choice".
    """
    written = vectorized.body_operator(op) or op  # in the program
    scope = layers.module_path(written.graph, written.name.rpartition("/")[0])
    module_path = f"{path}.{scope}" if path and scope else path or scope
    return Place(_id_of(op, written, function, path), module_path, source_of(written))


def id_of(op: tf.Operation, function: str = "", path: str = "") -> int:
    """The id of the operator's place."""
    return _id_of(op, vectorized.body_operator(op) or op, function, path)


def _id_of(op: tf.Operation, written: tf.Operation, function: str, path: str) -> int:
    if written.graph is not op.graph:
        function = bodies.label_of(written.graph)
    return frames.hash_of((function, path, op.name)) or 1


def source_of(op: tf.Operation) -> str:
    """The innermost line of the program, outside libraries that build graphs, which created the operator. Empty if it was
    imported."""
    for frame in reversed(op.traceback or ()):
        if not is_library(frame.filename):
            return frames.encodable(f"{frame.filename}:{frame.lineno}")
    return ""


@functools.cache
def is_library(filename: str) -> bool:
    """True if it is a file of a library that builds graphs for the program."""
    if frames.is_ours(filename):
        return True
    return any(filename.startswith(os.path.join(path, library) + os.sep) for path in _SITES for library in _LIBRARIES)
