"""Names of the parameters and buffers that operators use, and the numbers by which the driver finds them.

A tensor keeps its number until it dies, which the driver records: nothing here references a tensor. When a module
exchanges a tensor, so that a number would get another name, the tensor gets a new number, and the places that use it
are resolved again.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from amanda import _torch
from amanda.drivers.torch import lifetimes, models, port


class _Home(NamedTuple):
    """A module that holds a buffer, and the buffer's name there."""

    module: weakref.ref[Any]
    name: str


_homes: dict[int, list[_Home]] = {}  # of buffers of known models, by number
_kept: dict[int, dict[str, int]] = {}  # numbers of buffers, by the known module's address and their names


def operand(
    tensor: Any, counts: bool, modules: Sequence[Any], place: Hashable, recomputing: bool
) -> tuple[object, ...] | None:
    """An operand's name at a place; None: it is not part of the id there.

    A buffer of a known model has its name in the model. A parameter has its name in one of the running `modules`, tried
    from the innermost outwards. Elsewhere (loops of an optimizer, weights outside modules) parameters are numbered in
    the order in which they first occur at the place.

    Arguments: tensor: its Python object; None: it has none, because C++ created and holds it. counts: is it a
        parameter, or a leaf that requires a gradient? modules: that run, innermost first. place: of the operator.
        recomputing: is a checkpointed region recomputed?
    """
    if tensor is None:
        return ("unknown",)
    number = _torch.number_of(tensor)
    for home in _homes.get(number, ()):
        module = home.module()
        if module is not None:
            model, path = models.name_of(module)[:2]
            return (model, _join(path, home.name))
    if not counts:
        return None
    for module in modules:
        found = _path_in(module, tensor)
        if found is not None:
            if not number:
                _number(tensor)
            return (*models.name_of(module)[:2], found)
    ordinal = _loose.ordinal(tensor, place, recomputing)
    return None if ordinal is None else ("loose", ordinal)


def _path_in(module: Any, tensor: Any) -> str | None:
    """The parameter's name in a module and the modules in it; None: it is not there."""
    for name, parameter in module.__dict__.get("_parameters", {}).items():  # mostly it is the module's own
        if parameter is tensor and port.without_compiler(module) is module:
            return str(name)
    for path, part in models.named_parts(module):
        for name, parameter in models.held(part, "_parameters"):
            if parameter is tensor:
                return _join(path, name)
    return None


def has_buffers_of(outermost: Any) -> bool:
    """Do the buffers of a registered model count as parameters?"""
    return id(outermost) in _kept


def register_buffers(outermost: Any) -> None:
    """Makes the buffers of a registered model count as parameters."""
    if has_buffers_of(outermost):
        return
    _patch_exchanges()
    for _, module in reversed(models.named_parts(outermost)):  # the outermost last: once it is registered, all are
        if models.is_known(module):
            _kept.setdefault(id(module), {})
            _settle_buffers(module)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _number(tensor: Any) -> int:
    _patch_exchanges()
    return _torch.number_of(tensor) or _torch.assign_number(tensor, counts=False)


# ---- what modules keep ------------------------------------------------------------------------------------------------


def _settle_buffers(module: Any) -> None:
    for name, buffer in models.held(module, "_buffers"):
        _settle(buffer, module, name)


def _settle(buffer: Any, module: Any, name: str) -> None:
    number = _torch.number_of(buffer)
    kept = _kept[id(module)]
    if number and kept.get(name) == number:
        return
    _leave(module, name)
    if number not in _homes:
        number = _torch.assign_number(buffer, counts=True)
    kept[name] = number
    _homes.setdefault(number, []).append(_Home(weakref.ref(module), name))


def _leave(module: Any, name: str) -> None:
    number = _kept.get(id(module), {}).pop(name, None)
    if number is not None:
        _keep_homes(number, [home for home in _homes[number] if home.module() is not module or home.name != name])


def _keep_homes(number: int, homes: list[_Home]) -> None:
    if homes:
        _homes[number] = homes
    else:  # alive or not, it is no module's buffer any more
        del _homes[number]
        _torch.clear_number(number)


def _forget_module(key: int) -> None:
    for number in _kept.pop(key, {}).values():
        if number in _homes:
            _keep_homes(number, [home for home in _homes[number] if home.module() is not None])


def _forget_tensor(number: int) -> None:
    for home in _homes.pop(number, ()):
        kept = _kept.get(id(home.module()), {})
        if kept.get(home.name) == number:
            del kept[home.name]


lifetimes.objects.listen(_forget_module)
lifetimes.tensors.listen(_forget_tensor)


@functools.cache
def _patch_exchanges() -> None:
    torch_module.register_module_parameter_registration_hook(_on_parameter)
    torch_module.register_module_buffer_registration_hook(_on_buffer)
    convert, swap = torch.nn.Module._apply, torch.utils.swap_tensors

    @functools.wraps(convert)
    def convert_and_tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        converted = convert(self, *args, **kwargs)
        if id(self) in _kept:
            _refresh(self)
        return converted

    @functools.wraps(swap)
    def swap_and_tell(t1: Any, t2: Any) -> None:
        swap(t1, t2)
        if torch.compiler.is_compiling():
            return
        _torch.exchange_numbers(t1, t2)

    torch.nn.Module._apply = convert_and_tell
    torch.utils.swap_tensors = swap_and_tell


def _on_parameter(module: Any, name: str, tensor: Any) -> None:
    """The module's former parameter of this name may live on elsewhere, under another name."""
    if torch.compiler.is_compiling():  # traced: nothing is registered yet
        return
    old = module.__dict__.get("_parameters", {}).get(name)
    if old is not None and old is not tensor:
        _loose.renumber(old)


def _on_buffer(module: Any, name: str, tensor: Any) -> None:
    if torch.compiler.is_compiling() or id(module) not in _kept:
        return
    if tensor is None:
        _leave(module, name)
    else:
        _settle(tensor, module, name)


def _refresh(module: Any) -> None:
    present = dict(models.held(module, "_buffers"))
    for name, number in list(_kept[id(module)].items()):
        if name not in present or _torch.number_of(present[name]) != number:
            _leave(module, name)
    _settle_buffers(module)


# ---- parameters in no module that runs ---------------------------------------------------------------------------------


class _Loose:
    """Ordinals of parameters by place. A place uses each ordinal once.

    A leaf that requires a gradient may also be an input that each step creates. Once `_MANY` of them have died at a
    place, all later ones get the same ordinal there, so that the number of ids stays bounded in a long run.
    """

    _MANY = 256

    def __init__(self) -> None:
        self._ordinals: dict[int, dict[Hashable, int]] = {}  # by the tensor's number
        self._given: collections.Counter[Hashable] = collections.Counter()  # by place
        self._gone: collections.Counter[Hashable] = collections.Counter()
        lifetimes.tensors.listen(self._forget)

    def ordinal(self, tensor: Any, place: Hashable, recomputing: bool) -> int | None:
        known = self._ordinals.get(_torch.number_of(tensor), {}).get(place)
        if known is not None:
            return known
        if self._gone[place] >= self._MANY:
            if isinstance(tensor, torch.nn.Parameter):
                _number(tensor)
            return -1
        number = _number(tensor)
        if recomputing:  # a checkpoint detaches its inputs to recompute: it is the parameter of the first run
            return self._given[place] - 1 if self._given[place] else None
        self._given[place] += 1
        return self._ordinals.setdefault(number, {}).setdefault(place, self._given[place] - 1)

    def renumber(self, tensor: Any) -> None:
        number = _torch.number_of(tensor)
        if number:
            ordinals = self._ordinals.pop(number, None)
            number = _torch.assign_number(tensor, counts=False)
            if ordinals:
                self._ordinals[number] = ordinals

    def _forget(self, number: int) -> None:
        self._gone.update(self._ordinals.pop(number, {}).keys())


_loose = _Loose()
