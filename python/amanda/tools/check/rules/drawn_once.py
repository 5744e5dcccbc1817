"""drawn-once."""

from __future__ import annotations

import ast
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from ..rule import Rule
from ..shared_operators import WITH_OUTPUTS
from ..traced_code import own, traced

_MODULES = {"np.random", "numpy.random", "random"}
_DRAWS = {
    *("random", "uniform", "normal", "randint", "rand", "randn", "choice", "gauss", "normalvariate", "binomial"),
    *("permutation", "random_sample", "standard_normal", "beta", "exponential", "poisson", "sample"),
}


class DrawnOnce(Rule):
    """A function that TensorFlow traces draws random numbers with NumPy or Python's `random`. Python runs when the function
    is traced, and not in its later runs: all of them use the same numbers. `fit` traces the layers, losses and `train_step`
    of a model.

    It looks at the text of the program's functions that a graph was traced from, for calls such as ``np.random.normal`` and
    ``random.random``. It does not look at functions in them, as for `tf.numpy_function`, and does not know generators such
    as ``np.random.default_rng()``.
    """

    name = "drawn-once"
    sentence = "random numbers are drawn once, when the function is traced"
    fix = "draw with tf.random or keras.random, or draw outside of the function and give it the numbers"
    is_of_tensorflow = True
    ops = WITH_OUTPUTS
    with_outputs = True
    bad = """
        @tf.function
        def noisy(x):
            return x + np.random.normal(size=(1, 4))

        for _ in range(3):
            noisy(tf.constant(x, tf.float64))
    """
    good = """
        @tf.function
        def noisy(x):
            return x + tf.random.normal((1, 4), dtype=tf.float64)

        for _ in range(3):
            noisy(tf.constant(x + np.random.normal(size=(1, 4)), tf.float64))
    """

    def begin(self) -> None:
        self._seen: set[tuple[str, int]] = set()  # functions

    def look(self, context: OpContext) -> None:
        if shows_after_run(context):
            return
        for code in traced(context.outputs[0]):
            key = code.file, code.node.lineno
            if key in self._seen:
                continue
            self._seen.add(key)
            for node in own(code.node):
                if isinstance(node, ast.Call) and (drawn := _drawn(node)):
                    self.found(Place(None, drawn, "", f"{code.file}:{node.lineno}"), f"{code.name} is a graph")


def _drawn(call: Any) -> str:
    """ "np.random.normal"; "" of others."""
    name = ast.unparse(call.func)
    module, _, function = name.rpartition(".")
    return name if module in _MODULES and function in _DRAWS else ""
