"""changed-after-trace."""

from __future__ import annotations

import ast
import dataclasses
import functools
import numbers
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from ..rule import Rule
from ..shared_operators import WITH_OUTPUTS
from ..traced_code import Code, globals_of, locals_of, own, traced

LEAST = 2  # steps with another value than the one that was traced
MOST = 16  # changes of values
_OF_KERAS = {"trainable", "built", "training"}


class ChangedAfterTrace(Rule):
    """A number of Python changes while the model is trained, and a function that TensorFlow has traced goes on with the
    value that it had then. An example is the weight of a loss that a callback raises, as for the KL divergence of a
    variational autoencoder: ``self.beta`` in `call`, ``model.beta = 0.5`` in the callback.

    It looks at functions of the program that a graph was traced from, and at the numbers that they read: at global names,
    and at attributes of ``self``, of layers and models of Keras. It reports one that has got another value, if no function
    was traced after that, and two steps or more have run. It looks at 16 changes of values.
    """

    name = "changed-after-trace"
    sentence = "a number changes, and the traced function goes on with the old one"
    fix = "make it a variable, self.beta = keras.Variable(0.0, trainable=False), and call self.beta.assign(value)"
    is_of_tensorflow = True
    group = "of TensorFlow"
    ops = WITH_OUTPUTS
    with_outputs = True
    bad = """
        class Scaled(keras.layers.Layer):
            factor = 1.0

            def call(self, x):
                return self.factor * x

        model = keras.Sequential([Scaled(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        for epoch in range(3):
            model.layers[0].factor = 1.0 + epoch
            model.fit(x, x[:, :1], batch_size=8, verbose=0)
    """
    good = """
        class Scaled(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.factor, self.epoch = keras.Variable(1.0, trainable=False), 0

            def call(self, x):
                return self.factor * x

        model = keras.Sequential([Scaled(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        for epoch in range(3):
            model.layers[0].epoch = epoch
            model.layers[0].factor.assign(1.0 + epoch)
            model.fit(x, x[:, :1], batch_size=8, verbose=0)
    """

    def begin(self) -> None:
        self._seen: dict[tuple[str, int], list[_Read]] = {}  # by function
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._functions: set[str] = set()  # whose graphs the numbers are in
        self._searches = 0

    def look(self, context: OpContext) -> None:
        if shows_after_run(context):
            return
        from amanda.toolkit.tensorflow import function_of

        for code in traced(context.outputs[0]):
            key = code.file, code.node.lineno
            if key not in self._seen:
                self._seen[key] = [*_reads(code)]
                self._functions.add(function_of(context.outputs[0]))
                self._is_traced_again()

    def _is_traced_again(self) -> bool:
        """One of these functions was traced since the last call."""
        from amanda.toolkit.tensorflow import function_graphs

        new = [one for name, one in function_graphs() if name in self._functions and one not in self._graphs]
        self._graphs.update(new)
        return bool(new)

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        for reads in self._seen.values():
            for one in reads:
                now = one.value()
                if now is None or now == one.traced:
                    continue
                if now != one.last and self._searches < MOST:
                    one.last = now
                    self._searches += 1
                    if self._is_traced_again():
                        one.traced = now
                one.steps += now == one.last and now != one.traced

    def at_end(self, ended_well: bool) -> None:
        for reads in self._seen.values():
            for one in reads:
                if one.steps >= LEAST:
                    what = f"it has become {one.last:g}, and {one.function} was not traced again"
                    self.found(Place(None, one.name, "", one.source), what, count=one.steps)
        self.begin()


@dataclasses.dataclass
class _Read:
    """A number that a function reads."""

    name: str
    function: str
    source: str
    value: Callable[[], Any]  # None if it is no number, or gone
    traced: Any = None
    last: Any = None
    steps: int = 0


def _reads(code: Code) -> list[_Read]:
    found: dict[str, _Read] = {}
    bound, known = locals_of(code), globals_of(code)
    owners: list[Any] | None = None
    for node in own(code.node):
        source = f"{code.file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "self":
            if node.attr.startswith("_") or node.attr in _OF_KERAS:
                continue
            owners = _owners(code) if owners is None else owners
            for owner in owners:
                name = f"self.{node.attr}"
                value = _of_attribute(weakref.ref(owner), node.attr)
                found.setdefault(f"{name} {id(owner)}", _Read(name, code.name, source, value))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            value = functools.partial(_of_global, known, node.id)
            found.setdefault(node.id, _Read(node.id, code.name, source, value))
    kept = []
    for one in found.values():
        one.traced = one.value()
        if one.traced is not None:
            kept.append(one)
    return kept


def _owners(code: Code) -> list[Any]:
    """The layers of Keras that have the function as a method."""
    from amanda.toolkit.tensorflow import layers_with

    return layers_with(code.file, code.name, code.node.lineno)


def _of_attribute(owner: weakref.ref[Any], name: str) -> Callable[[], Any]:
    def value() -> Any:
        layer = owner()
        return (
            None
            if layer is None
            else _number(getattr(layer, "__dict__", {}).get(name, getattr(type(layer), name, None)))
        )

    return value


def _of_global(known: Mapping[str, Any], name: str) -> Any:
    return _number(known.get(name))


def _number(value: Any) -> Any:
    return value if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
