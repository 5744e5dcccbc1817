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

from amanda.drivers.torch import call_path, models, port
from amanda.identity import frames


class _Holder(NamedTuple):
    """A module that holds a tensor."""

    module: weakref.ref[Any]
    kind: str  # "_parameters" or "_buffers"
    name: str
    path: str  # of the module, in the outermost one around it


_holders: dict[int, _Holder] = {}  # by the tensor's address: it counts while the module holds that very tensor
_loose: set[int] = set()  # addresses of nn.Parameters that no module held when all were searched


def name_of(tensor: Any) -> str:
    """The tensor's name in its model; "" if no module holds it.

    Models that have run in a scope come first. An `nn.Parameter` that none of them holds is searched for in all modules
    of the process: a tool may ask for the operators of the optimizer only.
    """
    with call_path.naming():
        name = _known_name(tensor)
        if name is None:
            _search(models.registered())
            name = _known_name(tensor)
        if name is None and isinstance(tensor, torch.nn.Parameter) and id(tensor) not in _loose:
            _search(all_outermost())
            name = _known_name(tensor)
            if name is None:
                _listen()
                _loose.add(id(tensor))
        return frames.encodable(name or "")


def _known_name(tensor: Any) -> str | None:
    holder = _holders.get(id(tensor))
    if holder is None or _held_by(holder) is not tensor:
        return None
    module = holder.module()
    path = models.name_of(module).name if models.is_known(module) else holder.path
    return f"{path}.{holder.name}" if path else holder.name


def _held_by(holder: _Holder) -> Any:
    module = holder.module()
    return None if module is None else module.__dict__.get(holder.kind, {}).get(holder.name)


def _search(outermost: Iterable[Any]) -> None:
    for address in [address for address, holder in _holders.items() if holder.module() is None]:
        del _holders[address]
    for model in outermost:
        for path, part in models.named_parts(model):
            for kind in ("_parameters", "_buffers"):
                for name, tensor in models.held(part, kind):
                    known = _holders.get(id(tensor))
                    if known is None or _held_by(known) is not tensor:
                        _holders[id(tensor)] = _Holder(weakref.ref(part), kind, name, path)


def all_outermost() -> list[Any]:
    """All modules that are in no other."""
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
