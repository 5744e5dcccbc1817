"""Findings: a tensor that an operator had saved for the backward pass, and the operators that wrote to it since."""

from __future__ import annotations

import dataclasses

from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code, short_line

MESSAGE = "modified by an inplace operation"
"""The part of PyTorch's error that says which it is."""
_SIGNS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}
_COPIES = ("copy_", "fill_", "zero_", "set_", "resize_")  # they have no counterpart that returns a new tensor


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
        return f"{_at(self.place)} wrote to it{through}: version {self.before} -> {self.after}"

    @property
    def op(self) -> str:
        """The operator without namespace and overload: "add_"."""
        return self.place.name.rpartition("::")[2].partition(".")[0]


@dataclasses.dataclass(frozen=True)
class InplaceFinding:
    """A tensor that a backward operator needed, and that was written to after the forward operator had saved it."""

    saver: Place  #: the forward operator
    backward_op: str  #: the autograd node that needed it: "SigmoidBackward0"
    needed: str  #: the node's name for it: "result", "mat1"
    operand: str  #: the forward operator's: "input", "output 0"; "" if it is not known, as of an autograd.Function
    is_result: bool  #: it is a result of the forward operator, not an input
    shape: tuple[int, ...]
    parameter: str  #: the name of the parameter that it is, or ""
    version: int  #: when it was saved
    writes: tuple[Write, ...]  #: since then, in order

    @property
    def remedy(self) -> str:
        """The smallest change that helps."""
        first = self.writes[0]
        where = f" in {short_line(first.place.source)}" if first.place.source else ""
        if first.by_optimizer:
            return "run the forward pass again after the step, or call backward() before it"
        if first.op.endswith("_") and not first.op.startswith("_") and first.op not in _COPIES:
            sign = _SIGNS.get(first.op)
            written = f": x = x {sign} y, not x {sign}= y" if sign else ""
            return (
                f"use {first.op.removesuffix('_')}, which returns a new tensor, in place of {first.op}{where}{written}"
            )
        return f"write to a copy, x.clone(){where}"

    def __str__(self) -> str:
        what = (
            f"its {self.operand}"
            if self.is_result
            else f"its input {self.operand!r}"
            if self.operand
            else "a tensor, found by its size and versions"
        )
        parameter = f", parameter {self.parameter!r}" if self.parameter else ""
        head = (
            f"{_at(self.saver)} saved {what} (shape {self.shape}, version {self.version}{parameter}) for "
            f"{self.backward_op}, which calls it {self.needed!r}"
        )
        return "\n".join([head, *(f"  {write}" for write in self.writes), f"  remedy: {self.remedy}"])


def _at(place: Place) -> str:
    """ "aten::add_ in encoder (model.py:12)"."""
    module = f" in {place.module_path}" if place.module_path else ""
    return f"{place.name}{module}" + (f" ({line_of_code(place.source)})" if place.source else "")
