"""hooks-bypassed."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import outwards, program_line

from ..modes import records, running
from ..rule import Rule

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


@dataclasses.dataclass(eq=False)
class _Bypassed:
    """A module that is not called, and computes all the same."""

    module: weakref.ref[Any]
    name: str  # of its class
    place: Place
    how: str
    is_called: bool = False  # elsewhere
    runs: int = 0  # with hooks
    hooks: int = 0  # the most


class HooksBypassed(Rule):
    """Hooks of a module never run, although the module computes, because nothing calls it. Hooks run in `module(x)`. The
    program calls `module.forward(x)` instead, or another module reads the parameters of this one, as
    `nn.MultiheadAttention` does with those of its `out_proj`. Pruning and `weight_norm` use hooks, too.

    It looks at hooks for the forward pass, and where autograd records also at those for the backward pass. It says nothing
    about modules that are called elsewhere in the program, nor about hooks of tensors.
    """

    name = "hooks-bypassed"
    sentence = "hooks do not run, for nothing calls their module"
    fix = "call the module, model(x), not model.forward(x); put the hook on the module that is called"
    ops = (
        *ops.linear_like,
        *ops.convolution,
        "embedding",
        "layer_norm",
        "batch_norm",
        "relu",
        "gelu",
        "conv_transpose2d",
    )
    bad = """
        seen = []
        model[0].register_forward_hook(lambda module, given, result: seen.append(result))
        model[2](model[1](model[0].forward(x)))
    """
    good = """
        seen = []
        model[0].register_forward_hook(lambda module, given, result: seen.append(result))
        model[2].forward(model[1].forward(model[0](x)))
    """

    def begin(self) -> None:
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()
        self._bypassed: list[_Bypassed] = []

    def look(self, context: OpContext) -> None:
        modules = running()
        self._called.update(modules)
        for one in self._bypassed:
            one.is_called = one.is_called or one.module() in modules
        for module, place, how in (*self._by_forward(context, modules), *self._by_parameters(context, modules)):
            if module not in self._called and all(one.module() is not module for one in self._bypassed):
                bypassed = _Bypassed(weakref.ref(module), type(module).__name__, place, how)
                self._bypassed.append(bypassed)
                context.insert_before_op(self._on_run, inputs=[], differentiable=True, bypassed=bypassed)

    def _by_forward(self, context: OpContext, modules: list[Any]) -> Iterator[tuple[Any, Place, str]]:
        """Modules whose `forward` runs, and which are not called."""
        for frame in outwards(sys._getframe(1)):
            module = _forward_of(frame)
            if module is not None and module not in modules:
                place = Place.of(context)._replace(source=program_line(frame.f_back))
                yield module, place, "the program calls forward() itself"

    def _by_parameters(self, context: OpContext, modules: list[Any]) -> Iterator[tuple[Any, Place, str]]:
        """Modules inside the innermost one whose parameters it gives to the operator itself."""
        given = [one for one in context.inputs if _is_parameter(one)]
        if not modules or not given or any(_owns(module, one) for module in modules for one in given):
            return
        for name, module in modules[0].named_modules():
            if any(_owns(module, one) for one in given):
                how = f"{type(modules[0]).__name__} reads the parameters of {name}, and does not call it"
                yield module, Place.of(context), how

    def _on_run(self, bypassed: _Bypassed) -> None:
        module = bypassed.module()
        kinds = (*_FORWARD, *_BACKWARD) if records() else _FORWARD
        hooks = sum(len(getattr(module, kind, ())) for kind in kinds) if module is not None else 0
        bypassed.runs += hooks > 0
        bypassed.hooks = max(bypassed.hooks, hooks)

    def at_end(self, ended_well: bool) -> None:
        for one in self._bypassed:
            if one.runs and not one.is_called:
                self.found(one.place, f"{counted(one.hooks, 'hook')} of {one.name}, and {one.how}", count=one.runs)
        self._bypassed.clear()


def _forward_of(frame: FrameType) -> Any:
    """The module whose `forward` this is, and that torch has not called it for; else None."""
    import torch

    code, caller = frame.f_code, frame.f_back
    if code.co_name != "forward" or not code.co_argcount or caller is None:
        return None
    if caller.f_code.co_filename == torch.nn.modules.module.__file__:
        return None
    found = frame.f_locals.get(code.co_varnames[0])
    return found if isinstance(found, torch.nn.Module) and not _is_compiled(found) else None


def _is_compiled(module: Any) -> bool:
    return type(module).__module__.startswith("torch._dynamo")


def _is_parameter(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Parameter)


def _owns(module: Any, parameter: Any) -> bool:
    return any(one is parameter for one in module._parameters.values())
