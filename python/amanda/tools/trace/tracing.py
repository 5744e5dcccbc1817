"""Trace: the tool that evaluates expressions at operators."""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import Any

from amanda import OpContext, Scope, Tool, apply
from amanda.toolkit import PLACE_FIELDS, Grouping, Place, Results, Unseen, evidence, fields_of, locks, this_rank
from amanda.toolkit.arguments import whole_number
from amanda.toolkit.arrays import UNWRITTEN
from amanda.toolkit.frames import line_in_cell
from amanda.toolkit.unwritten import MEMORY, may_be_met

from .expression import Expression
from .routines import Routines
from .rows import AGGREGATES, DEFAULT, Aggregate, GroupBy, Row, columns
from .site import Key, Site
from .values import Values, merged

MOST_TEXTS = 5


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
        self._every = whole_number(every, f"[trace] every= is a number of executions, 1 or more, got {every!r}", 1)
        self._aggregate = _checked_aggregate(aggregate)
        self._sites: dict[tuple[Expression, int | None, int | None], Site] = {}
        self._nodes: dict[tuple[Expression, int | None], int | None] = {}  # of results, by forward operator
        self._unfit: dict[Expression, collections.Counter[str]] = {}  # operators without an operand, by its name
        self._scopes: list[Scope] = []  # entered by __enter__
        self._lock = locks.lock()  # guards the fields above
        if any(may_be_met(expression.operators) for expression in self._expressions):
            self.depends_on(MEMORY)
        for expression in self._expressions:
            asked = None if expression.sees_all else list(expression.operators)
            routines = Routines(
                expression, functools.partial(self._site, expression), functools.partial(self._does_not_fit, expression)
            )
            if expression.is_backward:
                analysis = functools.partial(self._analyze_backward, expression, routines)
                self.add_inst_for_op(analysis, ops=asked, backward=True)
            else:
                self.add_inst_for_op(routines.forward, ops=asked)

    def __enter__(self) -> Trace:
        scope = apply(self)
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._scopes.pop().__exit__(kind, error, traceback)

    # ---- evaluating -------------------------------------------------------------------------------------------------

    def _site(self, expression: Expression, context: OpContext) -> Site:
        key = expression, context.op_id, context.get_backward_op_id()
        with self._lock:
            keeps = "quantiles" in self._aggregate or "histogram" in self._aggregate
            site = Site(expression, Place.of(context), keeps, self._by == "step", self._every)
            return self._sites.setdefault(key, site)

    def _analyze_backward(self, expression: Expression, routines: Routines, context: OpContext) -> None:
        if self._is_of_result(expression, context):
            routines.backward(context)

    def _is_of_result(self, expression: Expression, context: OpContext) -> bool:
        """True if this backward operator gets the gradient of the forward operator's result. It is the first to run."""
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
        """The errors and their places, once for each text: "'linear: ...' at aten::linear (model.py:3): RuntimeError:
        ..."."""
        with self._lock:
            sites = list(self._sites.values())
        texts = [
            f"{site.expression.text!r} at {site.place.name} ({line_in_cell(site.place.source)}): {text}"
            for site in sites
            for text in site.error_texts()
        ]
        return list(dict.fromkeys(texts))

    @property
    def skipped(self) -> dict[str, int]:
        """The number of values that are missing, by reason. "unwritten" is memory that no operator has filled yet."""
        with self._lock:
            count = sum(site.unwritten() for site in self._sites.values())
        return {UNWRITTEN: count} if count else {}

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            for site in self._sites.values():
                site.reset()
            self._unfit.clear()

    def groupings(self) -> list[GroupBy]:
        """The possible values of `by`; "step" only for a trace that was made with it."""
        return [by for by in super().groupings() if by != "step" or self._by == "step"]

    def _rows(self, by: GroupBy) -> list[Row]:
        if by == "step" and self._by != "step":
            raise ValueError('[trace] rows by "step" need a trace that was made with by="step"')
        rank, groups = this_rank().number, collections.defaultdict[Key, list[Values]](list)
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

    def _omissions(self) -> list[Unseen]:
        return evidence.facts("unevaluated", [*self.errors, *self._never_evaluated()])

    def _never_evaluated(self) -> list[str]:
        with self._lock:
            evaluated = {site.expression for site in self._sites.values()}
            return [
                f"{expression.text!r} was never evaluated: no operator that ran has {next(iter(unfit))!r}"
                for expression, unfit in self._unfit.items()
                if expression not in evaluated
            ]

    def _remarks(self, by: GroupBy) -> list[str]:
        errors = self.errors
        remarks = [f"skipped: {count} {reason}" for reason, count in self.skipped.items()]
        if errors:
            more = f"\nand {len(errors) - MOST_TEXTS} more" if len(errors) > MOST_TEXTS else ""
            remarks.append("failed: " + "\n".join(errors[:MOST_TEXTS]) + more)
        return remarks + self._never_evaluated()

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
    left out if they lack an operand. An expression that fails does not end the program: see `Trace.errors`. What
    ``torch.empty`` returns has a shape, but no values until an operator fills it: see `Trace.skipped`.

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


def _checked_aggregate(aggregate: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    names: tuple[Aggregate, ...] = (aggregate,) if isinstance(aggregate, str) else tuple(aggregate)  # type: ignore[assignment]
    for name in names:
        if name not in AGGREGATES:
            raise ValueError(f"[trace] aggregate= is some of {', '.join(AGGREGATES)}; got {name!r}")
    return names
