"""drawn-once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from ..rule import Rule
from ..shared_operators import WITH_OUTPUTS
from ..traced_code import Code, globals_of, own, traced

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
    group = "of TensorFlow"
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
            nodes = [*own(code.node)]
            seeds = {id(each) for node in nodes if _is_stateful(node) for each in _seed(node)}
            for node in nodes:
                if isinstance(node, ast.Call) and id(node) not in seeds and (drawn := _drawn(node, code)):
                    self.found(Place(None, drawn, "", f"{code.file}:{node.lineno}"), f"{code.name} is a graph")


def _is_stateful(node: Any) -> bool:
    """A call of `tf.random` that gives other numbers in each run, also with a seed that was drawn once."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return name.startswith("tf.random.") and "stateless" not in name


def _seed(call: Any) -> Iterator[Any]:
    for one in call.keywords:
        if one.arg == "seed":
            yield from ast.walk(one.value)


def _drawn(call: Any, code: Code) -> str:
    """ "np.random.normal"; "" of others."""
    name = ast.unparse(call.func)
    module, _, function = name.rpartition(".")
    if module not in _MODULES or function not in _DRAWS:
        return ""
    first, _, second = module.partition(".")
    found = globals_of(code).get(first)
    found = getattr(found, second, None) if second else found
    return name if getattr(found, "__name__", "random") in ("random", "numpy.random") else ""  # and not keras.random
