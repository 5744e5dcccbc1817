"""Routines: they evaluate an expression at the operators that it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amanda import OpContext
from amanda.toolkit.unwritten import allocates, may_pass_on, overwrites

from .expression import GRADIENTS, RESULTS, Expression
from .site import Site


class Routines:
    """Schedules an expression at the operators that it fits."""

    def __init__(
        self, expression: Expression, site_of: Callable[[OpContext], Site], unfit: Callable[..., None]
    ) -> None:
        """`unfit(name, context, known)` is called where an operator lacks the operand of this name."""
        self.expression, self._site_of, self._unfit = expression, site_of, unfit

    def forward(self, context: OpContext) -> None:
        operands, known = self.expression.operands, context.op.input_names
        gives = RESULTS if _has_results(context) else ()
        reads: list[str] = []  # inputs, by the schema's names
        for name in operands:
            if name in gives or name == "inputs":
                continue
            if name == "input" and name not in known and "self" in known:
                name = "self"
            if name not in known:
                self._unfit(name, context, [*known, "inputs", *gives])
                return
            reads.append(name)
        evaluate = self._evaluation(self._site_of(context), context)
        inputs = None if "inputs" in operands else reads
        if not self.expression.reads_results and inputs is not None:
            context.insert_before_op(evaluate, inputs=reads)
        elif operands == ("output",):
            context.insert_after_op(evaluate, outputs=[0])
        else:
            positions = [known.index(name) for name in reads]
            context.insert_after_op(self._operands_after, inputs=None, evaluate=evaluate, positions=positions)

    def _evaluation(self, site: Site, context: OpContext) -> Callable[..., None]:
        if self.expression.reads_results and allocates(context):
            return site.evaluate_allocated
        return site.evaluate_where_unwritten if may_pass_on(context) or overwrites(context) else site.evaluate

    def backward(self, context: OpContext) -> None:
        site = self._site_of(context)
        received = any(name.startswith("grad_output") for name in self.expression.operands)
        if not any(name.startswith("grad_input") for name in self.expression.operands):
            context.insert_before_backward_op(self._received, site=site)
        elif not received:
            context.insert_after_backward_op(self._returned, site=site)
        else:  # in compiled code there is no routine that is shown both
            context.insert_after_backward_op(self._both, grad_outputs=None, site=site)

    def _operands_after(
        self, *outputs: Any, inputs: tuple[Any, ...], evaluate: Callable[..., None], positions: Sequence[int]
    ) -> None:
        whole = {"output": outputs[0] if outputs else None, "outputs": outputs, "inputs": inputs}
        read = iter(positions)
        values = [whole[name] if name in whole else inputs[next(read)] for name in self.expression.operands]
        evaluate(*values)

    def _received(self, *grad_outputs: Any, site: Site) -> None:
        self._evaluate(site, grad_outputs, ())

    def _returned(self, *grad_inputs: Any, site: Site) -> None:
        self._evaluate(site, (), grad_inputs)

    def _both(self, *grad_inputs: Any, grad_outputs: tuple[Any, ...], site: Site) -> None:
        self._evaluate(site, grad_outputs, grad_inputs)

    def _evaluate(self, site: Site, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        values = dict(
            zip(GRADIENTS, (_first(grad_outputs), grad_outputs, _first(grad_inputs), grad_inputs), strict=True)
        )
        site.evaluate(*(values[name] for name in self.expression.operands))


def _has_results(context: OpContext) -> bool:
    return not context.op.schema.endswith("-> ()")


def _first(gradients: Sequence[Any]) -> Any:
    return next((gradient for gradient in gradients if gradient is not None), None)
