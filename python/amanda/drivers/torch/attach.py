"""Attaches the PyTorch driver to the torch of this process: once, after comparing the versions."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from amanda import _core, _torch
from amanda.core import roots, scope
from amanda.driver.identity import roots as identity_roots
from amanda.drivers.torch import compiled, port, program_errors
from amanda.drivers.torch.identity import call_path, parameter_names


def attach() -> None:
    _torch.install_rules(call_path.RULES)
    _torch.install(
        _core.Error,
        parameter_names.name_of,
        sorted(_codes_of(torch.utils.checkpoint), key=id),
        [port.RUN_BACKWARD],
        port.get_unwrapped,
        port.set_eval_frame,
    )
    _torch.install_errors(program_errors.is_programs, port.binary_operators())
    _core.register_bridge(_torch.bridge())
    _spare_higher_order_operators()
    _restore_keys_after_inference_mode()
    compiled.leave_untraced(scope.apply, scope.Scope.__enter__, scope.Scope.__exit__)
    compiled.leave_untraced(roots.root, roots.Root.__enter__, roots.Root.__exit__)
    identity_roots.listen(_torch.set_block)


def _codes_of(module: ModuleType) -> set[CodeType]:
    """The code of all functions defined in a module, methods and inner functions included."""
    codes: set[CodeType] = set()

    def add(code: CodeType) -> None:
        codes.add(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                add(constant)

    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        for member in members:
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                add(function.__code__)
    return codes


def _spare_higher_order_operators() -> None:
    """Excludes our keys from `torch.cond` and similar operators, which look up a kernel for the highest active key."""
    keys = [port.parse_dispatch_key(name) for name in _torch.dispatch_keys()]

    def spare(operator: Any) -> None:
        for key in keys:
            port.spare(operator, key)

    for operator in port.higher_order_operators.values():
        spare(operator)
    cls = port.HigherOrderOperator
    construct = cls.__init__

    @functools.wraps(construct)
    def construct_spared(self: Any, /, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        spare(self)

    cls.__init__ = construct_spared


def _restore_keys_after_inference_mode() -> None:
    """inference_mode restores all of the thread's dispatch keys when it ends, which would turn off a scope opened
    inside."""
    cls: Any = torch.inference_mode
    leave = cls.__exit__

    @functools.wraps(leave)
    def leave_and_restore(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return leave(self, *args, **kwargs)
        finally:
            _torch.restore_keys()

    cls.__exit__ = leave_and_restore
