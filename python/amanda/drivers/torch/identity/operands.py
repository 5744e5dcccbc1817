"""Names of the parameters and buffers that operators use, and the numbers by which the driver finds them.

A tensor keeps its number until it dies, which the driver records: nothing here references a tensor. When a module
exchanges a tensor, so that a number would get another name, the tensor gets a new number, and the places that use it
are resolved again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from amanda import _torch
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import lifetimes, models


class Home(NamedTuple):
    """A module that holds a buffer, and the buffer's name there."""

    module: weakref.ref[Any]
    name: str


homes: dict[int, list[Home]] = {}  # of buffers of known models, by number


class Buffers(NamedTuple):
    """The buffers of a module that count as parameters."""

    module: weakref.ref[Any]
    numbers: dict[str, int]  # by name


registered: dict[int, Buffers] = {}
"""Entries of modules whose buffers count as parameters, by address. Until `lifetimes.tell`, dead modules have entries,
too: another module may be at the address by then."""


def path_in(module: Any, tensor: Any) -> str | None:
    """The parameter's name in a module and the modules in it; None if it is not there."""
    for path, part in models.named_parts(module):
        for name, parameter in models.held(part, "_parameters"):
            if parameter is tensor:
                return _join(path, name)
    return None


def has_buffers_of(outermost: Any) -> bool:
    """True if this is a registered model, whose buffers count as parameters."""
    return id(outermost) in registered


def register_buffers(parts: list[tuple[str, Any]]) -> None:
    """Makes the buffers of a registered model count as parameters. `parts` are those of models.named_parts."""
    patch_exchanges()
    _torch.register_buffers(parts)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ---- what modules keep ------------------------------------------------------------------------------------------------


def _numbers_of(module: Any) -> dict[str, int] | None:
    """The numbers of a module's buffers that count as parameters, by name; None if the module is not registered."""
    kept = registered.get(id(module))
    return kept.numbers if kept is not None and kept.module() is module else None


def settle_buffers(module: Any) -> None:
    for name, buffer in models.held(module, "_buffers"):
        _settle(buffer, module, name)


def _settle(buffer: Any, module: Any, name: str) -> None:
    kept = _numbers_of(module)
    if kept is None or not issubclass(type(buffer), torch.Tensor):
        return
    number = _torch.number_of(buffer)
    had = kept.get(name)
    if had is not None:
        if had == number:
            return
        _leave(module, name)
    if number not in homes:
        number = _torch.assign_number(buffer, counts=True)
    kept[name] = number
    homes.setdefault(number, []).append(Home(weakref.ref(module), name))


def _leave(module: Any, name: str) -> None:
    number = (_numbers_of(module) or {}).pop(name, None)
    if number is not None:
        _keep_homes(number, [home for home in homes[number] if home.module() is not module or home.name != name])


def _keep_homes(number: int, held: list[Home]) -> None:
    if held:
        homes[number] = held
    else:  # alive or not, it is no module's buffer any more
        del homes[number]
        _torch.clear_number(number)


def forget_modules(keys: Sequence[int]) -> None:
    """The buffers of the modules at these addresses do not count any more, until these run again."""
    for key in keys:
        module = registered[key].module() if key in registered else None
        if module is not None:
            for name in list(registered[key].numbers):
                _leave(module, name)
        _forget_module(key)


def _forget_module(key: int) -> None:
    kept = registered.pop(key, None)
    for number in kept.numbers.values() if kept is not None else ():
        if number in homes:
            _keep_homes(number, [home for home in homes[number] if home.module() is not None])


def _forget_tensor(number: int) -> None:
    for home in homes.pop(number, ()):
        kept = _numbers_of(home.module()) or {}
        if kept.get(home.name) == number:
            del kept[home.name]


lifetimes.objects.listen(_forget_module)
lifetimes.tensors.listen(_forget_tensor)
lifetimes.tensors.listen(_torch.forget_loose)


@functools.cache
def patch_exchanges() -> None:
    torch_module.register_module_parameter_registration_hook(_on_parameter)
    torch_module.register_module_buffer_registration_hook(_on_buffer)
    convert, swap = torch.nn.Module._apply, torch.utils.swap_tensors

    @port.leave_uncompiled
    @functools.wraps(convert)
    def convert_and_tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        converted = convert(self, *args, **kwargs)
        if id(self) in registered:
            _refresh(self)
        return converted

    @port.leave_uncompiled
    @functools.wraps(swap)
    def swap_and_tell(t1: Any, t2: Any) -> None:
        swap(t1, t2)
        if torch.compiler.is_compiling():
            return
        _torch.exchange_numbers(t1, t2)

    torch.nn.Module._apply = convert_and_tell
    torch.utils.swap_tensors = swap_and_tell


@port.leave_all_uncompiled
def _on_parameter(module: Any, name: str, tensor: Any) -> None:
    """The module's former parameter of this name may live on elsewhere, under another name."""
    if torch.compiler.is_compiling():  # traced: nothing is registered yet
        return
    if tensor is not None:
        models.tell_state(module)
    old = module.__dict__.get("_parameters", {}).get(name)
    if old is not None and old is not tensor:
        _torch.renumber_loose(old)


@port.leave_all_uncompiled
def _on_buffer(module: Any, name: str, tensor: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if tensor is None:
        _leave(module, name)
    else:
        models.tell_state(module)
        _settle(tensor, module, name)


@port.leave_all_uncompiled
def _refresh(module: Any) -> None:
    numbers = _numbers_of(module)
    if numbers is None:
        return
    present = dict(models.held(module, "_buffers"))
    for name, number in list(numbers.items()):
        if name not in present or _torch.number_of(present[name]) != number:
            _leave(module, name)
    settle_buffers(module)
