"""What parameters and buffers are called where operators use them, and the numbers by which the driver finds them.

A tensor keeps its number until it dies or may have been exchanged; then what is found at its address is resolved anew. A
tensor in no module carries a weak reference. A tensor of a module carries none, `torch.utils.swap_tensors` would refuse
it; there the module tells: by torch's registration hooks, after `Module._apply`, when it dies.
"""

from __future__ import annotations

import collections
import functools
import gc
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from amanda import _deaths, _models, _port, _torch


class _Home(NamedTuple):
    """A module that keeps a tensor, in its `_parameters` or `_buffers`, and under which name."""

    module: weakref.ref[Any]
    kind: str
    name: str

    def tensor(self) -> Any:
        module = self.module()
        return None if module is None else module.__dict__.get(self.kind, {}).get(self.name)


_numbered: dict[int, bool] = {}  # by the tensor's address: does it count whatever its type says?
_homes: dict[int, list[_Home]] = {}  # by the tensor's address
_kept: dict[int, dict[str, int]] = {}  # by the module's address and the name: the tensor's address
_met: Any = _port.WeakIdKeyDictionary()  # the modules whose buffers count


def operand(
    tensor: Any, counts: bool, modules: Sequence[Any], place: Hashable, recomputing: bool
) -> tuple[object, ...] | None:
    """What an operand is called at a place; None: it does not count there.

    A buffer of a known model has its name in the model. A parameter has its name in one of the `modules` that run, tried
    from the innermost on. Elsewhere (loops of an optimizer, loose weights) parameters count by the order in which they
    first came to the place.

    Arguments:
        tensor: its Python object; None: made and kept by C++.
        counts: is it a parameter, or a leaf that requires a gradient?
        modules: that run, innermost first.
        place: of the operator.
        recomputing: is a checkpointed region recomputed?
    """
    if tensor is None:
        return ("unknown",)
    _check(tensor)
    for home in _homes.get(id(tensor), ()):
        module = home.module()
        if home.kind == "_buffers" and module in _met:
            model, path, _ = _models.name_of(module)
            return (model, _join(path, home.name))
    if not counts:
        return None
    for module in modules:
        for path, part in module.named_modules():
            for name, parameter in part._parameters.items():
                if parameter is tensor:
                    _follow(tensor, part, name)
                    return (*_models.name_of(module)[:2], _join(path, name))
    ordinal = _loose.ordinal(tensor, place, recomputing)
    return None if ordinal is None else ("loose", ordinal)


def meet(outermost: Any) -> None:
    """Lets the buffers of a known model count as parameters from now on."""
    if outermost not in _met:
        for module in filter(_models.is_known, outermost.modules()):
            _met[module] = None
            _number_buffers(module)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ---- numbers ----------------------------------------------------------------------------------------------------------


def _number(tensor: Any, counts: bool = False) -> None:
    if _numbered.get(id(tensor)) not in (counts, True):
        _numbered[id(tensor)] = counts
        _torch.give_number(tensor, counts)


def _forget(key: int) -> None:
    if _numbered.pop(key, None) is not None:
        _torch.take_number(key)
    for home in _homes.pop(key, ()):
        _kept.get(id(home.module()), {}).pop(home.name, None)
    _loose.forget(key)


def _check(tensor: Any) -> None:
    """Forgets another one that was at the tensor's address."""
    if id(tensor) in _numbered or id(tensor) in _homes:
        _forget_if_gone(id(tensor))


def _forget_if_gone(key: int) -> None:
    if not _deaths.watched(key) and all(id(home.tensor()) != key for home in _homes.get(key, ())):
        _forget(key)


def _follow(tensor: Any, module: Any, name: str) -> None:
    """Numbers a tensor that the module keeps as a parameter, perhaps for one call only (functional_call)."""
    if isinstance(tensor, torch.nn.Parameter):
        _settle(tensor, module, "_parameters", name)
    else:
        _deaths.watch(tensor, _forget)
    _number(tensor)


def _number_buffers(module: Any) -> None:
    for name, buffer in module._buffers.items():
        if buffer is not None:
            _settle(buffer, module, "_buffers", name)
            _number(buffer, counts=True)


# ---- modules and what they keep ---------------------------------------------------------------------------------------


def _settle(tensor: Any, module: Any, kind: str, name: str) -> None:
    _hear_of_exchanges()
    _deaths.watch(module, _leave_all)
    kept = _kept.setdefault(id(module), {})
    if kept.get(name) != id(tensor):
        _leave(module, name)
        kept[name] = id(tensor)
        _homes.setdefault(id(tensor), []).append(_Home(weakref.ref(module), kind, name))


def _leave(module: Any, name: str) -> None:
    key = _kept.get(id(module), {}).pop(name, None)
    if key is not None:
        _homes[key] = [home for home in _homes[key] if (home.module(), home.name) != (module, name)]
        _forget_if_gone(key)


def _leave_all(module_key: int) -> None:
    for key in _kept.pop(module_key, {}).values():
        _homes[key] = [home for home in _homes.get(key, ()) if home.module() is not None]
        _forget_if_gone(key)


@functools.cache
def _hear_of_exchanges() -> None:
    torch_module.register_module_parameter_registration_hook(_on_registration)
    torch_module.register_module_buffer_registration_hook(_on_registration)
    convert = torch.nn.Module._apply

    @functools.wraps(convert)
    def convert_and_tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        converted = convert(self, *args, **kwargs)
        _refresh(self)
        return converted

    torch.nn.Module._apply = convert_and_tell


def _on_registration(module: Any, name: str, tensor: Any) -> None:
    if torch.compiler.is_compiling():  # traced: nothing is registered yet
        return
    _leave(module, name)
    if tensor is not None:
        _check(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            _settle(tensor, module, "_parameters", name)  # now: a model that is built in a scope needs no scan
        elif module in _met:
            _settle(tensor, module, "_buffers", name)
            _number(tensor, counts=True)


def _refresh(module: Any) -> None:
    for name, key in list(_kept.get(id(module), {}).items()):
        if all(id(kept.get(name)) != key for kept in (module._parameters, module._buffers)):
            _leave(module, name)
    if module in _met:
        _number_buffers(module)


# ---- parameters in no module that runs ---------------------------------------------------------------------------------


class _Loose:
    """Ordinals of parameters by place. No ordinal of a place is given twice.

    A leaf that requires a gradient may also be an input, made anew in each step. Where `_MANY` of them have come and
    gone it is taken for that, and all later ones count alike: ids are bounded by the program, not by its running time.
    """

    _MANY = 256

    def __init__(self) -> None:
        self._ordinals: dict[int, dict[Hashable, int]] = {}  # by the tensor's address
        self._given: collections.Counter[Hashable] = collections.Counter()  # by place
        self._gone: collections.Counter[Hashable] = collections.Counter()

    def ordinal(self, tensor: Any, place: Hashable, recomputing: bool) -> int | None:
        known = self._ordinals.get(id(tensor), {}).get(place)
        if known is not None:
            return known
        if self._gone[place] >= self._MANY:
            if isinstance(tensor, torch.nn.Parameter):
                self._follow(tensor)
            return -1
        self._follow(tensor)
        if recomputing:  # a checkpoint detaches its inputs to recompute: this stands for the one of the first run
            return self._given[place] - 1 if self._given[place] else None
        self._given[place] += 1
        return self._ordinals.setdefault(id(tensor), {}).setdefault(place, self._given[place] - 1)

    def forget(self, key: int) -> None:
        self._gone.update(self._ordinals.pop(key, {}).keys())

    def _follow(self, tensor: Any) -> None:
        # The scan of all modules costs tens of milliseconds: for parameters registered before we heard of it, and those
        # of copied and unpickled modules.
        if isinstance(tensor, torch.nn.Parameter) and id(tensor) not in _homes and not _deaths.watched(id(tensor)):
            for module in [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]:
                for name, parameter in module.__dict__.get("_parameters", {}).items():
                    if parameter is not None:
                        _settle(parameter, module, "_parameters", name)
        if id(tensor) not in _homes:
            _deaths.watch(tensor, _forget)
        _number(tensor)


_loose = _Loose()
