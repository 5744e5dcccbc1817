"""SubgraphRewriting: several operators of a program run as one function."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from amanda import Action, OpContext, Operator, Tool
from amanda.toolkit import Place, PlaceRow, Unseen, eager_only, evidence, locks, warn_here
from amanda.toolkit.frames import line_in_cell
from amanda.toolkit.schemas import is_written
from amanda.toolkit.tables import Column, Grouping, Results, fields_of, name_column, number_column
from amanda.toolkit.torch import parse_schema, undeclared_writes
from amanda.tools.graph import GraphTracing

from .deferred import Key, Pending, Result, computed, storages_of, versions_of
from .match import Match, Rule, Site, find
from .pattern import Pattern, parse

GroupBy = Literal["id"]
MAX_KINDS = 1024  # kinds of operands of which an operator remembers the result


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """A match, "aten::linear > aten::gelu": operators that run as one function. Its place is that of the last one."""

    op_ids: tuple[int, ...]  # of all its operators, in the order of the pattern
    rewritten: int  # executions in which the function ran
    kept: int  # executions, after the traced ones, in which the operators ran as written
    why: str  # why it is not rewritten any more; "" if it is


class SubgraphRewriting(Results[Row, GroupBy], Tool):
    """Runs operators that match a pattern as one function, in a model that is not changed::

        def fused(linear, gelu):
            return my_kernel(linear.input, linear.weight, linear.bias)

        rewriting = SubgraphRewriting(["linear", "gelu"], fused)
        with amanda.apply(rewriting):
            train(model)
        print(rewriting.table())

    The first run is traced (`GraphTracing`). From the second one on, the last operator of each match is replaced by the
    function, and the others are not computed. The gradient is that of the function.

    A pattern is a chain, in which each operator takes the previous one's result as its first input, or a dict for other
    graphs. Its values are an operator, or a tuple of an operator and the labels of its inputs, by position. None is an
    input from outside, and inputs that are left out are from outside, too. Where an operator is expected, a tuple of
    names stands for any of them. Names are those of `Tool.add_inst_for_op`::

        ["matmul", ("mul", "div"), "softmax", "matmul"]
        {"gate": "linear", "act": ("silu", "gate"), "up": "linear", "product": ("mul", "act", "up")}

    The function gets one argument per operator, in the order of the pattern. It has the inputs that come from outside
    the match as attributes, named as in the schema (``linear.weight``, ``scaled.other``), and ``.op``, the operator. The
    function runs in the program's modes (gradients, autocast). If it returns NotImplemented, the operators run as
    written. Its result must have the shape, dtype and device of the program's result, must have a gradient if that had
    one, and must share no memory with the inputs. Strides may differ.

    **Which operators match.** The results inside a match are consumed by its operators alone. No operator writes in
    place, returns several values, or returns a view of a tensor from outside. Each operator is in one match: rules are
    tried in their order, and operators in the order in which they ran. A match is searched for when its first operators
    run for the second time; operators with the name of a pattern that are in no match by then are left alone.

    **What the program sees of a skipped operator** is a tensor of the right shape, strides, dtype and device, whose
    elements are computed when something reads them: a hook, a `print`, an operator outside the match, also after the
    scope. So results are right whatever the program does; but if a result is read, the match runs as written from then
    on, and its row says why. Before an operator writes to an input of a skipped one, that one is computed.

    Sizes are remembered by the operands' sizes, dtypes, and modes. Operators run as written where these are new. They
    also run as written if an operator writes to an operand (batch normalization in training), or is called under
    `torch.func` or `torch.autograd.forward_ad`. Operators that draw random numbers may draw them at another time.

    Rows are by "id", one for each match. See `Results` for `rows`, `table`, `to_pandas` and `reset`. After `reset`,
    matches are found as in a first run.

    Arguments:
        pattern: a list or a dict, see above.
        function: called as ``function(*operators)``.

    Raises:
        TypeError: `pattern` is neither a list nor a dict, or `function` cannot take one argument per operator.
        ValueError: the pattern can match nothing: it is empty, not connected, works in place, or names no operator.
        amanda.Error: when the function's result cannot replace the program's result.

    Warns:
        amanda.UnmatchedFilterWarning: when a scope is left in which a pattern matched nothing.
    """

    needs_eager = "it defers operators until their results are read"
    _speaker = "rewriting"
    _groupings = {
        "id": Grouping(
            [
                name_column("id"),
                number_column("rewritten", "rewritten"),
                number_column("kept", "kept"),
                Column("why", lambda row: row.why, left=True, field="why"),
            ],
            fields_of(Row),
        )
    }

    def __init__(self, pattern: Pattern, function: Callable[..., Any]) -> None:
        super().__init__()
        self._rules: list[Rule] = []
        self._sites: dict[int, Site] = {}  # operators that some pattern names, by op_id
        self._matches: dict[int, Match] = {}  # by the op_id of each operator in one
        self._searched = 0  # nodes of the graph when matches were searched for
        self._pending: weakref.WeakSet[Pending] = weakref.WeakSet()
        self._lock = locks.rlock()  # of everything above
        self._tracing = GraphTracing(once=True)
        self.depends_on(self._tracing)
        self.add_inst_for_op(self._analyze)
        self.add_rule(pattern, function)

    def add_rule(self, pattern: Pattern, function: Callable[..., Any]) -> None:
        """Adds another pattern with its function, for operators that no earlier rule matches. Call it before a scope.

        Raises:
            TypeError, ValueError: as of the constructor.
        """
        rule = Rule(parse(pattern), function)
        if not callable(function):
            raise TypeError(f"[rewriting] what replaces the pattern is a function, got {function!r}")
        try:
            inspect.signature(function).bind(*rule.steps)
        except TypeError:
            raise TypeError(
                f"[rewriting] {getattr(function, '__name__', function)} cannot take {len(rule.steps)} arguments, "
                f"one for each operator of the pattern {rule}"
            ) from None
        except ValueError:
            pass  # a builtin has no signature
        self._rules.append(rule)

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            for site in self._sites.values():
                site.results.clear()
            for match in self._matches.values():
                match.rewritten, match.kept, match.why, match.pauses = 0, 0, "", False

    def on_exit(self, error: BaseException | None) -> None:
        if error is not None or len(self._tracing.graph) == 0:
            return
        with self._lock:
            self._search()
            rules = [rule for rule in self._rules if not (rule.found or rule.warned)]
        for rule in rules:
            rule.warned = True
            why = rule.nearest[1] or f"no {rule.steps[-1]} ran"
            warn_here(f"[rewriting] the pattern {rule} matched nothing that ran: {why}")

    def _omissions(self) -> list[Unseen]:
        kept = [row for row in self.rows() if row.why]
        return evidence.facts("unhandled", [f"{row.name} ({line_in_cell(row.source)}): {row.why}" for row in kept])

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            self._search()
            return [_row(match) for match in dict.fromkeys(self._matches.values()) if match.sites[-1].results]

    def _analyze(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        op = context.op
        schema = parse_schema(op.schema)
        undeclared = [at for at, name in enumerate(op.input_names) if (op.name, name) in undeclared_writes()]
        written = [at for at, argument in enumerate(schema.arguments) if is_written(argument)]
        if written or undeclared:
            switches = [name for name in ("training", "use_input_stats") if name in op.input_names]
            context.insert_before_op(
                self._before_write, [*written, *undeclared, *switches], differentiable=True, name=op.name
            )
        if not written and [str(result.type) for result in schema.returns] == ["Tensor"] and self._is_named(op):
            with self._lock:
                site = self._sites.setdefault(context.op_id, Site(op, context.op_id, Place.of(context), undeclared))
            actions: list[Action] = []
            actions.append(context.replace_op(self._run, allow_view=True, site=site, actions=actions))

    def _is_named(self, op: Operator) -> bool:
        return any(step.matches(op) for rule in self._rules for step in rule.steps)

    def _before_write(self, *written: Any, name: str) -> None:
        with self._lock:
            pending = [each for each in self._pending if not each.is_computed]
        writes = not any(value is False for value in written)  # batch normalization in evaluation does not
        storages = storages_of(written) if pending and writes else set()
        for each in pending:
            if storages & storages_of(each.inputs):
                each.read(f"nobody yet, but {name} writes to an input")

    def _run(self, *inputs: Any, site: Site, actions: list[Action]) -> Any:
        match = self._match_of(site) if site.results else None
        if site.results and match is None:
            for action in actions:
                action.remove()
            return site.op(*inputs)
        key = Key.of(inputs)
        if key is None:
            return site.op(*inputs)
        result = site.results.get(key)
        if result is None:
            inputs = tuple(map(computed, inputs))
            made, result = self._trace(site, key, inputs)
            result.settle(False)
            if match is not None:
                match.can_rewrite(match.sites.index(site), result)
            return made
        if match is None:
            return site.op(*map(computed, inputs))
        number = match.sites.index(site)
        if result.settle(match.can_rewrite(number, result)):
            made = self._rewrite(match, number, key, result, inputs)
            if made is not NotImplemented:
                return made
        if number == len(match.sites) - 1:
            self._count(match, kept=1)
        return site.op(*map(computed, inputs))

    def _trace(self, site: Site, key: Key, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, Result]:
        """Runs an operator as written, and remembers what it returns."""
        state = [inputs[at] for at in site.writes if inputs[at] is not None]
        before, copies = versions_of(inputs), [tensor.clone() for tensor in state]
        made: torch.Tensor = site.op(*inputs)
        wrote = versions_of(inputs) != before or not all(map(torch.equal, state, copies))
        with self._lock:
            if len(site.results) >= MAX_KINDS:
                site.results.clear()
            result = site.results[key] = Result.of(made, inputs, wrote)
        return made, result

    def _rewrite(self, match: Match, number: int, key: Key, result: Result, inputs: tuple[Any, ...]) -> Any:
        """The value that stands for an operator's result in a match; NotImplemented if the operator must run."""
        parts, inside = match.parts(number, inputs), match.inside(number)
        if parts is None:
            return NotImplemented
        inputs = tuple(value if at in inside else computed(value) for at, value in enumerate(inputs))
        pending = Pending(match, number, inputs, key.modes, result, parts)
        if number < len(match.sites) - 1:
            with self._lock:
                self._pending.add(pending)
            return pending.deferred()
        made = match.rewrite(pending, result)
        self._count(match, rewritten=int(made is not NotImplemented))
        return made

    def _count(self, match: Match, rewritten: int = 0, kept: int = 0) -> None:
        with self._lock:
            match.rewritten += rewritten
            match.kept += kept

    def _match_of(self, site: Site) -> Match | None:
        with self._lock:
            self._search()
            return self._matches.get(site.op_id)

    def _search(self) -> None:
        """Finds the matches among operators that are in none, if the graph has grown."""
        graph = self._tracing.graph
        if self._searched == len(graph):
            return
        nodes = list(graph)
        self._searched = len(nodes)
        free = {op_id: site for op_id, site in self._sites.items() if op_id not in self._matches}
        for rule in self._rules:
            for node in nodes:
                if node.id in free and rule.steps[-1].matches(free[node.id].op):
                    sites = find(rule, node, graph, free)
                    if sites is not None:
                        rule.found = True
                        self._matches |= dict.fromkeys((site.op_id for site in sites), Match(rule, sites))
                        free = {op_id: site for op_id, site in free.items() if site not in sites}


def _row(match: Match) -> Row:
    last = match.sites[-1]
    op_ids = tuple(site.op_id for site in match.sites)
    place = last.op_id, str(match), last.place.module_path, last.place.source
    return Row(*place, op_ids=op_ids, rewritten=match.rewritten, kept=match.kept, why=match.why)
