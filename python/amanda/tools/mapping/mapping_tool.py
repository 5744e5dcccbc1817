"""MappingTool: gives operators of several frameworks one vocabulary, for the tools that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amanda import ON_DEMAND, OpContext, Tool

Rule = Callable[[OpContext], object]


class MappingTool(Tool):
    """Runs rules that write normalized keys into an operator's context, selected by the operator's namespace::

        def torch_op_name_rule(context):
            context["op_name"] = context.op.__name__

        mapping_tool = MappingTool(rules=[["pytorch", torch_op_name_rule]])

        class CountConv(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.depends_on(mapping_tool)
                self.add_inst_for_op(self.analyze)

            def analyze(self, context):
                if context["op_name"] == "conv2d":
                    ...

    It sees only the operators that its dependents ask for, and runs before them. Without a dependent it does nothing.

    A namespace is a path, such as ``context.namespace`` ("pytorch/2.13/eager"). A rule applies to its own path and
    every path below it: "pytorch" and "pytorch/2.13" match, "pytorch/2" does not. All rules that match run, in the
    order in which they were added.

    Arguments:
        rules: pairs of a namespace and a routine, called as ``routine(context)`` once per operator.

    Raises:
        TypeError: a rule is not such a pair.
        ValueError: a namespace is not a path.
    """

    def __init__(self, rules: Iterable[Sequence[Any]] = ()) -> None:
        super().__init__()
        self._rules: list[tuple[list[str], Rule]] = []
        if isinstance(rules, str) or not isinstance(rules, Iterable):
            raise TypeError(f"[mapping] rules= takes a list of [namespace, routine] pairs, got {rules!r}")
        for rule in rules:
            if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) != 2:
                raise TypeError(f'[mapping] a rule is a pair, as in ["pytorch", routine]; got {rule!r}')
            self.add_rule(*rule)
        self.add_inst_for_op(self._map, ops=ON_DEMAND)
        self.add_inst_for_op(self._map, backward=True, ops=ON_DEMAND)

    def add_rule(self, namespace: str, routine: Rule) -> None:
        """Adds a rule. Operators that were already analyzed keep their keys.

        Raises:
            TypeError: `namespace` is not a string, or `routine` is not callable.
            ValueError: `namespace` has an empty part.
        """
        if not isinstance(namespace, str):
            raise TypeError(f'[mapping] a namespace is a string, as "pytorch" or "pytorch/2.13"; got {namespace!r}')
        path = namespace.split("/")
        if not all(path):
            raise ValueError(f'[mapping] a namespace is a path, as "pytorch" or "pytorch/2.13"; got "{namespace}"')
        if not callable(routine):
            raise TypeError(f'[mapping] the rule for "{namespace}" needs a routine to call, got {routine!r}')
        self._rules.append((path, routine))

    def _map(self, context: OpContext) -> None:
        path = context.namespace.split("/")
        for namespace, routine in self._rules:
            if path[: len(namespace)] == namespace:
                routine(context)
