"""The parameters that operators use, and those of them that a tool leaves as they are.

A tool that knows some operators sees nothing of the others. To report what it left out, it depends on a tool that looks
at each operator once. It notifies that tool of what it has handled.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import threading
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from amanda.core import evidence, fork, unmatched
from amanda.core.evidence import Unseen
from amanda.core.op_context import OpContext
from amanda.core.tool import Tool
from amanda.driver.identity import cells
from amanda.reports.places import Place, PlaceRow
from amanda.toolkit.frameworks import is_tensorflow, is_torch
from amanda.toolkit.parameters.parameter import Parameter, in_parametrization

__all__ = ["Covered", "Operand", "Parameter", "ParameterUse", "TellsParameters", "Unhandled", "in_parametrization"]

MOST_LISTED = 3
Operand = int | str | tuple[int | str, int | None]
"""An operand's position or name, with the index of an element if it is a list."""


@dataclasses.dataclass(frozen=True)
class Unhandled(PlaceRow):
    """A parameter that an operator computes with, and that the tool left as it is there."""

    parameter: str  # its name in the model
    elements: int


class Covered(NamedTuple):
    """The number of parameters' elements that a tool handled, among those that operators computed with. Each counts
    once."""

    handled: int  # in all operators that compute with them
    elements: int

    @property
    def share(self) -> float:
        """0 to 1; 0 if there are none."""
        return self.handled / self.elements if self.elements else 0.0


class ParameterUse:
    """The parameters that operators use, for one tool over all its scopes. `reset` of a tool does not clear them: the
    program still uses them.

    The tool makes it in its constructor.
    """

    def __init__(self, tool: Tool, speaker: str) -> None:
        self._speaker = speaker
        self._uses: dict[tuple[int | None, Hashable], Use] = {}
        self._handled: set[tuple[Hashable, int | None]] = set()  # parameters, and operators
        self._whole: set[int | None] = set()  # operators whose factors are all handled
        self._computed: set[str] = set()  # modules with a handled operand that is computed from parameters
        self._was_asked = self._has_told = False
        self._lock = fork.lock()  # guards the fields above
        self._thread = _Thread()
        tool.depends_on(_Looking(self, tool.name))

    # ---- looking at every operator ----------------------------------------------------------------------------------

    def begin(self, context: OpContext) -> None:
        """An analysis routine for every operator, before it runs."""
        self._thread.begun[context.op_id] = len(self._thread.asked)

    def look(self, context: OpContext) -> None:
        """The same after it has run."""
        framework = _framework(context)
        if framework is None:
            return
        asked, place = self._thread.asked, Place.of(context)
        inner = frozenset(asked[self._thread.begun.pop(context.op_id, len(asked)) :]) - {context.op_id}
        if not self._thread.begun:
            asked.clear()
        parameters, reads_data = framework.used(context)
        with self._lock:
            for parameter in parameters:
                key = place.op_id, parameter.key
                known = self._uses.get(key)
                self._uses[key] = Use(parameter, place, reads_data, inner if known is None else inner | known.inner)

    # ---- what the tool does -----------------------------------------------------------------------------------------

    def asked(self, context: OpContext) -> None:
        """To be called for each operator of the kinds that the tool knows, in its forward analysis."""
        self._thread.asked.append(context.op_id)
        self._was_asked = True

    def handled(self, context: OpContext, *operands: Operand, or_computed: bool = True) -> None:
        """To be called with the operands that the tool handles in an operator: as a rule, its weight.

        Arguments:
            or_computed: one that is no parameter is a weight nevertheless, computed of parameters.
        """
        found = self._found(context, operands)
        with self._lock:
            if not found and or_computed:
                self._computed.add(context.module_path)
            self._handled.update((parameter.key, context.op_id) for parameter in found)

    def handled_factors(self, context: OpContext) -> None:
        """To be called where the tool handles all that an operator multiplies, which may be inside of another operator."""
        with self._lock:
            self._whole.add(context.op_id)

    def handled_operator(self, context: OpContext) -> None:
        """To be called where the tool handles the whole result of an operator, with any operands."""
        self.handled(context, *range(len(context.inputs)), or_computed=False)
        self.handled_factors(context)

    # ---- what is said of it -----------------------------------------------------------------------------------------

    def unhandled(self) -> list[Unhandled]:
        """Largest first."""
        with self._lock:
            left = [use for use in self._uses.values() if not self._is_handled(use)]
        rows = [Unhandled(*use.place, use.parameter.name, use.parameter.elements) for use in left]
        return sorted(rows, key=lambda row: -row.elements)

    def left_alone(self) -> list[str]:
        """The operators in which no parameter was handled, those with the largest first: "aten::embedding of embed.weight
        (model.py:12)"."""
        with self._lock:
            touched = {use.place.op_id for use in self._uses.values() if self._is_handled(use)}
        largest: dict[int | None, Unhandled] = {}
        for row in self.unhandled():
            if row.op_id not in touched:
                largest.setdefault(row.op_id, row)
        return [f"{row.name} of {row.parameter} ({cells.line_in_cell(row.source)})" for row in largest.values()]

    def covered(self) -> Covered:
        """The number of elements that the tool handled, and that of all."""
        with self._lock:
            sizes = {use.parameter.key: use.parameter.elements for use in self._uses.values()}
            left = {use.parameter.key for use in self._uses.values() if not self._is_handled(use)}
        return Covered(sum(size for key, size in sizes.items() if key not in left), sum(sizes.values()))

    def caption(self) -> str:
        """A caption for tables; empty if no operator has computed with a parameter."""
        covered = self.covered()
        if not covered.elements:
            return ""
        share = covered.share if covered.share in (0, 1) else min(max(covered.share, 0.001), 0.999)
        numbers = f"{share * 100:.3g}% ({covered.handled:,} of {covered.elements:,} elements)"
        rows = self.unhandled()
        return f"parameters covered: {numbers}" + (f"; not handled: {_listed(rows)}" if rows else "")

    def tell(self, tool: Tool) -> None:
        """To be called when a scope is left: warns if operators ran that the tool knows, and it handled nothing."""
        if self._handled or self._computed or not self._was_asked or self._has_told:
            return
        rows = self.unhandled()
        if rows:
            self._has_told = True
            unmatched.warn_here(
                f"[{self._speaker}] tool '{tool.name}' handled no parameter of the operators that ran; not handled: "
                f"{_listed(rows)}"
            )

    def _found(self, context: OpContext, operands: Iterable[Operand]) -> list[Parameter]:
        framework, names = _framework(context), context.op.input_names
        if framework is None:
            return []
        found: list[Parameter] = []
        for operand in operands:
            position, element = operand if isinstance(operand, tuple) else (operand, None)
            number = names.index(position) if isinstance(position, str) else position
            found += framework.parameters(context, number, element)
        return found

    def _is_handled(self, use: Use) -> bool:
        if any((use.parameter.key, op_id) in self._handled for op_id in (use.place.op_id, *use.inner)):
            return True
        if not use.parameter.is_vector and not use.inner.isdisjoint(self._whole):
            return True  # a vector is as a rule added to the product
        outer = f".{use.place.module_path}".partition(".parametrizations.")[0].removeprefix(".")
        return not use.reads_data and outer in self._computed


class TellsParameters:
    """The properties of tools that have such a `ParameterUse`."""

    _parameters: ParameterUse

    @property
    def unhandled(self) -> list[Unhandled]:
        """The parameters that operators computed with, and that this tool left as they are; largest first."""
        return self._parameters.unhandled()

    @property
    def covered(self) -> Covered:
        """The number of parameters' elements that the tool handled, among all that operators computed with."""
        return self._parameters.covered()

    def _omissions(self) -> list[Unseen]:
        return evidence.facts("unhandled", self._parameters.left_alone())


class Use(NamedTuple):
    parameter: Parameter
    place: Place
    reads_data: bool  # false if it computes only with parameters
    inner: frozenset[int | None]  # inner operators that the tool knows


class _Thread(threading.local):
    """Analyses on this thread."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []  # operators that the tool knows, in their order
        self.begun: dict[int | None, int] = {}  # operators that run, and how many were asked before


class _Looking(Tool):
    def __init__(self, use: ParameterUse, name: str) -> None:
        super().__init__(f"{name}.parameters")
        self.add_inst_for_op(use.begin, optional=True)
        self.add_inst_for_op(use.look, require_outputs=True, optional=True)


def _framework(context: OpContext) -> Any:
    """The module of this package for the operator's framework; None if there is none."""
    if is_torch(context):
        return importlib.import_module(f"{__name__}.of_torch")
    if not context.is_symbolic:
        return None
    kind = "of_tensorflow" if is_tensorflow(context) else "of_graph"
    return importlib.import_module(f"{__name__}.{kind}")


def _listed(rows: Iterable[Unhandled]) -> str:
    """The rows as text, by operator, those with the most elements first."""
    by_operator: dict[str, list[Unhandled]] = collections.defaultdict(list)
    for row in rows:
        by_operator[row.name].append(row)
    sizes = {name: sum(row.elements for row in of_one) for name, of_one in by_operator.items()}
    names = sorted(sizes, key=lambda name: -sizes[name])
    texts = [
        f"{name} ×{len({row.op_id for row in by_operator[name]})} "  # noqa: RUF001
        f"({by_operator[name][0].parameter}{', …' if len(by_operator[name]) > 1 else ''})"
        for name in names[:MOST_LISTED]
    ]
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(texts) + more
