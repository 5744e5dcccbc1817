"""Connects the PyTorch driver with the torch of this process."""

from __future__ import annotations

import functools
import importlib.util
import logging
from types import CodeType, FunctionType, ModuleType
from typing import Any

from amanda import _core


def load() -> None:
    """Loads the driver, if torch is installed and this build has one.

    Raises:
        ImportError: this build was made for another torch, or this torch has not what it relies on.
    """
    _core.set_log_sink(logging.getLogger("amanda").warning)
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("amanda._torch") is None:
        return
    import torch

    from amanda import _build

    if torch.__version__.split(".")[:2] != _build.TORCH_VERSION.split(".")[:2]:
        raise ImportError(
            f"[torch] this build of amanda is for torch {_build.TORCH_VERSION}, and torch {torch.__version__} is "
            "installed; build amanda again against it, or install that torch"
        )
    from amanda import _backward_pass, _call_path, _compiled, _functions, _port, _program_errors, _torch, scope

    _torch.install(
        _core.Error,
        _call_path.resolve,
        sorted(_codes_of(torch.utils.checkpoint), key=id),
        [_port.RUN_BACKWARD],
        _port.RUN_MODULE,
        torch.nn.Parameter,
        _port.get_unwrapped,
        _port.set_eval_frame,
    )
    _torch.install_errors(_program_errors.is_programs, _port.binary_operators())
    _core.register_bridge(_torch.bridge())
    _spare_higher_order_operators(_port, _torch.dispatch_keys())
    _restore_keys_after_inference_mode(torch, _torch.restore_keys)
    scope.count_with(_torch.Census)
    scope.while_open(_functions.watch, _functions.leave_alone)
    scope.while_open(_backward_pass.watch, _backward_pass.leave_alone)
    _compiled.leave_untraced(scope.apply, scope.Scope.__enter__, scope.Scope.__exit__)
    scope.while_open(_compiled.watch, _compiled.leave_alone)


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


def _spare_higher_order_operators(port: Any, names: tuple[str, str]) -> None:
    """Keeps our keys out of `torch.cond` and its like: they look a kernel up for the highest key that is on."""
    keys = [port.parse_dispatch_key(name) for name in names]

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


def _restore_keys_after_inference_mode(torch: Any, restore: Any) -> None:
    """inference_mode puts all of the thread's key bits back at its end, ours included: a scope opened inside is lost."""
    cls = torch.inference_mode
    leave = cls.__exit__

    @functools.wraps(leave)
    def leave_and_restore(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return leave(self, *args, **kwargs)
        finally:
            restore()

    cls.__exit__ = leave_and_restore
