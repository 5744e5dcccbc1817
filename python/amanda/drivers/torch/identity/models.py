"""Names of modules that are the same in every process: ids contain them. Nothing here keeps a model alive.

Modules, parameters and classes belong to the program: they are compared by identity, and no method that a class may
override is called.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from amanda import _torch
from amanda.driver.identity import frames
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import lifetimes


class Name(NamedTuple):
    """A module's place in a model."""

    model: str
    name: str
    has_state: bool  # parameters or buffers, its own or of modules in it
    text: str  # of the model and the name, in a path; and which of the modules that were there, if it is not the first


names: dict[int, Name] = {}
"""The names of all modules that have run, by address. A name is the one that holds where the module is called directly.
See model_names.h."""
_outermost: dict[int, weakref.ref[Any]] = {}  # of every registered model that has state, by its address
_models: dict[int, _Model] = {}  # by the address of the outermost module
_models_seen: collections.Counter[str] = collections.Counter()


class _Model(NamedTuple):
    """How a model is named, as long as it lives."""

    name: str
    has_state: bool


def register_model(parts: list[tuple[str, Any]]) -> list[int]:
    """Names the modules of a model, as they are now. `parts`: as `named_parts` has them, the outermost first.

    A model is an outermost module that runs. It is named when it first runs, by its class, its parameters' names and
    shapes, and an ordinal among equal models, in the order of first runs. Without any state it has no ordinal: such
    modules are often recreated. Returns the addresses of modules that are in no model any more.
    """
    outermost = parts[0][1]
    with_state = _torch.with_state(parts, port.compilers_wrapper())
    has_state = any(with_state)
    model = _models.get(id(outermost))
    if model is None or has_state > model.has_state:
        _watch_parts()
        model = _models[id(outermost)] = _Model(_name_for(parts, has_state), has_state)
        if has_state:
            _outermost[id(outermost)] = weakref.ref(outermost)
    is_plain = not model.has_state and len(parts) == 1
    if is_plain:  # only its class identifies it: another module of that class, later at its address, has the same name
        lifetimes.watch(type(outermost))
    gone: list[int] = _torch.name_parts(parts, model.name, with_state, names, is_plain)
    return gone


def _name_for(parts: list[tuple[str, Any]], has_state: bool) -> str:
    cls = type(parts[0][1])
    shapes = _torch.parameters_text(parts)
    described = f"({frames.name_of_module(cls.__module__)!r}, {cls.__qualname__!r}, {shapes})"
    model = f"{cls.__qualname__}-{hashlib.blake2b(described.encode(), digest_size=8).hexdigest()}"
    if not has_state:
        return model
    _models_seen[model] += 1
    return f"{model}-{_models_seen[model]}"


def registered() -> list[Any]:
    """The outermost modules of models that have state and are alive, in the order in which they were registered."""
    return [model for reference in _outermost.values() if (model := reference()) is not None]


def name_of(module: Any) -> Name:
    """The name of a registered module where it is called directly."""
    return names[id(module)]


def named_parts(module: Any) -> list[tuple[str, Any]]:
    """A module and all modules in it, each once, with their names: as `named_modules()` of nn.Module.

    The wrapper of torch.compile around a module counts as that module.
    """
    return _torch.named_parts(module, port.compilers_wrapper())


held = _torch.held


def shape_of(parameter: Any) -> tuple[int, ...] | None:
    """None if the parameter is lazy."""
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


# ---- what changes names -----------------------------------------------------------------------------------------------


@functools.cache
def _watch_parts() -> None:
    """Has all that changes which modules a model holds start a new epoch. Only these methods write to `_modules`."""
    torch_module.register_module_module_registration_hook(_on_module)
    for cls, method in (
        (nn.Module, "__delattr__"),
        (nn.Sequential, "insert"),
        (nn.ModuleList, "insert"),
        (nn.ModuleDict, "__delitem__"),
        (nn.ModuleDict, "clear"),
    ):
        setattr(cls, method, _telling(getattr(cls, method)))


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @port.leave_uncompiled
    @functools.wraps(method)
    def change_and_tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        _tell_change(self)
        return result

    return change_and_tell


@port.leave_all_uncompiled
def _on_module(module: Any, name: str, part: Any) -> None:
    if torch.compiler.is_compiling():  # traced: nothing is registered yet
        return
    if id(module) in names and module.__dict__.get("_modules", {}).get(name) is not part:
        _tell_change(module)


@port.leave_all_uncompiled
def _tell_change(module: Any) -> None:
    if id(module) in names and not torch.compiler.is_compiling():
        _torch.start_new_epoch()


def tell_state(module: Any) -> None:
    """The module gets a parameter or a buffer: which modules have state counts in paths."""
    name = names.get(id(module))
    if name is not None and not name.has_state:
        _torch.start_new_epoch()


def _forget(key: int) -> None:
    names.pop(key, None)
    _outermost.pop(key, None)
    _models.pop(key, None)
    _torch.forget_model(key)


lifetimes.objects.listen(_forget)
