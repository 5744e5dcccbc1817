"""Small models for tests of GradientCuts, and steps that differentiate them."""

from __future__ import annotations

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.cuts import GradientCuts

both = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))


class Model(tf.Module):
    def __init__(self):
        self.a = tf.Variable(np.eye(3, dtype=np.float32), name="a")
        self.b = tf.Variable(np.ones((3, 2), np.float32), name="b")


def cuts_of(step, wrap=tf.function, times=2):
    cuts, wrapped = GradientCuts(), wrap(step)
    with amanda.apply(cuts):
        for _ in range(times):
            wrapped()
    return cuts


def differentiated(function, m, sources=None, **options):
    """The gradients that came of a loss; the program goes on with those."""

    def step():
        with tf.GradientTape(**options) as tape:
            loss = tf.reduce_sum(function(m))
        return [one for one in tape.gradient(loss, sources or [m.a, m.b]) if one is not None]

    return step
