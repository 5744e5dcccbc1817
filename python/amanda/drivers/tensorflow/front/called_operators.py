"""The operators that a Python function of TensorFlow calls, for the error about `ops=tf.nn.relu`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from amanda.drivers.tensorflow import port

_DEEPEST = 2  # calls between a public function and the generated one
_MOST = 3
_SIMILAR = 0.6


def called_by(value: Any) -> list[str]:
    """The operators that a function of TensorFlow calls, the most similar by name first. Empty if it is no such
    function, or calls none."""
    function = _function(value)
    if function is None or not function.__module__.startswith("tensorflow."):
        return []
    found = list(dict.fromkeys(_called(function, _DEEPEST)))
    name = function.__name__.replace("_", "").casefold()
    by_similarity = {op: difflib.SequenceMatcher(None, name, op.casefold()).ratio() for op in found}
    found.sort(key=lambda op: -by_similarity[op])
    return [op for op in found if by_similarity[op] >= _SIMILAR][:_MOST] or found[:_MOST]


def _called(function: FunctionType, deepest: int) -> Iterator[str]:
    if _is_generated(function.__module__):
        known = port.registered_operators()
        yield from [name for name in function.__code__.co_consts if isinstance(name, str) and name in known][:1]
        return
    if deepest == 0:
        return
    used = function.__code__.co_names
    mentioned = [function.__globals__.get(name) for name in used]
    for name in used:
        for place in [
            module for module in mentioned if isinstance(module, ModuleType) and _is_generated(module.__name__)
        ]:
            if (called := _function(getattr(place, name, None))) is not None:
                yield from _called(called, deepest)
    for other in mentioned:
        called = _function(other)
        if called is not None and called.__module__ == function.__module__:
            yield from _called(called, deepest - 1)


def _is_generated(module: str) -> bool:
    """True if it is one of the modules with a function for each operator."""
    return module.rpartition(".")[2].startswith("gen_")


def _function(value: Any) -> FunctionType | None:
    """The function that decorators have wrapped."""
    if not isinstance(value, FunctionType):
        return None
    innermost = inspect.unwrap(value)
    return innermost if isinstance(innermost, FunctionType) and isinstance(innermost.__module__, str) else None
