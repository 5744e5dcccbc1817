"""Findings: a tensor that an operator had saved for the backward pass, and the operators that wrote to it since."""

from __future__ import annotations

import dataclasses

from amanda.toolkit import Place
from amanda.toolkit.frames import short_line

from .called import at

MESSAGE = "modified by an inplace operation"
FREED = "backward through the graph a second time"
"""The parts of PyTorch's errors that say which they are."""
_SIGNS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}
# They have no counterpart that returns a new tensor.
_COPIES = ("copy_", "fill_", "zero_", "set_", "resize_", "random_", "uniform_", "normal_", "log_normal_", "exponential_",
           "geometric_", "cauchy_")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Write:
    """A write to the memory of a tensor."""

    place: Place  #: the operator that wrote
    operand: str  #: its input that it wrote to: "self", "out"; "self[3]" in a list
    view: str  #: "" if that was the whole tensor; else "a view of shape (4,)"
    before: int  #: the version of the tensor before the write, and after it
    after: int
    by_optimizer: bool
    shape: tuple[int, ...]  #: of the whole tensor

    def __str__(self) -> str:
        through = f" through {self.view}" if self.view else ""
        return f"{at(self.place)} wrote to it{through}: version {self.before} -> {self.after}"

    @property
    def op(self) -> str:
        """The operator without namespace and overload: "add_"."""
        return op_of(self.place)


@dataclasses.dataclass(frozen=True)
class InplaceFinding:
    """A tensor that a backward operator needed, and that was written to after the forward operator had saved it."""

    saver: Place | None  #: the forward operator; None if it is not known
    backward_op: str  #: the autograd node that needed it: "SigmoidBackward0"; "" if it is not known
    needed: str  #: the node's name for it: "result", "mat1", "saved_tensors[0]"
    operand: str  #: the forward operator's: "input", "output 0"; "" if it is not known
    is_result: bool  #: it is a result of the forward operator, not an input
    shape: tuple[int, ...]
    parameter: str  #: the name of the parameter that it is, or ""
    version: int  #: when it was saved
    writes: tuple[Write, ...]  #: since then, in order
    to_learn_more: str = ""  #: the command that finds the saver

    @property
    def remedy(self) -> str:
        """The smallest change that helps."""
        first = self.writes[0]
        if first.by_optimizer:
            return (
                "run the forward pass again after the step, or call backward() before it; detach() what is carried over "
                "from an earlier step, such as a hidden state"
            )
        if first.op == "embedding_renorm_":
            return f"an embedding with max_norm writes to its weight: elsewhere use a copy, weight.clone(){_in(self.saver)}"
        return remedy_of(first.op, first.place)

    def __str__(self) -> str:
        unknown = [f"  the line that saved it: {self.to_learn_more}"] if self.to_learn_more else []
        return "\n".join([self._head(), *(f"  {write}" for write in self.writes), f"  remedy: {self.remedy}", *unknown])

    def _head(self) -> str:
        parameter = f", parameter {self.parameter!r}" if self.parameter else ""
        about = f"(shape {self.shape}, version {self.version}{parameter})"
        if not self.backward_op:
            return f"a backward operator needs a tensor {about}, which was found by its size and versions"
        if self.saver is None:
            return f"{self.backward_op} needs a tensor that it has saved as {self.needed!r} {about}"
        what = (
            f"its {self.operand}" if self.is_result else f"its input {self.operand!r}" if self.operand else "a tensor"
        )
        return f"{at(self.saver)} saved {what} {about} for {self.backward_op}, which calls it {self.needed!r}"


@dataclasses.dataclass(frozen=True)
class SecondPass:
    """A part of the backward graph that an earlier backward pass has freed, and that another one was to go through."""

    used: str  #: the operator in that part whose result came into the other graph: "aten::gru (model.py:8)"
    user: str  #: the operator that used it; "" if the whole graph had been gone through before
    freed: str  #: the operator in that part whose saved tensors were needed first
    backward: str  #: the line that called the earlier pass
    is_carried_over: bool  #: the user ran after the earlier pass

    @property
    def remedy(self) -> str:
        """The smallest change that helps."""
        if not self.user:
            return "run the forward pass again before each backward(); or retain_graph=True in the earlier backward()"
        if self.is_carried_over:
            return (
                "detach() the tensor that is carried over, such as a hidden state, or compute it anew in each step; with "
                "retain_graph=True each pass would go through the graphs of all steps before"
            )
        return (
            "add the losses, and call backward() once; or retain_graph=True in the earlier backward(); or detach() the "
            "result for one of the losses"
        )

    def __str__(self) -> str:
        by = f"backward(){f' at {self.backward}' if self.backward else ''}"
        if not self.user:
            return f"{by} has gone through the whole graph already, from {self.used} on\n  remedy: {self.remedy}"
        when = "since, " if self.is_carried_over else ""
        return (
            f"{by} has freed what {self.freed} had saved, and another pass was to go through it again\n"
            f"  {when}{self.user} uses the result of {self.used}\n"
            f"  remedy: {self.remedy}"
        )


def remedy_of(op: str, place: Place) -> str:
    """The change that replaces an operator that writes, "add_"."""
    where = _in(place)
    if not op.endswith("_") or op.startswith("_") or op in _COPIES:
        return f"write to a copy, x.clone(){where}"
    sign = _SIGNS.get(op)
    written = f": x = x {sign} y, not x {sign}= y" if sign else ""
    return f"use {op.removesuffix('_')}, which returns a new tensor, in place of {op}{where}{written}"


def _in(place: Place | None) -> str:
    return f" in {short_line(place.source)}" if place is not None and place.source else ""


def op_of(place: Place) -> str:
    """The operator without namespace and overload: "add_"."""
    return place.name.rpartition("::")[2].partition(".")[0]
