"""InplaceErrors: the tool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import eager_only
from amanda.toolkit.schemas import Sides

from .called import place_of
from .finding import MESSAGE, SecondPass
from .savers import Saver, Savers
from .write_recorder import WHY, WriteRecorder

if TYPE_CHECKING:
    from .freed import Passes

FUNCTIONS = "autograd::*"  # nodes that no operator makes: each is an autograd.Function


class InplaceErrors(WriteRecorder):
    """Names the operator that wrote to a tensor which the backward pass needs::

        with amanda.apply(InplaceErrors()):
            model(x).sum().backward()

    PyTorch's error, "one of the variables needed for gradient computation has been modified by an inplace operation", then
    has a note: the operator that saved the tensor, with module and line, the operators that have written to it since,
    through which view, and what to change; also where the program catches the error. "Trying to backward through the graph
    a second time" has one, too: the `backward()` that has freed a part of the graph, and the operator that goes on with
    that part. So have, where they leave the scope, PyTorch's errors about writes that it refuses: to leaves, and to some
    views. Without such an error the tool finds nothing: a write to a tensor that no backward operator needs is right.

    It sees writes by operators, those of optimizers included. It does not see writes through ``.data``, ``numpy()`` or
    custom kernels, which PyTorch does not see either: there is no error then. Where a graph shows nothing of what a node
    has saved, the tensor is found by size and versions, and only if no other tensor has the same ones. An error for which
    no operator can be named counts as `unexplained`.

    The tool keeps no tensor, except the operand of a write that failed, until the next one. It keeps numbers of the last
    200,000 operators that autograd recorded on each thread, and of the nodes of the last 8 backward passes, and the last
    writes to each storage.
    """

    needs_eager = WHY
    leaves_compiled_out = True

    def __init__(self) -> None:
        super().__init__()
        self._savers = Savers()
        self._passes: Passes | None = None
        self._stop: list[Callable[[], None]] = []

    def _ask(self) -> None:
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_function, ops=FUNCTIONS, backward=True, optional=True)

    def answer(self, *, ended_well: bool = True) -> str:
        """Which operator wrote to what another had saved; or that none did, and how much was looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        if self._found:
            return "\n".join(str(one) for one in self._found)
        evidence, until = self.evidence(), "" if ended_well else " until the program failed"
        unseen = "" if evidence.is_complete else f"; not looked at: {evidence.not_looked_at}"
        if self.unexplained:
            return (
                "a backward operator needed a tensor that was written to, and no operator that was seen can be named: "
                f"{self._why_not}; seen: {evidence.looked_at}{unseen}"
            )
        return f'no backward pass raised "{MESSAGE}"{until}, in {evidence.looked_at}{unseen}'

    def reset(self) -> None:
        super().reset()
        self._savers.clear()
        if self._passes is not None:
            self._passes.clear()

    def on_enter(self) -> None:
        super().on_enter()
        with contextlib.suppress(ImportError):  # no torch is here
            from amanda.toolkit.torch import listen_to_backward

            from .freed import Passes

            self._passes = self._passes or Passes()
            self._stop.append(listen_to_backward(self._passes))

    def on_exit(self, error: BaseException | None) -> None:
        if self._stop:
            self._stop.pop()()
        super().on_exit(error)

    def _second_pass(self, began: Sequence[Any]) -> SecondPass | None:
        return None if self._passes is None else self._passes.found(began, self._savers)

    _why_not = (
        "the forward pass ran outside the scope, the write was none of an operator, or several tensors have the same size "
        "and versions"
    )

    def _saver_of(self, node: Any) -> tuple[Saver | None, str]:
        return self._savers.of(node), ""

    def _analyze(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        self._savers.watch(context)
        written = Sides.of(context).written
        if written:
            self._watch(context, written)

    def _analyze_function(self, context: OpContext) -> None:
        if not eager_only.leaves_out(context, self._skips, self.needs_eager):
            saver = Saver(place_of(context), ())
            context.insert_before_backward_op(self._on_function, [], saver=saver)

    def _on_function(self, saver: Saver) -> None:
        from amanda.toolkit.torch import current_node

        self._savers.runs(current_node(), saver)
