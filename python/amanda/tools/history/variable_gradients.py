"""VariableGradients: the gradients of TensorFlow's variables, and losses, in graphs and in eager code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place, Skips, arrays_of, locks

from .optimizer_gradients import OptimizerGradients
from .parameters import Gradient, Watched

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Role, VariableValue

_UPDATES = re.compile(r"(Resource|Sparse|ResourceSparse)?Apply[A-Z]\w*")  # operators of TensorFlow 1's optimizers
_NOWHERE = Place(None, "", "", "")


class VariableGradients:
    """Reads the values that tapes and `tf.gradients` return for variables, those that optimizers get, and what is
    differentiated. In a graph that is where an operator that tools see gives, or takes, the value."""

    def __init__(self, watched: Watched, skips: Skips, given: OptimizerGradients) -> None:
        self._watched, self._skips, self._given = watched, skips, given
        self._places: dict[object, Place] = {}  # by variable: of an operator that reads it
        self._readers: dict[int, int | None] = {}  # by role: the operator where it is read
        self._lock = locks.lock()  # guards the next two, of this step. A graph computes them in any order.
        self._found: dict[str, list[tuple[int, Gradient]]] = {}  # with the number of the role
        self._losses: dict[int, list[float]] = {}  # by the number of the role
        self._stop: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self.drop()
        if "tensorflow" in sys.modules and "amanda.drivers.tensorflow.port" in sys.modules:
            from amanda.toolkit.tensorflow import listen_to_roles

            self._stop = listen_to_roles(self._read)

    def drop(self) -> None:
        self._stop()
        self._stop = lambda: None
        with self._lock:
            self._found.clear()
            self._losses.clear()

    def gradients(self) -> list[Gradient]:
        """Those of this step, from the loss on. A norm is the mean over backward passes."""
        with self._lock:
            found = sorted(self._found.values(), key=lambda each: min(number for number, _ in each))
        return [each[0][1]._replace(norm=sum(one.norm for _, one in each) / len(each)) for each in found]

    def loss(self) -> float | None:
        """The value of one element whose gradients the program asked for first; the mean of it."""
        with self._lock:
            first = self._losses[min(self._losses)] if self._losses else []
            return sum(first) / len(first) if first else None

    # ---- analyses ---------------------------------------------------------------------------------------------------

    def analyze(self, context: OpContext) -> None:
        """An analysis routine of TensorFlow's operators, forward ones and backward ones."""
        if not context.is_symbolic:
            return
        if context.is_backward():
            for position, element, role in self._roles(context, context.grad_inputs):
                context.insert_after_backward_op(self._look, [position], role=role, element=element)
            return
        for position, element, role in self._roles(context, context.inputs):
            context.insert_before_op(self._look, [position], role=role, element=element)
        for position, element, role in self._roles(context, context.outputs):
            context.insert_after_op(self._look, [position], role=role, element=element)
        self._update(context)
        self._place(context)

    def _roles(self, context: OpContext, operands: Sequence[Any]) -> Iterator[tuple[int, int | None, Role]]:
        """The roles of the operands that are to be read at this operator, with their positions."""
        from amanda.toolkit.tensorflow import roles_of

        op_id = context.backward_op_id if context.is_backward() else context.op_id
        for position, operand in enumerate(operands):
            is_list = isinstance(operand, list | tuple)
            for i, symbol in enumerate(operand if is_list else [operand]):
                for role in roles_of(symbol):
                    if self._readers.setdefault(role.number, op_id) == op_id:
                        yield position, i if is_list else None, role

    def _update(self, context: OpContext) -> None:
        """Operators of optimizers of TensorFlow 1 take the gradient itself."""
        if not _UPDATES.fullmatch(context.op.__name__):
            return
        from amanda.toolkit.tensorflow import Role, variable_behind, variable_of

        variable = variable_behind(context.inputs[0]) or variable_of(context.inputs[0])
        position = next((i for i, name in enumerate(context.op.input_names) if name in ("grad", "delta")), None)
        if variable is not None and position is not None:
            role = Role("given", variable, "Sparse" in context.op.__name__)
            context.insert_before_op(self._look, [position], role=role, element=None)

    def _place(self, context: OpContext) -> None:
        from amanda.toolkit.tensorflow import MOVES, variable_of

        if context.op.__name__ in MOVES or context.get("cupti_profiler.phase") == "optimizer":
            return
        for symbol in context.inputs:
            variable = variable_of(symbol)
            if variable is not None:
                self._places.setdefault(variable.key, Place.of(context))

    # ---- routines ---------------------------------------------------------------------------------------------------

    def _look(self, value: Any, role: Role, element: int | None) -> None:
        self._read(role, value if element is None else value[element])

    def _read(self, role: Role, array: Any) -> None:
        if arrays_of(array) is None:
            return
        if role.is_sparse:
            self._skips.add("sparse", f"the gradient of {self._name(role.variable)}")
        elif role.kind == "loss":
            if array.size == 1:
                with self._lock:
                    losses = self._losses.setdefault(role.number, [])
                    if role.number or not losses:  # of eager code, the first
                        losses.append(float(array.reshape(())))
        elif role.kind == "given":
            self._given.add(self._name(role.variable), array)
        else:
            self._skips.read(array, lambda plain, arrays: self._add(role, plain, arrays))

    def _add(self, role: Role, array: Any, arrays: Arrays) -> None:
        variable = role.variable
        name, place = self._name(variable), self._places.get(variable and variable.key, _NOWHERE)
        gradient = Gradient(name, place, arrays.norm(array), array.size, array.ndim)
        with self._lock:
            self._found.setdefault(name, []).append((role.number, gradient))

    def _name(self, variable: VariableValue | None) -> str:
        return "" if variable is None else self._watched.name_of_variable(variable)
