"""The rules: a class in each file of this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from ..rule import Rule


def _rules() -> Iterator[type[Rule]]:
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        yield from (
            one
            for one in members
            if isinstance(one, type) and issubclass(one, Rule) and one.__module__.endswith(f".{module.name}")
        )


RULES: tuple[type[Rule], ...] = tuple(sorted(_rules(), key=lambda rule: (rule.is_advice, rule.name)))
"""By name; those that only advise come last."""
