"""nothing-loaded."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Container, Iterable, Mapping
from typing import Any

from amanda.toolkit import Place

from ..rule import Load, Rule

LEAST_SHARE = 0.5  # of the model's tensors


@dataclasses.dataclass
class _Unloaded:
    module: weakref.ref[Any]
    place: Place
    evidence: str


class NothingLoaded(Rule):
    """A checkpoint is loaded with ``strict=False``, and none of its names is one of the model, so that the model keeps its
    random weights. The names have a prefix, as "module." of `DataParallel` or "_orig_mod." of `torch.compile`, or lack one.
    Or the tensors are in an entry of the checkpoint, such as "state_dict".

    Half of the model's tensors or more must be in the checkpoint by the other name, and in the same shape. A model that is
    loaded later is no finding.
    """

    name = "nothing-loaded"
    sentence = "load_state_dict(strict=False) has loaded nothing"
    fix = (
        "strip the prefix, {name.removeprefix(PREFIX): value for name, value in state.items()}, or load the entry that has "
        "the tensors; strict=True raises an error where names differ"
    )
    bad = """
        state = nn.DataParallel(model).state_dict()
        model.load_state_dict(state, strict=False)
        F.cross_entropy(model(x), labels).backward()
    """
    good = """
        state = nn.DataParallel(model).state_dict()
        model.load_state_dict({name.removeprefix("module."): one for name, one in state.items()}, strict=False)
        model.load_state_dict({"2.weight": torch.ones(3, 8)}, strict=False)  # a part
        model.load_state_dict({"other.weight": torch.ones(5, 8)}, strict=False)  # of something else
        F.cross_entropy(model(x), labels).backward()
    """

    def begin(self) -> None:
        self._unloaded: list[_Unloaded] = []

    def after_load(self, load: Load) -> None:
        if not load.state or not load.unexpected.issuperset(load.state):
            self._forget(load.module)
            return
        evidence = _evidence(load.state, {name: tuple(one.shape) for name, one in _tensors(load.module).items()})
        if evidence:
            self._unloaded.append(_Unloaded(weakref.ref(load.module), load.place, evidence))

    def _forget(self, loaded: Any) -> None:
        """Modules that have got tensors after all, also as parts of others."""
        ids = set(map(id, _tensors(loaded).values()))
        living = ((one, one.module()) for one in self._unloaded)
        got = [one for one, module in living if module is not None and ids & set(map(id, _tensors(module).values()))]
        self._unloaded = [one for one in self._unloaded if one not in got]

    def at_end(self, ended_well: bool) -> None:
        for one in self._unloaded:
            self.found(one.place, one.evidence)
        self._unloaded.clear()


def _tensors(module: Any) -> dict[str, Any]:
    from torch.nn.parameter import is_lazy

    found = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    return {name: one for name, one in found.items() if not is_lazy(one)}


def _evidence(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    none = f"none of the {len(state)} names is one of the model"
    for key, entry in state.items():
        if isinstance(entry, Mapping) and _share(entry, shapes, "", "") >= LEAST_SHARE:
            return f"{none}: the tensors are in the entry {key!r}"
    for prefix, (name, rest) in _prefixes(state, shapes).items():
        if _share(state, shapes, prefix, "") >= LEAST_SHARE:
            return f"{none}: {name!r} is {rest!r} there, without {prefix!r}"
    for prefix, (name, rest) in _prefixes(shapes, state).items():
        if _share(state, shapes, "", prefix) >= LEAST_SHARE:
            return f"{none}: {rest!r} is {name!r} there, with {prefix!r}"
    return ""


def _prefixes(names: Iterable[Any], others: Container[str]) -> dict[str, tuple[str, str]]:
    """Those without which a name is one of the others: the first such name, and the other."""
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        for prefix, rest in _split(name):
            if prefix not in found and rest in others:
                found[prefix] = name, rest
    return found


def _split(name: Any) -> list[tuple[str, str]]:
    """ "a.b.weight": ("a.", "b.weight") and ("a.b.", "weight")."""
    parts = str(name).split(".")
    ends = range(1, len(parts))
    return [(".".join(parts[:end]) + ".", ".".join(parts[end:])) for end in ends]


def _share(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], surplus: str, lacking: str) -> float:
    """The share of the model's tensors that the state has in the same shape, by names with one prefix for another."""
    found = 0
    for name, value in state.items():
        if isinstance(name, str) and name.startswith(surplus):
            wanted = shapes.get(lacking + name.removeprefix(surplus))
            found += wanted is not None and getattr(value, "shape", None) == wanted
    return found / len(shapes) if shapes else 0.0
