"""hooks-repeated."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import running
from ..rule import Rule, Step
from .hooks_bypassed import HooksBypassed

_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LOOKS = 3  # of which each must see more than the one before


class HooksRepeated(Rule):
    """A hook is registered again and again, in each step or call, and never removed: all of them run each time, so that
    each step takes longer than the one before. Hooks that change a gradient, as ``weight.register_hook``, change it as
    many times.

    It counts the hooks of one function at one module, or at one parameter, at steps 2, 4, 8, 16 and so on of an optimizer.
    They must be more in each of three, by a quarter of the steps or more.
    """

    name = "hooks-repeated"
    sentence = "a hook is registered again in each step, and all of them run"
    fix = "register it once, before the loop; or keep what register_... returns, and call remove()"
    ops = HooksBypassed.ops  # as that rule, so that both are one tool
    bad = """
        kept = {}
        for _ in range(8):
            model[0].register_forward_hook(lambda module, given, result: kept.update(result=result.detach()))
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        kept = {}
        for layer in model:
            for _ in range(3):
                layer.register_forward_hook(lambda module, given, result: kept.update(result=result.detach()))
        for _ in range(8):
            handle = model[0].register_forward_hook(lambda module, given, result: kept.update(result=result.detach()))
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            handle.remove()
    """

    def begin(self) -> None:
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules
        self._counts: dict[tuple[int, Any], list[int]] = {}  # of a module or parameter and a function, at each look

    def look(self, context: OpContext) -> None:
        modules = running()
        if modules:
            self._models.add(modules[-1])

    def before_step(self, step: Step) -> None:
        number = step.number + 1
        if number < 2 or number & number - 1:
            return
        before, self._counts = self._counts, {}
        for (holder, code), (name, count) in self._hooks().items():
            seen = self._counts[holder, code] = [*before.get((holder, code), []), count][-_LOOKS:]
            grows = all(later - earlier >= number // 8 for earlier, later in itertools.pairwise(seen))
            if len(seen) == _LOOKS and grows:
                place = Place(None, f"hook {code.co_name}", name, f"{code.co_filename}:{code.co_firstlineno}")
                self.found(place, f"it was there {count} times after {number} steps", key=name)

    def _hooks(self) -> dict[tuple[int, Any], tuple[str, int]]:
        """The name of what has them, and their number, by its id and the code of the function."""
        found: dict[tuple[int, Any], tuple[str, int]] = {}
        for model in list(self._models):
            for name, holder, hooks in _holders(model):
                codes = collections.Counter(filter(None, (getattr(one, "__code__", None) for one in hooks)))
                found.update(((id(holder), code), (name, count)) for code, count in codes.items() if count > 1)
        return found


def _holders(model: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    for name, module in model.named_modules():
        yield name, module, [one for kind in _OF_MODULES for one in getattr(module, kind, {}).values()]
    for name, parameter in model.named_parameters():
        hooks = [*(parameter._backward_hooks or {}).values()]
        if hooks:
            yield name, parameter, hooks
