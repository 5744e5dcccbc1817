"""Run: what a tool's routines share in one execution of an operator."""

from __future__ import annotations

import reprlib
from typing import Any

from amanda import _core


class Run(dict[str, Any]):
    """One execution of an operator: a dict that a tool's routines share, those of its backward operators included.

    ``with_run=True`` passes it to a routine as ``run``. A forward routine can store values in it. The routines of the
    backward operators that this same execution created find them there, in loops and shared layers, too. The run lives
    as long as the graph that autograd records. If no backward routine asks for it, it lives until the operator returns.

    At the end of the operator a tensor in it that autograd recorded, in a list, tuple or dict too, is replaced by its
    ``detach()``: otherwise the graph would keep itself alive.
    """

    __slots__ = ("__weakref__", "_index", "_op_id", "_operator")

    def __init__(self, index: int | None, op_id: int, operator: str) -> None:
        self._index, self._op_id, self._operator = index, op_id, operator

    @property
    def index(self) -> int:
        """The number of this execution among those of the operator, from 0 on since the scope was entered.

        Executions count in which a routine of the scope had a run. If only backward routines ask for one, those are
        the executions that autograd recorded. A recomputation in a checkpoint is an execution of its own.

        Raises:
            amanda.Error: it is not known which execution this is: the routine was scheduled when the forward operator
                had run, or a graph does not have this information.
        """
        if self._index is None:
            raise _core.Error(
                f"[run] which execution of {self._operator} this is, is not known: nobody asked for a run while it ran"
            )
        return self._index

    @property
    def op_id(self) -> int:
        """Identifies the forward operator's place in the program: `OpContext.op_id`."""
        return self._op_id

    def __repr__(self) -> str:
        number = "" if self._index is None else f" {self._index}"
        return f"<amanda.Run{number} of {self._operator}: {reprlib.repr(dict(self))}>"


_core.set_run_class(Run)
