"""The operators behind others in a v1 graph, which are copied with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import tensorflow as tf

from amanda.drivers.tensorflow.view import op_types
from amanda.drivers.tensorflow.view.order import Loops


class Behind:
    """The operators whose copies would draw other random numbers, or have another state: as `Changed` finds them for a
    call that is copied, for all calls at once."""

    def __init__(
        self, operators: Sequence[tf.Operation], fed: Collection[int], keeps_state: Callable[[tf.Operation], bool]
    ) -> None:
        """`fed`: ids of tensors."""
        self._operators, self._fed = frozenset(operators), fed
        loops = Loops(operators)
        drawing = [op for op in operators if op_types.draws(op)]
        # One that draws is not copied, unless it is in a loop, or its original needs a copied operator that has effects.
        copied = [op for op in operators if keeps_state(op)] + [op for op in drawing if loops.around(op)]
        copied += [op for op in self._before(drawing) if op_types.has_effects(op)]
        self._found = self._before(copied, loops)

    def draws(self, op: tf.Operation) -> bool:
        """True if such an operator is copied with this one."""
        return op in self._found

    def _before(self, work: Iterable[tf.Operation], loops: Loops | None = None) -> set[tf.Operation]:
        """These operators and those that they need; a loop is copied as a whole."""
        found: set[tf.Operation] = set()
        done: set[str] = set()
        waiting = [*work]
        while waiting:
            op = waiting.pop()
            if op in found or op not in self._operators:
                continue
            found.add(op)
            waiting += (tensor.op for tensor in op.inputs if id(tensor) not in self._fed)
            waiting += op.control_inputs
            for loop in loops.around(op) if loops else ():
                if loop not in done:
                    done.add(loop)
                    waiting += loops.members(loop) if loops else ()
        return found
