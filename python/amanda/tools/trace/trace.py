"""Trace: the tool that evaluates expressions at operators."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeAlias

from amanda import _fork
from amanda.op_context import OpContext
from amanda.reports.data_frame import fields_of
from amanda.reports.places import PLACE_FIELDS, Place
from amanda.reports.results import Grouping, Results
from amanda.scope import Scope, apply
from amanda.tool import Tool
from amanda.tools.trace.expression import GRADIENTS, RESULTS, Expression
from amanda.tools.trace.rows import AGGREGATES, DEFAULT, Aggregate, GroupBy, Row, columns
from amanda.tools.trace.values import NotANumber, Values, merged

MOST_TEXTS = 5
_Key: TypeAlias = tuple[Expression, Place, int | None]  # of a row; the last is the step


class Trace(Results[Row, GroupBy], Tool):
    """Evaluates expressions over the operands of operators while the program runs. See `trace`.

    It is a tool, for `amanda.apply`, and also a context manager that applies itself.

    Rows are by "id" (one operator at its place in the program), "op", "module", "line", "step" (the number of the
    operator's execution) or "rank" (of the process). `by` is the default of `rows`, `table` and `to_pandas`; "step" works
    only if it was given here. See `Results` for these methods.
    """

    _speaker = "trace"

    def __init__(
        self,
        *expressions: str,
        by: GroupBy = "id",
        every: int = 1,
        aggregate: Sequence[Aggregate] = DEFAULT,
    ) -> None:
        super().__init__("trace")
        if not expressions:
            raise ValueError("[trace] expected an expression, such as 'linear: output.abs().max()'")
        self._expressions = [Expression.parse(text) for text in expressions]
        self._by: GroupBy = by
        self._checked(by)
        self._every = _checked_every(every)
        self._aggregate = _checked_aggregate(aggregate)
        self._sites: dict[tuple[Expression, int | None, int | None], _Site] = {}
        self._nodes: dict[tuple[Expression, int | None], int | None] = {}  # of results, by forward operator
        self._unfit: dict[Expression, collections.Counter[str]] = {}  # operators without an operand, by its name
        self._scopes: list[Scope] = []  # entered by __enter__
        self._lock = _fork.lock()  # guards the fields above
        for expression in self._expressions:
            asked = None if expression.sees_all else list(expression.operators)
            analysis = _Analysis(self, expression)
            if expression.is_backward:
                self.add_inst_for_op(analysis.backward, ops=asked, backward=True)
            else:
                self.add_inst_for_op(analysis.forward, ops=asked)

    def __enter__(self) -> Trace:
        scope = apply(self)
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scopes.pop().__exit__(kind, error, traceback)

    # ---- evaluating -------------------------------------------------------------------------------------------------

    def _site(self, expression: Expression, context: OpContext) -> _Site:
        key = expression, context.op_id, context.get_backward_op_id()
        with self._lock:
            keeps = "quantiles" in self._aggregate or "histogram" in self._aggregate
            site = _Site(expression, Place.of(context), keeps, self._by == "step", self._every)
            return self._sites.setdefault(key, site)

    def _is_of_result(self, expression: Expression, context: OpContext) -> bool:
        """Is this the backward operator that gets the gradient of the forward operator's result? The first to run is."""
        if context.backward_op.__name__ == "AccumulateGrad":
            return False
        with self._lock:
            return self._nodes.setdefault((expression, context.op_id), context.backward_op_id) == context.backward_op_id

    def _does_not_fit(self, expression: Expression, name: str, context: OpContext, known: Sequence[str]) -> None:
        if expression.is_exact(context.op.__name__):
            raise expression.unknown(name, context.op.name, known)
        with self._lock:
            self._unfit.setdefault(expression, collections.Counter())[name] += 1

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def errors(self) -> list[str]:
        """What went wrong where, once for each text: "'linear: ...' at aten::linear (model.py:3): RuntimeError: ..."."""
        with self._lock:
            sites = list(self._sites.values())
        texts = [
            f"{site.expression.text!r} at {site.place.name} ({site.place.source}): {text}"
            for site in sites
            for text in site.error_texts()
        ]
        return list(dict.fromkeys(texts))

    def reset(self) -> None:
        with self._lock:
            for site in self._sites.values():
                site.reset()
            self._unfit.clear()

    def _rows(self, by: GroupBy) -> list[Row]:
        if by == "step" and self._by != "step":
            raise ValueError('[trace] rows by "step" need a trace that was made with by="step"')
        rank, groups = _rank(), collections.defaultdict[_Key, list[Values]](list)
        with self._lock:
            sites = list(self._sites.values())
        for site in sites:
            for step, values in site.all_values():
                groups[site.group(by, step, rank)].append(values)
        rows = [
            Row.of(expression.text, place, step, rank, merged(some))
            for (expression, place, step), some in groups.items()
        ]
        return sorted(rows, key=lambda row: row.step or 0)

    def _checked(self, by: GroupBy | None) -> GroupBy:
        return super()._checked(self._by if by is None else by)

    def _columns(self, by: GroupBy, rows: Sequence[Row]) -> Any:
        return columns(by, self._aggregate, several=len(self._expressions) > 1)

    def _remarks(self, by: GroupBy) -> list[str]:
        errors, remarks = self.errors, []
        if errors:
            more = f"\nand {len(errors) - MOST_TEXTS} more" if len(errors) > MOST_TEXTS else ""
            remarks.append("failed: " + "\n".join(errors[:MOST_TEXTS]) + more)
        with self._lock:
            evaluated = {site.expression for site in self._sites.values()}
            for expression, unfit in self._unfit.items():
                if expression not in evaluated:
                    name = next(iter(unfit))
                    remarks.append(f"{expression.text!r} was never evaluated: no operator that ran has {name!r}")
        return remarks

    _groupings = {
        "id": Grouping((), fields_of(Row)),
        **{by: Grouping((), fields_of(Row, without=PLACE_FIELDS)) for by in ("op", "module", "line", "step", "rank")},
    }


def trace(*expressions: str, by: GroupBy = "id", every: int = 1, aggregate: Sequence[Aggregate] = DEFAULT) -> Trace:
    """Evaluates expressions over the operands of operators while the program runs, and aggregates their values::

        with amanda.trace("softmax: -(output * output.log()).sum(-1).mean()", by="module") as entropy:
            model(x)
        print(entropy.table())

    An expression is a filter as in ``ops=``, a colon, and Python. It reads inputs by their schema names, and ``output``, or
    gradients: see `Expression`. It is evaluated after the operator if it reads ``output``, else before it; in the
    backward pass if it reads gradients. Nothing is recorded for gradients, and the program sees nothing of it.

    Where a filter names an operator, an operand that it does not have is an error. Operators that only a glob selects are
    left out if they lack an operand. An expression that fails does not end the program: see `Trace.errors`.

    Arguments:
        expressions: each is aggregated on its own.
        by: what a row stands for: "id" (one operator at its place in the program), "op", "module", "line", "step" or
            "rank".
        every: evaluates at every n-th execution of each operator, the first one included.
        aggregate: some of "count", "last", "min", "max", "mean", "quantiles" (5%, 50%, 95%) and "histogram". With the
            last two, the value may be a tensor with many elements; 100,000 values for each operator are kept at most,
            a uniform sample of all. Without them, it is one number. On other devices than the CPU, values are read in
            groups: the host does not wait for each.

    Raises:
        TypeError: an expression is not a string, or `every` is not an integer.
        ValueError: there is no expression; one has a mistake, which the message shows with a caret; `every` is less than 1;
            there is no such grouping or aggregate.
    """
    return Trace(*expressions, by=by, every=every, aggregate=aggregate)


class _Site:
    """An expression at one operator of the program."""

    def __init__(self, expression: Expression, place: Place, keeps: bool, by_step: bool, every: int) -> None:
        self.expression, self.place = expression, place
        self._keeps, self._by_step, self._every = keeps, by_step, every
        self._lock = _fork.lock()  # guards the fields below
        self._runs = itertools.count()
        self._values: dict[int, Values] = {}  # by step, or all under 0
        self._errors: dict[str, None] = {}

    def evaluate(self, *operands: Any) -> None:
        """A routine: the value of the expression for these operands is added."""
        step = next(self._runs)
        if step % self._every:
            return
        failure: Exception | None = None
        try:
            value = self.expression.function(*operands)
        except Exception as error:
            failure = error
        with self._lock:
            key = step if self._by_step else 0
            values = self._values.get(key)
            if values is None:
                values = self._values[key] = Values(self._keeps)
            try:
                if failure is None:
                    values.add(value)
                    return
            except Exception as error:
                failure = error
            values.errors += 1
            self._errors[_text(failure)] = None

    def all_values(self) -> list[tuple[int, Values]]:
        """Copies, with their steps."""
        with self._lock:
            return [(step, merged([values])) for step, values in self._values.items()]

    def error_texts(self) -> list[str]:
        with self._lock:
            return list(self._errors)

    def group(self, by: GroupBy, step: int, rank: int) -> _Key:
        if by == "step":
            return self.expression, Place(None, str(step), "", ""), step
        place = Place(None, str(rank), "", "") if by == "rank" else self.place.group(by)
        return self.expression, place, None

    def reset(self) -> None:
        with self._lock:
            self._runs = itertools.count()
            self._values.clear()
            self._errors.clear()


@dataclasses.dataclass(frozen=True)
class _Analysis:
    """Schedules an expression at the operators that it fits."""

    trace: Trace
    expression: Expression

    def forward(self, context: OpContext) -> None:
        operands, known = self.expression.operands, context.op.input_names
        reads: list[str] = []  # inputs, by the schema's names
        for name in operands:
            if name in RESULTS or name == "inputs":
                continue
            if name == "input" and name not in known and "self" in known:
                name = "self"
            if name not in known:
                self.trace._does_not_fit(self.expression, name, context, known)
                return
            reads.append(name)
        site = self.trace._site(self.expression, context)
        inputs = None if "inputs" in operands else reads
        if not self.expression.reads_results and inputs is not None:
            context.insert_before_op(site.evaluate, inputs=reads)
        elif operands == ("output",):
            context.insert_after_op(site.evaluate, outputs=[0])
        else:
            positions = [known.index(name) for name in reads]
            context.insert_after_op(self._operands_after, inputs=None, site=site, positions=positions)

    def backward(self, context: OpContext) -> None:
        if not self.trace._is_of_result(self.expression, context):
            return
        site = self.trace._site(self.expression, context)
        received = any(name.startswith("grad_output") for name in self.expression.operands)
        if not any(name.startswith("grad_input") for name in self.expression.operands):
            context.insert_before_backward_op(self._received, site=site)
        elif not received:
            context.insert_after_backward_op(self._returned, site=site)
        else:  # in compiled code there is no routine that is shown both
            context.insert_after_backward_op(self._both, grad_outputs=None, site=site)

    def _operands_after(self, *outputs: Any, inputs: tuple[Any, ...], site: _Site, positions: Sequence[int]) -> None:
        whole = {"output": outputs[0] if outputs else None, "outputs": outputs, "inputs": inputs}
        read = iter(positions)
        values = [whole[name] if name in whole else inputs[next(read)] for name in self.expression.operands]
        site.evaluate(*values)

    def _received(self, *grad_outputs: Any, site: _Site) -> None:
        self._evaluate(site, grad_outputs, ())

    def _returned(self, *grad_inputs: Any, site: _Site) -> None:
        self._evaluate(site, (), grad_inputs)

    def _both(self, *grad_inputs: Any, grad_outputs: tuple[Any, ...], site: _Site) -> None:
        self._evaluate(site, grad_outputs, grad_inputs)

    def _evaluate(self, site: _Site, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        values = dict(
            zip(GRADIENTS, (_first(grad_outputs), grad_outputs, _first(grad_inputs), grad_inputs), strict=True)
        )
        site.evaluate(*(values[name] for name in self.expression.operands))


def _first(gradients: Sequence[Any]) -> Any:
    return next((gradient for gradient in gradients if gradient is not None), None)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, NotANumber) else f"{type(error).__name__}: {error}"


def _checked_every(every: object) -> int:
    complaint = f"[trace] every= is a number of executions, 1 or more, got {every!r}"
    try:
        number = operator.index(every)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(complaint) from None
    if number < 1:
        raise ValueError(complaint)
    return number


def _checked_aggregate(aggregate: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    names: tuple[Aggregate, ...] = (aggregate,) if isinstance(aggregate, str) else tuple(aggregate)  # type: ignore[assignment]
    for name in names:
        if name not in AGGREGATES:
            raise ValueError(f"[trace] aggregate= is some of {', '.join(AGGREGATES)}; got {name!r}")
    return names


def _rank() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", "0"))
