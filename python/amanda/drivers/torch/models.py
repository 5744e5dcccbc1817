"""Names of modules that are the same in every process: ids contain them. Nothing here keeps a model alive.

Modules, parameters and classes belong to the program: they are compared by identity, and no method that a class may
override is called.
"""

from __future__ import annotations

import collections
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from amanda import _torch
from amanda.drivers.torch import lifetimes, port
from amanda.identity import frames


class Name(NamedTuple):
    """A module's place in its model."""

    model: str
    name: str
    has_state: bool  # parameters or buffers, its own or of modules in it
    text: str  # of the model and the name, in a path


names: dict[int, Name] = {}  # of every registered module, by its address
_outermost: dict[int, weakref.ref[Any]] = {}  # of every registered model that has state, by its address
_models_seen: collections.Counter[str] = collections.Counter()


def register_model(parts: list[tuple[str, Any]]) -> None:
    """Names the modules of a model, unless they have names. `parts`: as `named_parts` has them, the outermost first.

    A model is the outermost module in which its submodules first ran. It is named by its class, its parameters' names
    and shapes, and an ordinal among equal models, in the order of first runs. Without any state it has no ordinal: such
    modules are often recreated.
    """
    outermost = parts[0][1]
    if id(outermost) in names:
        return
    cls = type(outermost)
    shapes = _torch.parameters_text(parts)
    described = f"({frames.name_of_module(cls.__module__)!r}, {cls.__qualname__!r}, {shapes})"
    model = f"{cls.__qualname__}-{hashlib.blake2b(described.encode(), digest_size=8).hexdigest()}"
    with_state = _torch.with_state(parts, port.compilers_wrapper())
    has_state = any(with_state)
    if not has_state and len(parts) == 1:
        # Only its class identifies it: another module of that class, later at its address, has the same name.
        lifetimes.watch(cls)
        lifetimes.watch(outermost, plain=True)
        names[id(outermost)] = Name(model, "", False, repr((model, "")))
        return
    if has_state:
        _models_seen[model] += 1
        model += f"-{_models_seen[model]}"
        _outermost[id(outermost)] = weakref.ref(outermost)
    _torch.name_parts(parts, model, with_state, names)


def is_known(module: Any) -> bool:
    """Has the module's model been registered?"""
    return id(module) in names


def registered() -> list[Any]:
    """The outermost modules of models that have state and are alive, in the order in which they were registered."""
    return [model for reference in _outermost.values() if (model := reference()) is not None]


def name_of(module: Any) -> Name:
    """The model that a registered module belongs to, and its name there."""
    return names[id(module)]


def names_in(modules: Sequence[Any]) -> str:
    """The innermost module's name in its model; "" where no module runs."""
    return names[id(modules[0])].name if modules else ""


def named_parts(module: Any) -> list[tuple[str, Any]]:
    """A module and all modules in it, each once, with their names: as `named_modules()` of nn.Module.

    The wrapper of torch.compile around a module counts as that module.
    """
    return _torch.named_parts(module, port.compilers_wrapper())


held = _torch.held


def _shape(parameter: Any) -> tuple[int, ...] | None:
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


def _forget(key: int) -> None:
    names.pop(key, None)
    _outermost.pop(key, None)


lifetimes.objects.listen(_forget)
_torch.install_models(torch.nn.Module, torch.nn.Parameter, Name, _shape)
