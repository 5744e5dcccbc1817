"""points: runs a program once, and lists the operators that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from amanda import _core
from amanda.core import fork
from amanda.core.op_context import OpContext
from amanda.core.scope import apply
from amanda.core.tool import Tool
from amanda.driver import registry
from amanda.reports.point_table import Operand, Point, PointTable


def points(program: Callable[..., Any], /, *inputs: Any, backward: bool = False, **keywords: Any) -> PointTable:
    """Runs ``program(*inputs, **keywords)`` once, and returns the table of the operators that it runs::

        print(amanda.points(model, x))

    A row has the operator's id, its module and source line, the dtypes and shapes of its inputs and outputs, and how often
    it ran. Operators inside models have the ids that they have in any other scope. Backward operators are listed, too,
    below their forward operators: those that the program runs, and with `backward` those of its result.

    The program runs as it is: a model in training mode does what it does in training. Some changes are undone
    afterwards. In PyTorch, these are the random states of the CPU and of CUDA devices in use. If `program` is a
    module or a method of one, its buffers are restored, too, such as the running statistics of batch normalization.
    The model's buffers are in memory twice meanwhile. In eager TensorFlow, the seeds after `tf.random.set_seed` and
    the model's non-trainable variables are restored. Other effects of the program remain: a function that takes an
    optimizer step has taken it.

    Arguments:
        program: a model, or anything else that can be called.
        inputs, keywords: the program's arguments.
        backward: also differentiates the sum of all tensors in the result that require a gradient, with
            `torch.autograd.grad`. No ``.grad`` changes, so no AccumulateGrad runs. In TensorFlow: with a `tf.GradientTape`,
            for the trainable variables that the program uses.

    Raises:
        TypeError: `program` cannot be called.
        ValueError: `backward`, and nothing in the result requires a gradient.
        Exception: what the program raises.
    """
    if not callable(program):
        raise TypeError(f"[points] points takes a model, or something else to call, and its inputs; got {program!r}")
    look = PointsTool()
    with registry.preserved(program), apply(look):
        if not backward:
            program(*inputs, **keywords)
        else:
            with registry.recorded() as differentiate:
                differentiate(program(*inputs, **keywords))
    return look.points()


@dataclasses.dataclass(eq=False)
class _Seen:
    operator: str
    backward_operator: str
    op_id: int
    backward_op_id: int | None
    module_path: str
    source: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] | None = None
    runs: int = 0


class PointsTool(Tool):
    """Looks at every outermost operator, forward and backward; for `points` and `amanda ls`.

    Arguments:
        ops: as of `add_inst_for_op`.
    """

    def __init__(self, ops: str | Iterable[str] | None = None) -> None:
        super().__init__("points")
        self._seen: dict[tuple[object, ...], _Seen] = {}
        self._lock = fork.lock()  # guards what was seen
        names = ops if ops is None or isinstance(ops, str) else list(ops)
        self.add_inst_for_op(self._look, ops=names)
        self.add_inst_for_op(self._look_at_outputs, require_outputs=True, ops=names)
        self.add_inst_for_op(self._look_backward, backward=True, ops=names)
        self.add_inst_for_op(self._look_at_grad_inputs, backward=True, require_outputs=True, ops=names)

    def points(self) -> PointTable:
        """The operators seen so far."""
        with self._lock:
            rows = [
                Point(**{field.name: getattr(seen, field.name) for field in _FIELDS}) for seen in self._seen.values()
            ]
        return PointTable(rows)

    def _look(self, context: OpContext) -> None:
        seen = self._at(context)
        seen.inputs = _operands(context._handle.infos("inputs"), context.op.input_names)
        context.insert_before_op(self._count, inputs=[], seen=seen)

    def _look_at_outputs(self, context: OpContext) -> None:
        self._at(context).outputs = _operands(context._handle.infos("outputs"))

    def _look_backward(self, context: OpContext) -> None:
        seen = self._at(context)
        seen.inputs = _operands(context._handle.infos("grad_outputs"))
        context.insert_before_backward_op(self._count, grad_outputs=[], seen=seen)

    def _look_at_grad_inputs(self, context: OpContext) -> None:
        self._at(context).outputs = _operands(context._handle.infos("grad_inputs"))

    def _at(self, context: OpContext) -> _Seen:
        op, backward_op = context.op, context.get_backward_op()
        seen = _Seen(
            operator=f"{op.name}.{op.overload}" if op.overload else op.name,
            backward_operator=backward_op.__name__ if backward_op is not None else "",
            op_id=context.op_id,
            backward_op_id=context.get_backward_op_id(),
            module_path=context.module_path,
            source=context.source,
        )
        key = dataclasses.astuple(seen)  # the other fields distinguish operators without an id
        with self._lock:
            return self._seen.setdefault(key, seen)

    def _count(self, seen: _Seen) -> None:
        with self._lock:
            seen.runs += 1


_FIELDS = dataclasses.fields(_Seen)


def _operands(infos: Iterable[_core.ValueInfo], names: Iterable[str] = ()) -> tuple[Operand, ...]:
    named = [*names]
    return tuple(_operand(info, named[i] if i < len(named) else "") for i, info in enumerate(infos))


def _operand(info: _core.ValueInfo, name: str) -> Operand:
    shape = None if info.sizes is None else tuple(info.sizes)
    elements = tuple(_operand(element, "") for element in info.elements)
    return Operand(name, info.kind, info.dtype, shape, info.device, elements)  # type: ignore[arg-type]
