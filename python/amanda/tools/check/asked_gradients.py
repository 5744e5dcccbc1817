"""AskedGradients: calls rules when a program of TensorFlow asks for gradients, while a scope is open."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext, Tool
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from .rule import Rule

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Differentiated


class AskedGradients(Tool):
    """A graph keeps what it was asked for: it is looked at when one of its backward operators first runs. In eager code,
    variables are followed to the operators that get their values."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__("check: asked gradients")
        self._rules = rules
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # calls, by graph
        self._values: dict[int, tuple[weakref.ref[Any], object]] = {}  # of eager code: the variable whose value it is
        self._uses: dict[object, dict[str, Place]] = {}  # the first of each type
        self._is_open = False
        self._stop: list[Callable[[], None]] = []
        self.calls = 0  #: that rules were shown
        self.add_inst_for_op(self._on_operator, False, True, ops="tensorflow::*", optional=True)
        self.add_inst_for_op(self._on_backward, backward=True, ops="tensorflow::*", optional=True)

    def open(self) -> None:
        self._is_open = True
        self._listen()

    def _listen(self) -> None:
        if self._is_open and not self._stop and self._rules and "amanda.drivers.tensorflow.port" in sys.modules:
            from amanda.toolkit.tensorflow import listen_to_differentiated, listen_to_reads

            self._stop = [listen_to_differentiated(self._on_call), listen_to_reads(self._on_read)]

    def close(self) -> None:
        self._is_open = False  # first: another thread may be analyzing an operator
        while self._stop:
            self._stop.pop()()
        self._values.clear()
        self._uses.clear()

    def reset(self) -> None:
        self._seen.clear()
        self._values.clear()
        self._uses.clear()
        self.calls = 0

    # ---- eager code -------------------------------------------------------------------------------------------------

    def _on_read(self, keys: Sequence[object], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if len(keys) == len(inputs) == len(outputs) == 1:  # else a function, or a lookup
            self._is_value(outputs[0], keys[0])

    def _is_value(self, tensor: Any, key: object) -> None:
        forget = functools.partial(self._forget, id(tensor))
        self._values[id(tensor)] = weakref.ref(tensor, forget), key

    def _forget(self, key: int, _: object) -> None:
        self._values.pop(key, None)

    def _on_operator(self, context: OpContext) -> None:
        from amanda.toolkit.tensorflow import MOVES, is_recorded

        self._listen()  # the program may import TensorFlow inside the scope
        if not shows_after_run(context) or not self._values or not is_recorded():
            return
        for operand in context.inputs:
            for one in operand if isinstance(operand, list | tuple) else (operand,):
                reference, key = self._values.get(id(one), (None, None))
                if reference is None or reference() is not one:
                    continue
                if context.op.__name__ not in MOVES:
                    self._uses.setdefault(key, {}).setdefault(context.op.__name__, Place.of(context))
                elif context.outputs and hasattr(context.outputs[0], "shape"):
                    self._is_value(context.outputs[0], key)

    # ---- gradients --------------------------------------------------------------------------------------------------

    def _on_backward(self, context: OpContext) -> None:
        from amanda.toolkit.tensorflow import differentiated_in

        if shows_after_run(context):
            return
        for symbol in (*context.grad_outputs, *context.grad_inputs):
            found = differentiated_in(symbol)
            if found:
                known = self._seen.get(symbol.graph, 0)
                self._seen[symbol.graph] = len(found)
                for call in found[known:]:
                    self._on_call(call)

    def _on_call(self, call: Differentiated) -> None:
        self.calls += 1
        for rule in self._rules:
            rule.after_gradients(call, self._uses)
