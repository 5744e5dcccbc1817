"""Names of parameters and buffers, for contexts: searched for only when a tool asks.

Ids do not depend on anything here, and nothing here keeps a module or a tensor alive.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from amanda import _torch
from amanda.driver.identity import frames
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import call_path, lifetimes, models


class _Holder(NamedTuple):
    """A module that holds a tensor, in an outermost one."""

    module: weakref.ref[Any]
    kind: str  # "_parameters" or "_buffers"
    name: str
    outermost: weakref.ref[Any]
    path: str  # of the module, in the outermost one


_holders: dict[int, list[_Holder]] = {}  # by the tensor's address: one counts while its module holds that very tensor
_searched: dict[int, int] = {}  # in which epoch, by the address of an outermost module that ran
_loose: set[int] = set()  # addresses of nn.Parameters that no module held when all were searched


def name_of(tensor: Any) -> str:
    """The tensor's name in the model that runs; elsewhere, in its model. "" if no module holds it.

    Models that have run in a scope come first. An `nn.Parameter` that none of them holds is searched for in all modules
    of the process: a tool may ask for the operators of the optimizer only.
    """
    with call_path.naming():
        running = call_path.running_modules()
        _search_running(running)
        name = _known_name(tensor, running)
        if name is None:
            _search(models.registered())
            name = _known_name(tensor, running)
        if name is None and isinstance(tensor, torch.nn.Parameter) and id(tensor) not in _loose:
            _search(all_outermost())
            name = _known_name(tensor, running)
            if name is None:
                _listen()
                _loose.add(id(tensor))
        return frames.encodable(name or "")


def _known_name(tensor: Any, running: list[Any]) -> str | None:
    holders = [holder for holder in _holders.get(id(tensor), ()) if _held_by(holder) is tensor]
    for path_of in (lambda holder: _path_among(running, holder), _path_at_home, _path_when_searched):
        for holder in holders:
            path = path_of(holder)
            if path is not None:
                return f"{path}.{holder.name}" if path else holder.name
    return None


def _path_among(running: list[Any], holder: _Holder) -> str | None:
    name: models.Name | None = _torch.name_among(running, holder.module())
    return None if name is None else name.name


def _path_at_home(holder: _Holder) -> str | None:
    module = holder.module()
    if _torch.home_name(module) is None:
        return None
    call_path.settle([module])
    return models.name_of(module).name


def _path_when_searched(holder: _Holder) -> str | None:
    found = holder.outermost()
    for name in holder.path.split(".") if holder.path else ():
        found = None if found is None else port.without_compiler(_part(found, "_modules", name))
    return holder.path if found is not None and found is holder.module() else None


def _held_by(holder: _Holder) -> Any:
    module = holder.module()
    return None if module is None else _part(module, holder.kind, holder.name)


def _part(module: Any, kind: str, name: str) -> Any:
    """The part of a module under this name, or None. The dicts of a scripted module are no dicts, and have no `get`."""
    parts = module.__dict__.get(kind, {})
    return parts[name] if name in parts else None  # noqa: SIM401


def _search_running(running: list[Any]) -> None:
    call_path.settle(running)
    if running:
        epoch, _ = _torch.raw_place((), ())
        if _searched.get(id(running[-1])) != epoch:
            _searched[id(running[-1])] = epoch
            _search([running[-1]])


def _search(outermost: Iterable[Any]) -> None:
    for address, holders in list(_holders.items()):
        alive = [holder for holder in holders if _held_by(holder) is not None]
        if len(alive) < len(holders):
            _holders[address] = alive
        if not alive:
            del _holders[address]
    for model in outermost:
        found: dict[int, list[_Holder]] = {}
        for path, part in models.named_parts(model):
            for kind in ("_parameters", "_buffers"):
                for name, tensor in models.held(part, kind):
                    holder = _Holder(weakref.ref(part), kind, name, weakref.ref(model), path)
                    found.setdefault(id(tensor), []).append(holder)
        for address, holders in found.items():
            others = [holder for holder in _holders.get(address, ()) if holder.outermost() is not model]
            _holders[address] = others + holders


def all_outermost() -> list[Any]:
    """All modules that are in no other module."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inner = {id(part) for module in modules for _, part in models.held(module, "_modules")}
    return [module for module in modules if id(module) not in inner]


@functools.cache
def _listen() -> None:
    torch_module.register_module_parameter_registration_hook(_on_parameter)


@port.leave_all_uncompiled
def _on_parameter(module: Any, name: str, tensor: Any) -> None:
    if not torch.compiler.is_compiling():
        _loose.clear()


lifetimes.objects.listen(lambda address: _searched.pop(address, None))
