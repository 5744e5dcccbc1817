"""Finding: an operator that produced a NaN or an infinity, and its operands then."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator
from typing import Any, Literal

from amanda.toolkit import notebooks
from amanda.toolkit.frames import line_of_code

from .links import Link, text_of


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor or a number that the operator had. The counts and the range are None where they were not read: on
    devices other than the CPU."""

    name: str  # "input self", "output 0", "grad_output 0", "saved result"
    dtype: str  # "float32"; of a number "float"
    shape: tuple[int, ...]
    device: str
    elements: int
    nans: int | None
    infs: int | None
    zeros: int | None
    min: float | None  # of the finite elements of a real operand; None if there are none
    max: float | None

    def __str__(self) -> str:
        head = f"{self.name}: {self.dtype} {list(self.shape)} on {self.device}"
        if self.nans is None:
            return head
        counts = [(self.nans, "NaN"), (self.infs, "infinite"), (self.zeros, "zero")]
        parts = [f"{count} of {self.elements} {what}" for count, what in counts if count]
        parts += [f"from {self.min:.4g} to {self.max:.4g}"] if self.min is not None else []
        return f"{head}: {', '.join(parts)}" if parts else head


@dataclasses.dataclass(frozen=True)
class Finding:
    """The place from which a NaN, or an infinity, came.

    `kind` is "produced" if all inputs of the operator were finite. It is "given" if one was not, and no operator that
    was seen before had produced any: it was in the program's data, in a parameter, or was written by code that calls no
    operator. It is "unread" if those that could be read were finite, and `unread` says which could not: the operator
    may have produced it, or have been given it.
    """

    kind: Literal["produced", "given", "unread"]
    phase: Literal["forward", "backward"]
    op_id: int
    name: str  # "aten::div"; in the backward pass the forward operator's
    backward_op: str  # "DivBackward0"; "" in forward
    module_path: str
    source: str  # file:line of the forward call
    parameter: str  # by "given": the parameter or buffer that held it, if it was one
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]  # in the backward pass the incoming gradients, and what the forward operator saved
    infinity: str = ""  # in compiled functions: the last maker of an infinity, if an input has some
    cause: str = ""  # by "produced": the reason in words, as far as computing it again confirms it
    memory: str = ""  # by "given": "memory that aten::empty allocated (model.py:3), and ...", if no operator filled it
    unread: str = ""  # by "unread": "input self (a sparse tensor, made by aten::sqrt (model.py:12), forward)"
    gradient: str = ""  # by "given", of AccumulateGrad: "the gradient that reached parameter '0.weight'"
    mask: str = ""  # by "given": "the -inf that aten::masked_fill (model.py:3) wrote", if it was meant as a mask
    chain: tuple[Link, ...] = ()  # from the first value that was not finite to this operator, which is the last
    left_out: int = 0  # links in the middle of a long chain

    @property
    def origin(self) -> Link | None:
        """The operator that made the first value that was not finite, an infinity maybe; or the first that was given one.
        None where values are not followed: on devices other than the CPU, and in compiled functions."""
        return self.chain[0] if self.chain else None

    @property
    def line(self) -> str:
        """The line of code, without indentation; "" if its file can't be read."""
        path, _, number = self.source.rpartition(":")
        return linecache.getline(path, int(number)).strip() if number.isdigit() else ""

    def __str__(self) -> str:
        return self.text()

    def text(self, *, first: bool = True) -> str:
        """The text of the finding, in several lines. `first`: it is the first of the program."""
        operator = f"{self.backward_op} of {self.name}" if self.backward_op else self.name
        what = "NaN" if any(output.nans for output in self.outputs) or not _read(self.outputs) else "infinity"
        where = f"{f' in {self.module_path}' if self.module_path else ''} ({line_of_code(self.source)}), {self.phase}"
        if self.kind == "produced":
            head = f"{operator} produced the first {what}{where}"
        elif self.kind == "unread":
            head = f"the first {what} was seen in the result of {operator}{where}; it may come from {self.unread}"
        elif self.gradient:
            others = "hooks and sums of gradients are no operators"
            head = f"the first {what}, which no operator seen here produced, was in {self.gradient}{where}; {others}"
        else:
            parameter = f"parameter {self.parameter!r}" if self.parameter else ""
            held = (
                ", ".join(filter(None, (parameter, self.memory, self.mask)))
                or "an input that no operator seen here produced"
            )
            head = f"the first {what} was in {held}; {operator} passed it on{where}"
        if not first:
            head = head.replace("the first", "an" if what == "infinity" else "a", 1)
        lines = [head + (f"; {self.beginning}" if self.beginning else ""), *([f"  {self.line}"] if self.line else [])]
        lines += [f"  {line}" for line in (*self.outputs, *_listed(self.inputs))]
        lines += [f"  an infinity before it: {self.infinity}"] if self.infinity else []
        lines += [f"  cause: {self.cause}"] if self.cause else []
        lines += [f"  {self._hint}"] if self._hint else []
        if len(self.chain) > 1:
            lines += ["  from the first to this one:", *(f"    {line}" for line in text_of(self.chain, self.left_out))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the sentences, the line of code, and a table of the operands."""
        operands = (*self.outputs, *self.inputs)
        known = {f"  {line}" for line in (self.line, *map(str, operands))}
        head, *others = (line for line in self.text().split("\n") if line not in known)
        table = notebooks.table(_HEADINGS, _JUSTIFIED, ((_cells(one), "") for one in operands)) if operands else ""
        return notebooks.together(
            [notebooks.heading(head), notebooks.code(self.line), table, *map(notebooks.text, others)]
        )

    @property
    def beginning(self) -> str:
        """Where it began, in words, if that was before this operator."""
        if len(self.chain) < 2:
            return ""
        first = self.chain[0]
        if first.is_mask and self.kind == "produced":
            return f"{self.cause or 'it was given a mask'}, by {first.held or first.place}"
        if first.held:
            return f"it began in {first.held}, given to {first.place}"
        return f"it began in {first.place}{f': {first.cause}' if first.cause else ''}"

    @property
    def _hint(self) -> str:
        """A hint what to change, or where to look on. With `inf`, no input of a producer is infinite."""
        if self.kind == "produced" and self.chain and self.chain[-1].is_unused:
            where = "tf.where" if self.name.startswith("tensorflow::") else "torch.where"
            return (
                "the gradient that it got is zero there, and zero times infinity is NaN: keep its operand away from there, "
                f"as with clamp; if {where} leaves the result out, let {where} choose the operand before the operator"
            )
        namespace, _, function = self.name.rpartition("::")
        if self.kind == "produced" and self.backward_op and namespace == "autograd":
            return f"{function}.backward, a function of Python, computed it: operators inside it are not looked at"
        infinite = [one.name for one in self.inputs if one.infs and one.dtype != "float"]
        if self.kind != "produced" or self.infinity or self.chain or not infinite:
            return ""
        return (
            f"{infinite[0]} was infinite already: --inf, or NaNSentinel(inf=True), names the operator that made it so"
        )


class NonfiniteError(ArithmeticError):
    """An operator produced a NaN or an infinity.

    Attributes:
        finding: which, and where.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"[nan] {finding}")
        self.finding = finding

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.finding,)


class NonfiniteWarning(UserWarning):
    """The same, as a warning."""


MOST_LISTED = 8  # inputs, as of an operator that stacks a batch


def _listed(inputs: tuple[Operand, ...]) -> list[Operand | str]:
    """All inputs; of many, those that are not finite or were not read, if there are such, and a count of the others."""
    shown = [one for one in inputs if one.nans is None or one.nans or one.infs]
    if len(inputs) <= MOST_LISTED or not shown:
        shown = list(inputs)
    left_out = len(inputs) - len(shown)
    more = [f"and {left_out} more, without a NaN or an infinity"] if left_out else []
    return [
        *shown[:MOST_LISTED],
        *([f"and {len(shown) - MOST_LISTED} more"] if len(shown) > MOST_LISTED else []),
        *more,
    ]


_HEADINGS = ("operand", "dtype", "shape", "device", "elements", "NaN", "infinite", "zero", "least", "most")
_JUSTIFIED = ("left",) * 4 + ("right",) * 6


def _cells(operand: Operand) -> list[str]:
    counts = [operand.elements, operand.nans, operand.infs, operand.zeros]
    limits = ["" if limit is None else f"{limit:.4g}" for limit in (operand.min, operand.max)]
    numbers = ["" if count is None else f"{count:,}" for count in counts]
    return [operand.name, operand.dtype, str(list(operand.shape)), operand.device, *numbers, *limits]


def _read(operands: tuple[Operand, ...]) -> bool:
    return any(operand.nans is not None for operand in operands)


def flattened(values: Any) -> Iterator[Any]:
    """The values in nested lists and tuples."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flattened(value)
        else:
            yield value
