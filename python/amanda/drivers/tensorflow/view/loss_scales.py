"""The scales of losses in Keras: what divides gradients by one, and whether the program has multiplied the loss by it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from amanda.core import switches
from amanda.drivers.tensorflow import port

_scaled: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers whose `scale_loss` was called
_outer: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # by the optimizer that steps


class LossScale(NamedTuple):
    """By what an optimizer divides the gradients that it gets."""

    owner: str  # the class of the optimizer that divides
    scale: float  # now
    is_used: bool  # the program has called `scale_loss` of it


def watch() -> None:
    """Notes calls from now on: a function that makes them may be traced once."""
    for patchable in port.keras_scalings():
        patchable.replace(functools.partialmethod(_scale, patchable.original))
    unscaling = port.keras_unscaling()
    if unscaling.owner is not None:
        unscaling.replace(functools.partialmethod(_apply, unscaling.original))


def loss_scale_of(optimizer: Any) -> LossScale | None:
    """None if it divides by nothing. `optimizer`: one of Keras that steps, also inside another one."""
    reference = _outer.get(optimizer)
    outer = None if reference is None else reference()
    owner, scale = (
        (optimizer, getattr(optimizer, "loss_scale_factor", None)) if outer is None else (outer, outer.dynamic_scale)
    )
    if scale is None:
        return None
    with port.eagerly(), switches.own_work():
        return LossScale(type(owner).__name__, float(scale), owner in _scaled)


def _scale(self: Any, original: Callable[..., Any], loss: Any) -> Any:
    """In place of `scale_loss`."""
    _scaled.add(self)
    return original(self, loss)


def _apply(self: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of `LossScaleOptimizer.apply`."""
    _outer[self.inner_optimizer] = weakref.ref(self)
    return original(self, *args, **kwargs)
