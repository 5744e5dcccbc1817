"""Layers of Keras that are not frozen, in layers that are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amanda.drivers.tensorflow import port


def unfrozen_inside(optimizer: Any) -> Iterator[tuple[str, list[str]]]:
    """The names of frozen layers, in models that an optimizer of Keras trains, and of layers with weights in each that are
    not frozen while others in it are."""
    trained = {id(one) for one in port.trained_by_keras(optimizer) or ()}
    seen: set[int] = set()
    for model in port.keras_layers():
        if not any(id(one) in trained for one in model.trainable_variables):
            continue
        for outer in port.layers_of(model):
            if id(outer) in seen or outer.trainable:
                continue
            seen.add(id(outer))
            inner = [one for one in port.layers_of(outer) if one is not outer and _has_own_weights(one)]
            open_ones = [str(one.name) for one in inner if one.trainable]
            if 0 < len(open_ones) < len(inner):
                yield str(outer.name), open_ones


def _has_own_weights(layer: Any) -> bool:
    """And no layers with weights in it."""
    return bool(layer.weights) and not any(one is not layer and one.weights for one in port.layers_of(layer))
