"""Masks of operators in graphs, to be written into TensorFlow's variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from amanda import Error

from .masked import Use


def check(model: object) -> None:
    """
    Raises:
        TypeError: it has no variables.
    """
    if not hasattr(model, "variables") and not _are_variables(model):
        raise TypeError(
            f"[pruning] apply_to takes the model that was pruned, or a list of its variables; got {model!r}"
        )


def write(model: Any, uses: Iterable[Use]) -> None:
    """Multiplies variables of the model by their masks.

    Raises:
        amanda.Error: these masks cannot be written into this model; the message says which, and what would work.
    """
    own = {id(getattr(each, "value", None)) for each in _variables_of(model)} | set(map(id, _variables_of(model)))
    masks: dict[int, tuple[Any, Any, Use]] = {}
    uses = list(uses)
    if not any(use.mask is not None for use in uses):
        raise Error("[pruning] nothing has been pruned; run the model in a scope of the tool first")
    pruned = {use.weight.value.key for use in uses if use.mask is not None and use.weight.value is not None}
    for use in uses:
        if use.mask is None and (use.weight.value is None or use.weight.value.key not in pruned):
            continue
        variable = _variable_of(use)
        if id(variable) not in own:
            raise Error(
                f"[pruning] {use.place} was pruned, and its weight {use.weight.name!r} is not a variable of what "
                "was given; pass the model that ran in the scope, or a list of its variables"
            )
        shape = tuple(variable.shape)
        mask = np.ones(shape) if use.mask is None else np.reshape(use.mask, shape)
        _, other, first = masks.setdefault(id(variable), (variable, mask, use))
        if not np.array_equal(mask, other):
            raise Error(
                f"[pruning] {use.weight.name!r} is the weight of {first.place} and of {use.place}, "
                "with different masks; leave both dense with where=, or give each a weight of its own"
            )
    for variable, mask, _ in masks.values():
        variable.assign(variable * mask.astype(variable.dtype.as_numpy_dtype))


def _variable_of(use: Use) -> Any:
    if use.weight.value is None or not use.weight.value.in_order:
        raise Error(
            f"[pruning] the weight of {use.place} is computed, so no mask can be written into it; leave the "
            "operator dense with where="
        )
    variable = use.weight.variable()
    if variable is None:
        raise Error(
            f"[pruning] the variable {use.weight.name!r} is one of a Session's graph, or no longer exists; masks can "
            "be written into variables that exist outside of graphs"
        )
    return variable


def _variables_of(model: Any) -> list[Any]:
    return list(model if _are_variables(model) else model.variables)


def _are_variables(model: object) -> bool:
    return isinstance(model, list | tuple) and all(hasattr(each, "assign") for each in model)
