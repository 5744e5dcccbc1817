"""Operator names in `ops=`: finds names that no driver knows, and suggests similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from amanda.core import near_names
from amanda.driver import protocol, registry

_GLOB = re.compile(r"[*?\[\\]")
_NAME = re.compile(r"[\w.:]+")
_BACKWARD = re.compile(r"_?Backward\d*$")


class _Known:
    """The operators of these drivers in every spelling, or None if a driver cannot list its operators. Those of the driver
    that is registered first come first: of equal suggestions, its own is given."""

    def __init__(self, of: list[protocol.Driver]) -> None:
        self.drivers = of
        self.spellings: dict[str, None] | None = {}
        for driver in of:
            operators = driver.operators()
            if operators is None:
                self.spellings = None
                return
            own: set[str] = set()
            for operator in operators:
                qualified, _, overload = operator.partition(".")
                name = qualified.partition("::")[2]
                own |= {qualified, name, f"{qualified}.{overload}", f"{name}.{overload}"}
            self.spellings |= dict.fromkeys(sorted(own))


_known: _Known | None = None


def complaint(pattern: str) -> str | None:
    """The reason why no operator can match a pattern; None if one can, or if that is not certain.

    It is certain only for names without wildcards. In a namespace to which programs add operators, a matching one may
    be registered later, or by a driver without a `Driver`.
    """
    loaded = list(registry.loaded())
    if not pattern or _GLOB.search(pattern) or not loaded:
        return None
    if any(driver.has_operator(pattern) for driver in loaded):  # listing thousands of operators takes milliseconds
        return None
    namespace, qualified, _ = pattern.partition("::")
    if qualified and not any(namespace in driver.closed_namespaces for driver in loaded):
        return None
    spellings = _spellings(pattern)
    if spellings is None or pattern in spellings or any(driver.could_name(pattern) for driver in registry.waiting()):
        return None
    if not _NAME.fullmatch(pattern):
        return f"no operator {pattern!r}; ops= takes names, shell globs, and lists of these"
    name = _BACKWARD.sub("", pattern)
    meant = _similar(name, spellings) or _of_a_path(name, spellings)
    if _BACKWARD.search(pattern):
        example = f": ops={meant[0]!r}, backward=True" if meant else ", and backward=True"
        return f"no operator {pattern!r}; ask for backward operators by the name of the forward operator{example}"
    if meant:
        return f"no operator {pattern!r}; did you mean {' or '.join(map(repr, meant))}?"
    if qualified:
        return f"no operator {pattern!r}"
    example = f"{loaded[0].namespace_of_new}::{pattern}"
    return (
        f"no operator {pattern!r}; those of a module are selected with modules={pattern!r}; if it is registered later, "
        f"give its namespace as well: {example!r}"
    )


def names_for(value: object) -> list[str]:
    """Names of operators that a value may mean which is not a name, such as a function or a class; at most three."""
    for driver in registry.loaded():
        if named := driver.operators_named_by(value):
            return list(named)[:3]
    name = getattr(value, "__name__", type(value).__name__)
    return _similar(name, _spellings(name) or {}) if isinstance(name, str) and callable(value) else []


def _similar(pattern: str, spellings: Iterable[str]) -> list[str]:
    """At most three similar names; one, if only the case differs."""
    kind = "::" in pattern, "." in pattern
    of_kind = [name for name in spellings if ("::" in name, "." in name) == kind]
    return near_names.near(pattern, of_kind, most=3, cutoff=0.8)


def _of_a_path(pattern: str, spellings: Iterable[str]) -> list[str]:
    """The operator that the path of a function or class means: "F.relu", "torch.nn.ReLU", "torch.ops.aten.relu.default"."""
    if "::" in pattern or "." not in pattern:
        return []
    found = [near_names.near(name, list(spellings), cutoff=1.0) for name in reversed(pattern.split("."))]
    return next((names for names in found if names and "." not in names[0]), [])


def _spellings(pattern: str) -> dict[str, None] | None:
    """All spellings of all operators; listed again if `pattern` is not among them, because it may have been added."""
    global _known
    loaded = list(registry.loaded())
    known = _known
    if known is None or known.drivers != loaded or pattern not in (known.spellings or ()):
        known = _known = _Known(loaded)
    return known.spellings
