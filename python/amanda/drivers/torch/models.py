"""Names of modules that are the same in every process: ids contain them. Nothing here keeps a model alive.

Modules, parameters and classes belong to the program: they are compared by identity, and no method that a class may
override is called.
"""

from __future__ import annotations

import collections
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

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


def register_model(parts: Sequence[tuple[str, Any]]) -> None:
    """Names the modules of a model, unless they have names. `parts`: as `named_parts` has them, the outermost first.

    A model is the outermost module in which its submodules first ran. It is named by its class, its parameters' names
    and shapes, and an ordinal among equal models, in the order of first runs. Without any state it has no ordinal: such
    modules are often recreated.
    """
    outermost = parts[0][1]
    if id(outermost) in names:
        return
    cls = type(outermost)
    shapes = [(name, _shape(parameter)) for name, parameter in _named_parameters(parts)]
    described = repr((frames.name_of_module(cls.__module__), cls.__qualname__, shapes))
    model = f"{cls.__qualname__}-{hashlib.blake2b(described.encode(), digest_size=8).hexdigest()}"
    with_state = _with_state(parts)
    has_state = bool(with_state)
    if not has_state and len(parts) == 1:
        # Only its class identifies it: another module of that class, later at its address, has the same name.
        lifetimes.watch(cls)
        lifetimes.watch(outermost, plain=True)
        names[id(outermost)] = _name(model, "", has_state=False)
        return
    for _, module in parts:
        lifetimes.watch(module)
    if has_state:
        _models_seen[model] += 1
        model += f"-{_models_seen[model]}"
        _outermost[id(outermost)] = weakref.ref(outermost)
    # A module that ran in another model first stays there. The outermost one comes last: once it has a name, all have.
    named = {
        id(module): _name(model, name, id(module) in with_state) for name, module in parts if id(module) not in names
    }
    names.update(named)


def _name(model: str, name: str, has_state: bool) -> Name:
    return Name(model, name, has_state, repr((model, name)))


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
    parts: dict[int, tuple[str, Any]] = {}
    _add_parts(module, "", parts, port.without_compiler if port.may_be_compiled() else None)
    return list(parts.values())


def _add_parts(module: Any, name: str, parts: dict[int, tuple[str, Any]], unwrap: Callable[[Any], Any] | None) -> None:
    if unwrap is not None:
        module = unwrap(module)
    if id(module) in parts:
        return
    parts[id(module)] = name, module
    for part_name, part in held(module, "_modules"):
        if issubclass(type(part), torch.nn.Module):
            _add_parts(part, f"{name}.{part_name}" if name else part_name, parts, unwrap)


def held(module: Any, kind: str) -> list[tuple[str, Any]]:
    """Names and values of a module's own `_parameters`, `_buffers` or `_modules` that are not None."""
    items = module.__dict__.get(kind)
    if not items:
        return []
    return [item for item in list(items.items()) if item[1] is not None]  # another thread may add some


def _named_parameters(parts: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for path, module in parts:
        for name, parameter in held(module, "_parameters"):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter


def _with_state(parts: Sequence[tuple[str, Any]]) -> set[int]:
    """The addresses of those that hold parameters or buffers, or have modules in them that do."""
    found: set[int] = set()
    for _, module in reversed(parts):  # those in a module come after it, unless another one holds them, too
        if _holds_state(module):
            found.add(id(module))
        elif inner := held(module, "_modules"):
            has_state = any(id(part) in found for _, part in inner)
            if has_state or any(_holds_state(part) for _, part in named_parts(module)):
                found.add(id(module))
    return found


def _holds_state(module: Any) -> bool:
    return bool(held(module, "_parameters") or held(module, "_buffers"))


def _shape(parameter: Any) -> tuple[int, ...] | None:
    return None if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


def _forget(key: int) -> None:
    names.pop(key, None)
    _outermost.pop(key, None)


lifetimes.objects.listen(_forget)
