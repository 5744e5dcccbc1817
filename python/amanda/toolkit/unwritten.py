"""Unwritten memory: what an operator such as `aten::empty` allocated, until an operator writes to it. It has no values.

Tools that read values depend on `MEMORY`, which follows such memory through views and copies. One object serves all of
them, on all threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from amanda import _core
from amanda.core import fork
from amanda.core.op_context import OpContext
from amanda.core.tool import Tool
from amanda.driver.identity import cells
from amanda.reports.places import Place
from amanda.toolkit.frameworks import is_torch
from amanda.toolkit.native import always, natively
from amanda.toolkit.schemas import ALLOCATES, COPIES, GROWS, WRITES_SOME, Sides

__all__ = ["MEMORY", "Unwritten", "UnwrittenMemory", "allocates", "may_be_met", "may_pass_on", "overwrites"]

_COLLECTIVES = "c10d::"  # they write to what they are given, and their schemas do not say so


class Unwritten(NamedTuple):
    """Memory without values."""

    place: Place  # of the operator that allocated it
    in_part: bool  # operators have written to some of it

    def __str__(self) -> str:
        written = (
            "to all of which no operator is known to have written" if self.in_part else "to which no operator wrote"
        )
        return f"memory that {self.place.name} allocated ({cells.line_in_cell(self.place.source)}), and {written}"


class UnwrittenMemory(Tool):
    """Follows memory without values while scopes with tools that read values are open, in programs of PyTorch.

    Writes by code that calls no operator are not seen: by NumPy, by C++, by another process. If NumPy has an array of
    the memory, the memory counts as written. The tool never holds a tensor, and has an entry for each memory block that
    is alive.
    """

    def __init__(self) -> None:
        super().__init__("unwritten memory")
        self._lock = fork.lock()  # guards the fields below
        self._native: Any = None
        self._places: dict[int | None, Place] = {}  # of all that were analysed: a scope that is entered again has them
        self._entered = 0  # scopes
        self.add_inst_for_op(self._analyze)

    def on_enter(self) -> None:
        with self._lock:
            self._entered += 1

    def on_exit(self, error: BaseException | None) -> None:
        """Outside of scopes nobody sees what is written."""
        with self._lock:
            self._entered -= 1
            if not self._entered and self._native is not None:
                self._native.clear()

    def find(self, value: Any) -> Unwritten | None:
        """The unwritten memory of a tensor. None if all its elements have values, as far as is known, or if it is no
        tensor."""
        native = self._native
        if native is None or native.is_empty:
            return None
        import torch

        found = native.find(value) if isinstance(value, torch.Tensor) else None
        return Unwritten(self._places[found[0]], found[1]) if found is not None else None

    def native(self, module: Any) -> Any:
        """The object that follows the memory in C++, for routines in C++."""
        with self._lock:
            self._native = self._native or module.UnwrittenMemory()
            return self._native

    def _analyze(self, context: OpContext) -> None:
        module = natively(context)
        if module is None:
            return
        memory, sides, name = self.native(module), Sides.of(context), context.op.__name__
        names = context.op.input_names
        if sides.is_uninitialized:
            with self._lock:
                self._places[context.op_id] = Place.of(context)
            if name in GROWS:
                context.insert_before_op(always(memory.growing(context.op_id)), inputs=[0])
                context.insert_after_op(_core.NativeRoutine(memory.writing_some(), _leave), outputs=[], inputs=[0])
            else:
                context.insert_after_op(always(memory.allocating(context.op_id)))
        elif name == "copy_":
            context.insert_after_op(always(memory.copying(1, 0)), outputs=[], inputs=[0, 1])
        elif name in COPIES:
            context.insert_after_op(always(memory.copying(0, None)), outputs=[0], inputs=[0])
        elif name in WRITES_SOME:
            routine = _core.NativeRoutine(memory.writing_some(), self._mark)
            context.insert_after_op(routine, outputs=[], inputs=list(range(len(names))), memory=memory, op=context.op)
        else:
            written = list(names) if context.op.name.startswith(_COLLECTIVES) else sides.written
            if written:
                positions = [names.index(one) for one in written]
                context.insert_after_op(always(memory.writing(positions)), outputs=[], inputs=positions)

    def _mark(self, *, inputs: Sequence[Any], memory: Any, op: _core.Operator) -> None:
        """The operator has written some elements of its first input, in memory without values."""
        from amanda.toolkit import marks  # here: it imports torch

        written, *others = inputs
        if any(self.find(other) is not None for other in others):
            return  # they have none themselves
        written_to = marks.of(op.__name__, written, dict(zip(op.input_names, inputs, strict=True)))
        if written_to is not None:
            memory.mark(written, written_to)


def _leave(**_: Any) -> None:
    """It is not known which elements the operator has written."""


def allocates(context: OpContext) -> bool:
    """True if the operator's results are memory without values."""
    return is_torch(context) and context.op.__name__ in ALLOCATES


def may_pass_on(context: OpContext) -> bool:
    """True if a result of the operator may be in memory that had no values before, and has none after it."""
    if not is_torch(context):
        return False
    name = context.op.__name__
    return name in COPIES or name in WRITES_SOME or name == "copy_" or Sides.of(context).may_be_view


def overwrites(context: OpContext) -> bool:
    """True if inputs may have no values, because the operator writes to them."""
    return is_torch(context) and bool(Sides.of(context).written)


def may_be_met(ops: str | Iterable[str] | None) -> bool:
    """True if operators that these filters select may have results in such memory."""
    names = [ops] if isinstance(ops, str) else ops
    return names is None or any(set(name) & set("*?[!") or _plain(name) in _MEETING for name in names)


_MEETING = {
    *(*ALLOCATES, *COPIES, *WRITES_SOME, "copy_", "detach", "detach_", "alias", "view", "view_as", "select", "slice"),
    *("narrow", "t", "transpose", "transpose_", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "as_strided"),
    *("split", "chunk", "unbind", "unfold", "diagonal", "real", "imag", "view_as_real", "view_as_complex", "movedim"),
    *("tensor_split", "unflatten", "swapaxes", "swapdims", "set_", "split_with_sizes", "numpy_T", "mT", "adjoint"),
}


def _plain(name: str) -> str:
    return name.rpartition("::")[2].partition(".")[0]


MEMORY = UnwrittenMemory()
