"""A program: its flow of values, its parameters and its backward passes. Imports torch."""

from __future__ import annotations

import collections
from typing import Any

from amanda.toolkit import Skips
from amanda.toolkit.torch import BackwardCall, graph_task_id, running_leaf, running_modules

from .cut import Cut, Finding
from .flow import Flow, Leaf, Step
from .nonzero_rows import NonzeroRows
from .parameters import Loss, Parameter, Parameters, is_zero
from .passes import Pass
from .paths import Paths
from .reasons import REASONS

READ_ALL = 2  # passes of each loss in which the gradients of all operators are read
SETTLES = 16  # passes after the last one of a new loss
REFUSED = "does not require grad"
"""Part of PyTorch's error for a loss without a path to any leaf."""
NOT_USED = "appears to not have been used in the graph"
"""Part of that for a gradient with respect to a tensor that leads to nothing of the result."""


class Program:
    """The state of the tool for one program."""

    def __init__(self, skips: Skips) -> None:
        self.flow = Flow()
        self.parameters = Parameters(self.flow)
        self.rows = NonzeroRows()
        self.running: Pass | None = None
        self.passes: collections.Counter[Loss] = collections.Counter()
        self.refused = 0  # passes that PyTorch refused: nothing required a gradient
        self.refusal: Finding | None = None  # why it did so last, if the parameters have got gradients in other passes
        self.not_used: list[str] = []  # why it refused gradients of tensors that the result does not use, in words
        self.failed = 0  # others that raised
        self.partly = 0  # that asked for some gradients only
        self._skips = skips
        self._has_new = True
        self._judged = 0  # passes
        self._last_new = 0  # the number of the pass of which the loss was new last
        self.is_settled = False  # values are followed no longer

    def reset(self) -> None:
        """Forgets what was found; the models that ran, and the values that live, are known still."""
        self.parameters = self.parameters.anew()
        self.rows.clear()
        self.passes.clear()
        self.refusal, self.not_used = None, []
        self.refused = self.failed = self.partly = self._last_new = self._judged = 0

    def has_nothing_new(self) -> bool:
        return not self.is_settled and self._judged >= self._last_new + SETTLES > SETTLES

    def is_in_backward(self) -> bool:
        return bool(graph_task_id() >= 0)

    def see_models(self) -> None:
        """The model that runs, in a new operator."""
        self._has_new = True
        running = running_modules()
        if running:
            self.parameters.add_model(running[-1])

    # ---- passes -----------------------------------------------------------------------------------------------------

    def begin_pass(self, call: BackwardCall) -> None:
        loss = self._loss_of(call)
        self.rows.take()  # of passes that were not looked at
        self.running = Pass(loss, self.parameters, self.rows, self._skips, self.passes[loss] < READ_ALL)

    def add_leaf(self, gradient: Any) -> Parameter | None:
        """The leaf of the node that runs on this thread gets its gradient. Returns it, if it is a parameter."""
        leaf = running_leaf()
        return None if leaf is None or self.running is None else self.running.add_leaf(leaf, gradient)

    def end_pass(self, call: BackwardCall, error: BaseException | None) -> None:
        ended, self.running = self.running, None
        if ended is None:
            return
        if error is not None and not self._is_refusal(error):
            self.failed += 1
            if NOT_USED in str(error):
                self.not_used = Paths(self.flow, tuple(call.tensors)).not_used(self.flow.edges(call.inputs))
        else:
            self.refused += error is not None
            if call.accumulates:
                self._judge(call, ended, is_refused=error is not None)
            else:
                self._hand_out(call)
        self.flow.end_round()

    def _is_refusal(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) and REFUSED in str(error)

    def _loss_of(self, call: BackwardCall) -> Loss:
        made = (self.flow.made(tensor) for tensor in call.tensors)
        step = next((one for one in made if one is not None), None)
        if step is None and not self.is_settled:
            sources = (edge.source for edge in self.flow.edges(call.tensors))
            step = next((one for one in sources if isinstance(one, Step)), None)
        return None if step is None else step.site.place.op_id

    def _hand_out(self, call: BackwardCall) -> None:
        """The pass has returned gradients."""
        for tensor in call.inputs:
            parameter = self.parameters.of(tensor) if tensor.is_leaf else None
            if parameter is not None:
                parameter.handed_out += 1
        self.partly += 1

    def _judge(self, call: BackwardCall, ended: Pass, *, is_refused: bool) -> None:
        if self._has_new:  # or the models have no new parameters that are used
            self._has_new = False
            self.parameters.look_again()
        alive = list(self.parameters.alive())
        ended.add_native()
        ended.look_at_grad(alive, is_settled=self.is_settled)
        arrived = ended.finish()
        asked = {id(tensor) for tensor in call.inputs}
        self.passes[ended.loss] += 1
        self._judged += 1
        if self.passes[ended.loss] == 1:
            self._last_new = self._judged
        self.partly += bool(asked)
        passes = self.passes[ended.loss]
        if not passes & (passes - 1):  # a power of two: it waits for each
            for parameter in ended.reached:
                parameter.look_at_rows()
        missing: list[Parameter] = []
        for parameter, tensor in alive:
            if asked and id(tensor) not in asked:
                continue
            counts = parameter.counts[ended.loss]
            counts.passes += 1
            is_there = ended.reached.get(parameter)
            if is_there:
                counts.gradients += 1
                parameter.is_pending = True
            else:
                counts.zeros += is_there is False
                if counts.cuts is None or is_refused:
                    missing.append(parameter)
        if missing:
            self._explain(call, ended, arrived, missing)
        if is_refused:
            self._note_refusal(ended.loss, [one for one in missing if one.verdict in ("partial", "ok")])

    def _note_refusal(self, loss: Loss, missing: list[Parameter]) -> None:
        """Those without any gradient are findings of their own."""
        cuts = dict.fromkeys(cut for one in missing for cut in one.counts[loss].cuts or ())
        names = tuple(one.name for one in missing)
        self.refusal = Finding("refused", names, tuple(cuts), 1) if missing else None

    def _explain(self, call: BackwardCall, ended: Pass, arrived: dict[Step, bool], missing: list[Parameter]) -> None:
        paths = Paths(self.flow, tuple(call.tensors))
        by_leaf = {parameter.leaf: one for parameter, one in ended.reached.items()}

        def starts_at_zero(leaf: Leaf) -> bool:
            tensor = leaf.tensor()
            return bool(by_leaf.get(leaf)) and tensor is not None and is_zero(tensor)

        for parameter in missing:
            cuts = [] if parameter in ended.reached else paths.cuts_of(parameter.leaf)
            if not cuts and ended.reads_all:
                cuts = paths.zeros_of(parameter.leaf, arrived, starts_at_zero)
            if not cuts:
                cuts = [Cut("not seen", REASONS["not seen"], None, None)]
            parameter.counts[ended.loss].cuts = cuts
