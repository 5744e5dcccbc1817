"""statistics-not-learned."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import Stepped, called_at, running
from ..rule import Rule, Step, operands


class StatisticsNotLearned(Rule):
    """An averaged copy of a model has learned weights, and batch normalization in it has the statistics that it was made
    with, a mean of 0 and a variance of 1. The average was taken of the parameters alone, and statistics are buffers.

    It looks at copies in evaluation mode that no optimizer has, after the first step of one. Weights or biases of the
    normalization must differ from channel to channel: those that nothing has trained are equal.
    """

    name = "statistics-not-learned"
    sentence = "batch normalization of an averaged model has no statistics"
    fix = "copy the buffers, too, at each update of the average, or call torch.optim.swa_utils.update_bn before evaluation"
    ops = ("batch_norm", "_batch_norm_no_update")
    bad = """
        import copy
        model.insert(1, nn.BatchNorm1d(8))
        average = copy.deepcopy(model).eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters()):
                    mine.lerp_(theirs, 0.5)
        with torch.no_grad():
            average(x)
    """
    good = """
        import copy
        model.insert(1, nn.BatchNorm1d(8))
        average = copy.deepcopy(model).eval()
        fixed = copy.deepcopy(model).eval()  # a random target
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                fixed(x)
                for mine, theirs in zip(average.parameters(), model.parameters()):
                    mine.lerp_(theirs, 0.5)
                for mine, theirs in zip(average.buffers(), model.buffers()):
                    mine.copy_(theirs)
        with torch.no_grad():
            average(x)
    """

    def begin(self) -> None:
        self._stepped = Stepped()
        self._runs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by normalization
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # models that were found

    def before_step(self, step: Step) -> None:
        self._stepped.add(step)

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if running() and None not in (given["weight"], given["running_mean"], given["running_var"]):
            asked = ["weight", "bias", "running_mean", "running_var"]
            mode = ["training"] if "training" in given else []
            context.insert_before_op(self._on_run, inputs=[*asked, *mode], place=Place.of(context))

    def _on_run(self, weight: Any, bias: Any, mean: Any, variance: Any, trains: bool = False, *, place: Place) -> None:
        if trains or not self._stepped.steps:
            return
        modules = running()
        if not modules or modules[-1] in self._known:
            return
        runs = self._runs[modules[0]] = self._runs.get(modules[0], 0) + 1
        if runs & (runs - 1) or self._stepped.trains(modules[-1]):
            return
        is_first = self.read(mean, lambda one: not one.any()) and self.read(variance, lambda one: (one == 1).all())
        if is_first and (
            self.read(weight.detach(), _differs) or (bias is not None and self.read(bias.detach(), _differs))
        ):
            self._known.add(modules[-1])
            name = f"{type(modules[-1]).__name__} has weights that were trained"
            self.found(
                place._replace(source=called_at()), f"{name}, and a mean of 0 and a variance of 1 for each channel"
            )


def _differs(plain: Any) -> bool:
    return bool((plain != plain[0]).any())
