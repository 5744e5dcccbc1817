"""The TensorFlow driver's nodes in graphs. It needs no TensorFlow to be imported."""
from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['Operator', 'TapNode', 'begin_run', 'check', 'end_run', 'library_path', 'raise_error', 'set_dtypes']
class Operator:
    """An operator of a graph while it runs."""
    def __init__(self, backend: str, type: typing.SupportsInt | typing.SupportsIndex, id: typing.SupportsInt | typing.SupportsIndex, num_inputs: typing.SupportsInt | typing.SupportsIndex, num_outputs: typing.SupportsInt | typing.SupportsIndex, *, module_path: str = '', source: str = '', refuse: typing.Any = None, forward: Operator | None = None) -> None:
        """`num_inputs`, `num_outputs`: positions; of a backward operator (with `forward=`), its grad_outputs and grad_inputs. `refuse(point, position)`: as of OpSite."""
class TapNode:
    """A tap, and the tensors of its node."""
    def __init__(self, operator: Operator, tap_id: typing.SupportsInt | typing.SupportsIndex, args: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], results: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], original: typing.Any = None, *, shapes: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex | None] | None] = []) -> None:
        """`args`: ("input" or "output", position, member) for each argument of the node; the member of a list, otherwise -1. `results`: (position, member) for each of its results, on the tap's own side. `original(*inputs)`: the operator, for a tap in its place. `shapes`: what the graph knows of its results: lists of sizes, None where nothing is known. Keep it as long as the graph of its tools may run."""
    @property
    def number(self) -> int:
        """For the node's attribute `node`."""
def begin_run() -> None:
    """An instrumented run begins on this thread."""
def check() -> list[str]:
    """The functions that this process's TensorFlow lacks; the library's name if it is not loaded."""
def end_run() -> None:
    """The last run that began on this thread ends."""
def library_path() -> str:
    """For tf.load_op_library()."""
def raise_error(message: str) -> None:
    """Raises the exception that a routine raised, if this is the message of the error that it ended with."""
def set_dtypes(dtypes: dict) -> None:
    """{TF_DataType: (numpy dtype, name)}: the types whose tensors routines see."""
