"""Names of modules that mean the same in every process: what ids are made of. Nothing here keeps a model alive."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from amanda import _deaths, _port, _torch


class Name(NamedTuple):
    """A module's place in its model."""

    model: str
    name: str
    has_state: bool  # parameters or buffers, of its own or of modules in it


# Of every module met.
_names: Any = _port.WeakIdKeyDictionary()
_models_seen: collections.Counter[str] = collections.Counter()


def learn(outermost: Any) -> None:
    """Makes the modules of a model known.

    A model is the outermost module in which its parts were first met: its class, its parameters' names and shapes, and
    an ordinal by first run among equals. Without any state it has no ordinal: such modules are often made anew.
    """
    if outermost in _names:
        return
    cls = type(outermost)
    shapes = [(name, _shape(parameter)) for name, parameter in outermost.named_parameters()]
    digest = hashlib.blake2b(repr((cls.__module__, cls.__qualname__, shapes)).encode(), digest_size=8).hexdigest()
    model = f"{cls.__qualname__}-{digest}"
    if not _has_state(outermost) and next(outermost.children(), None) is None:
        # Its class is all that it is, and an address found with another of its class means the same. So its death ends no
        # epoch: a loss function that is made anew in each step would have every id resolved again.
        _names[outermost] = Name(model, "", False)
        return
    if _has_state(outermost):
        _models_seen[model] += 1
        model += f"-{_models_seen[model]}"
    for name, module in outermost.named_modules():
        if module not in _names:  # what was met in another model first stays there
            _names[module] = Name(model, name, _has_state(module))
            _deaths.watch(module, _end_epoch)


def is_known(module: Any) -> bool:
    """Has the module's model run?"""
    return module in _names


def name_of(module: Any) -> Name:
    """The model that a known module belongs to, and its name there."""
    return _names[module]  # type: ignore[no-any-return]


def names_in(modules: Sequence[Any]) -> str:
    """The innermost module's name in its model; "" where no module runs."""
    return name_of(modules[0]).name if modules else ""


def _end_epoch(_: int) -> None:
    _torch.start_new_epoch()


def _has_state(module: Any) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _shape(parameter: Any) -> tuple[int, ...] | None:
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)
