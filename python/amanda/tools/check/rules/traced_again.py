"""traced-again."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place
from amanda.toolkit.frames import is_library

from ..rule import Rule

_OF_MODELS = "variables"  # a function, or a graph of it, for each of several models
LOOKS = range(4, 13, 2)  # steps of all optimizers between which graphs are counted


class TracedAgain(Rule):
    """A `tf.function` is traced again in each step, which takes far longer than to run it, and all its graphs stay in
    memory. It is made anew in the loop, its tensors have another shape each time, or one of its arguments is a number of
    Python or another object that changes.

    It counts the graphs of functions at every second step of optimizers, from the fourth to the twelfth, and reports a
    function of the program that has got one each time. It says nothing of graphs that have other variables each time: they
    may be of several models.
    """

    name = "traced-again"
    sentence = "a function is traced again in each step"
    fix = (
        "make the function once, outside of the loop; tf.function(reduce_retracing=True) for other shapes; give numbers as "
        "tensors: tf.constant(step)"
    )
    is_of_tensorflow = True
    bad = """
        optimizer, weight = keras.optimizers.SGD(0.1), tf.Variable(1.0)

        @tf.function
        def gradient(factor):
            with tf.GradientTape() as tape:
                loss = factor * weight**2
            return tape.gradient(loss, weight)

        for i in range(16):
            optimizer.apply_gradients([(gradient(0.1 * i), weight)])
    """
    good = """
        optimizer, weight = keras.optimizers.SGD(0.1), tf.Variable(1.0)

        @tf.function
        def gradient(factor):
            with tf.GradientTape() as tape:
                loss = factor * weight**2
            return tape.gradient(loss, weight)

        for i in range(16):
            optimizer.apply_gradients([(gradient(tf.constant(0.1 * i)), weight)])
    """

    def begin(self) -> None:
        self._steps = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs
        self._new: list[collections.Counter[str]] = []  # by function, at each look but the first

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        self._steps += 1
        if self._steps not in LOOKS:
            return
        from amanda.toolkit.tensorflow import function_graphs

        graphs = function_graphs()
        if self._steps != LOOKS[0]:
            self._new.append(collections.Counter(name for name, one in graphs if one not in self._known))
        self._known.update(one for _, one in graphs)
        if self._steps == LOOKS[-1]:
            self._judge()

    def _judge(self) -> None:
        from amanda.toolkit.tensorflow import why_traced

        for name in set[str].intersection(*map(set, self._new)):
            found = why_traced(name)
            if found.why == _OF_MODELS:
                continue
            file = found.source.rpartition(":")[0]
            count = sum(each[name] for each in self._new)
            if file and not is_library(file):
                what = f"{name} has got {count} graphs in {LOOKS[-1] - LOOKS[0]} steps: {WHY[found.why]}"
                self.found(Place(None, "tf.function", "", found.source), what, count=count)


WHY = {
    "made": "it is made anew each time",
    "shapes": "its tensors have other shapes",
    "values": "an argument is a number or an object of Python, which is another one each time",
}
