"""ranks-part."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place, own_work

from .. import ranks
from ..modes import running
from ..rule import Rule, Step

START, BACKWARD, STEP = "start", "backward", "step"  # in the order of the program
_TEXTS = {
    START: "the weight {}, when step {} begins",
    BACKWARD: "the gradient of {}, after backward() for step {}",
    STEP: "the gradient of {}, equal after backward() and changed before step {}",
}


class RanksPart(Rule):
    """Processes train a model together by `DistributedDataParallel`, and their replicas part: a gradient or a weight has
    another norm on another rank. The evidence says where they part first: in the backward pass (gradients are not
    averaged, or data were lost), between it and the step (as by clipping on one rank), or in the step.

    It looks at steps 1, 2, 3, 5, 9, 17 and so on, and waits for the device there. The ranks exchange norms by the store of
    `torch.distributed`, and no rank waits for another. Local SGD lets ranks part on purpose: allow it there.
    """

    name = "ranks-part"
    sentence = "replicas of a model differ between ranks"
    fix = "call the wrapper, wrap the model after it was moved or converted, and do the same to gradients on each rank"
    ops = (*ops.linear_like, *ops.convolution, "embedding")
    processes = 2
    _end: Callable[[], None] | None = None  # ends calls after each backward pass
    bad = """
        ddp = nn.parallel.DistributedDataParallel(model)
        ddp.double().float()  # it loses its hooks
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(ddp(torch.randn(4, 4) + rank), labels).backward()
            optimizer.step()
    """
    good = """
        model.double().float()
        ddp = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(ddp(torch.randn(4, 4) + rank), labels).backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._wrapped: weakref.WeakSet[Any] = weakref.WeakSet()  # instances of DistributedDataParallel that ran
        self._board: ranks.Board | None = None
        self._step = 0
        self._places: dict[int, tuple[Place, int]] = {}  # and the number of the step
        self._after_backward: dict[str, float] = {}
        self._is_found = False

    def look(self, context: OpContext) -> None:
        for module in running() if ranks.several() else ():
            if type(module).__name__ == "DistributedDataParallel":
                self._wrapped.add(module)
                self._listen()

    def _listen(self) -> None:
        if self._board is None:
            from amanda.toolkit.torch import listen_to_backward

            self._stop_listening()
            self._end = listen_to_backward(_Listener(weakref.ref(self)))
            self._board = ranks.Board(self.name)

    def after_backward(self) -> None:
        """A pass has given gradients."""
        if self._is_sampled():
            self._after_backward = self._norms(_gradient)

    def _is_sampled(self) -> bool:
        return not self._is_found and self._step & (self._step - 1) == 0

    def before_step(self, step: Step) -> None:
        if not self._wrapped or not ranks.several() or not self._is_replicated(step):
            return
        self._listen()  # a scope that is opened again looks at no operator
        if self._board is not None and self._is_sampled():
            note = {START: self._norms(_itself), BACKWARD: self._after_backward}
            note[STEP] = {} if step.has_closure else self._norms(_gradient)
            self._places[self._step] = step.place, step.number + 1
            self._board.put(str(self._step), note)
        self._after_backward = {}
        self._step += 1

    def after_step(self, step: Step) -> None:
        self._compare()

    def _is_replicated(self, step: Step) -> bool:
        own = set(map(id, step.parameters))
        return any(id(one) in own for wrapper in self._wrapped for one in wrapper.parameters())

    def _norms(self, of: Callable[[Any], Any]) -> dict[str, float]:
        found = {}
        with own_work():  # tools see no operators of a hook
            for number, wrapper in enumerate(sorted(self._wrapped, key=lambda one: str(type(one.module)))):
                for name, parameter in wrapper.module.named_parameters():
                    tensor = of(parameter) if parameter.requires_grad else None
                    norm = None if tensor is None else self.read(tensor.detach(), _norm)
                    if norm is not None:
                        found[f"{name}{f' of model {number + 1}' if number else ''}"] = norm
        return found

    def _compare(self) -> None:
        if self._board is None or self._is_found:
            return
        for key, note, rank, other in self._board.answered():
            for stage in (START, BACKWARD, STEP):
                parted = [name for name in note[stage] if ranks.differs(note[stage][name], other[stage].get(name, 0.0))]
                if not parted or self._is_found:
                    continue
                self._is_found = True
                place, number = self._places[int(key)]
                where = _TEXTS[stage].format(parted[0], number)
                more = f", and {len(parted) - 1} more" if len(parted) > 1 else ""
                norms = f"norm {note[stage][parted[0]]:.6g} here, {other[stage].get(parted[0], 0.0):.6g} on rank {rank}"
                self.found(place, f"{where}: {norms}{more}", count=len(parted))

    def at_end(self, ended_well: bool) -> None:
        self._compare()
        self._stop_listening()
        self._board = None  # the next scope has other notes

    def _stop_listening(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class _Listener:
    """Calls the rule after each backward pass."""

    def __init__(self, rule: weakref.ref[RanksPart]) -> None:
        self._rule = rule

    def begin(self, call: Any) -> None:
        pass

    def end(self, call: Any, error: BaseException | None, gradients: Any) -> None:
        rule = self._rule()
        if rule is not None and call.accumulates and not call.is_nested and error is None:
            rule.after_backward()


def _itself(parameter: Any) -> Any:
    return parameter


def _gradient(parameter: Any) -> Any:
    return parameter.grad


def _norm(plain: Any) -> float:
    return float(plain.double().norm())
