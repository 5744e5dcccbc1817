"""frozen-around."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place

from ..gradients import few
from ..rule import Rule

MOST = 4  # optimizers whose layers are looked at


class FrozenAround(Rule):
    """Layers are unfrozen in a model that is frozen itself: ``base.trainable = False``, and ``layer.trainable = True`` for
    its last layers. Keras trains no weight of a layer that has `trainable=False`, whatever the layers in it say.

    It looks at the layers in a model whose optimizer steps, at its first step: at those that are frozen and in which some
    layers with weights are frozen and others are not. So it says nothing of a layer that was frozen when it was made.
    """

    name = "frozen-around"
    sentence = "layers are unfrozen in a model that stays frozen"
    fix = "unfreeze the model, base.trainable = True, then freeze the first layers of it, and call compile() again"
    is_of_tensorflow = True
    bad = """
        base = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(4)])
        model = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(1)])
        base.trainable = False
        base.layers[-1].trainable = True
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], verbose=0)
    """
    good = """
        base = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(4)])
        model = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(1)])
        base.layers[0].trainable = False
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], verbose=0)
    """

    def begin(self) -> None:
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looked_at = 0

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        if optimizer in self._seen or self._looked_at == MOST:
            return
        from amanda.toolkit.tensorflow import unfrozen_inside

        self._seen.add(optimizer)
        self._looked_at += 1
        for outer, inner in unfrozen_inside(optimizer):
            what = "has" if len(inner) == 1 else "have"
            self.found(place(), f"{few(inner)} {what} trainable=True in {outer}, which has trainable=False", key=outer)
