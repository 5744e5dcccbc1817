"""Names of modules and parameters that mean the same in every process: what ids are made of.

Nothing here keeps a model alive, and no tensor of a module carries a weak reference: `torch.utils.swap_tensors` would
refuse it. What dies is told to the driver, whose tables find things by address.
"""

from __future__ import annotations

import collections
import gc
import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

_on_death: Callable[[], None] | None = None  # the driver's; see `tell_deaths`


class Name(NamedTuple):
    """A module's place in its model."""

    model: str
    name: str
    has_state: bool  # parameters or buffers, of its own or of modules in it


# Of every module met.
_names: Any = WeakIdKeyDictionary()
_models_seen: collections.Counter[str] = collections.Counter()
_watched: dict[int, weakref.ref[Any]] = {}


def tell_deaths(on_death: Callable[[], None]) -> None:
    """Lets `on_death` be called whenever something has died that an address may stand for."""
    global _on_death
    _on_death = on_death


def watch(thing: Any, table: MutableMapping[int, Any] | None = None) -> None:
    """Tells the driver when `thing`, a module, a code object or a loose tensor, dies; takes its address out of `table`."""
    key = id(thing)
    if key in _watched:
        return

    def died(_: object) -> None:
        _watched.pop(key, None)
        _loose.forget(key)
        if table is not None:
            table.pop(key, None)
        if _on_death is not None:
            _on_death()

    _watched[key] = weakref.ref(thing, died)


def name_of(module: Any) -> Name:
    """The model that a module belongs to and its name there.

    A model is the outermost module in which its parts were first met: its class, its parameters' names and shapes, and
    an ordinal by first run among equals. Without any state it has no ordinal: such modules are often made anew.
    """
    known = _names.get(module)
    if known is None:
        known = _learn(module)
    return known  # type: ignore[no-any-return]


def learn(outermost: Any) -> None:
    """Makes the modules of a model known, before its parts are met by themselves."""
    if outermost not in _names:
        _learn(outermost)


def _has_state(module: Any) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _learn(outermost: Any) -> Name:
    cls = type(outermost)
    shapes = [(name, _shape(parameter)) for name, parameter in outermost.named_parameters()]
    digest = hashlib.blake2b(repr((cls.__module__, cls.__qualname__, shapes)).encode(), digest_size=8).hexdigest()
    model = f"{cls.__qualname__}-{digest}"
    if _has_state(outermost):
        _models_seen[model] += 1
        model += f"-{_models_seen[model]}"
    for name, module in outermost.named_modules():
        if module not in _names:  # what was met in another model first stays there
            _names[module] = Name(model, name, _has_state(module))
            watch(module)
    return _names[outermost]  # type: ignore[no-any-return]


def _shape(parameter: Any) -> tuple[int, ...] | None:
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


def operand(tensor: Any, modules: Iterable[Any], place: Hashable, recomputing: bool) -> tuple[object, ...] | None:
    """What a parameter is called at a place: by its name in one of the `modules` that run there, innermost first.

    Elsewhere (loops of an optimizer, loose weights) by the order in which parameters were first met at this place.
    None: it was no parameter in the run that is recomputed.
    """
    if tensor is None:  # without a Python object: made and kept by C++
        return ("unknown",)
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter is tensor:
                return (*name_of(module)[:2], name)
    ordinal = _loose.ordinal(tensor, place, recomputing)
    return None if ordinal is None else ("loose", ordinal)


class _Loose:
    """Ordinals of parameters by place. No ordinal of a place is given twice.

    A leaf that requires a gradient may also be an input, made anew in each step. Where `_MANY` of them have come and
    gone it is taken for that, and all later ones count alike: ids are bounded by the program, not by its running time.
    """

    _MANY = 256

    def __init__(self) -> None:
        self._ordinals: dict[int, dict[Hashable, int]] = {}  # by the tensor's address, which is watched
        self._owners: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._given: collections.Counter[Hashable] = collections.Counter()  # by place
        self._gone: collections.Counter[Hashable] = collections.Counter()

    def ordinal(self, tensor: Any, place: Hashable, recomputing: bool) -> int | None:
        key = id(tensor)
        if key in self._owners and not self._still_owned(tensor):
            self.forget(key)  # another one at its address
        known = self._ordinals.get(key, {}).get(place)
        if known is not None:
            return known
        if self._gone[place] >= self._MANY:
            return -1
        if recomputing:  # a checkpoint detaches its inputs to recompute: this stands for the one of the first run
            return self._given[place] - 1 if self._given[place] else None
        if key not in self._ordinals:
            self._watch_life_of(tensor)
        self._given[place] += 1
        return self._ordinals.setdefault(key, {}).setdefault(place, self._given[place] - 1)

    def forget(self, key: int) -> None:
        self._gone.update(self._ordinals.pop(key, ()))
        self._owners.pop(key, None)
        for owned in [owned for owned, (owner, _) in self._owners.items() if owner() is None]:
            del self._owners[owned]
            self._gone.update(self._ordinals.pop(owned, ()))

    def _still_owned(self, tensor: Any) -> bool:
        owner, name = self._owners[id(tensor)]
        module = owner()
        return module is not None and module._parameters.get(name) is tensor

    def _watch_life_of(self, tensor: Any) -> None:
        # A module's parameter lives as its module does. The scan of all modules costs tens of milliseconds, once for the
        # parameters that a model's optimizer steps through; only a tensor in no module may carry a weak reference.
        if isinstance(tensor, torch.nn.Parameter) and id(tensor) not in self._owners:
            self._find_owners()
        if id(tensor) in self._owners:
            module = self._owners[id(tensor)][0]()
            if module is not None:
                watch(module)
                return
        watch(tensor)

    def _find_owners(self) -> None:
        for module in [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]:
            for name, parameter in module.__dict__.get("_parameters", {}).items():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), (weakref.ref(module), name))


_loose = _Loose()


def names_in(modules: Sequence[Any]) -> str:
    """The innermost module's name in its model; "" where no module runs."""
    return name_of(modules[0]).name if modules else ""
