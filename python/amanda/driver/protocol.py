"""The protocol of a driver, as the Python package uses it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from amanda.driver.vocabulary import Vocabulary


class Option(NamedTuple):
    """A keyword of `amanda.apply` that one driver reads."""

    choices: tuple[str, ...]  # the default first
    meaning: str  # for command lines


class Origin(NamedTuple):
    """The origin of a value of a graph."""

    op_id: int | None  # the operator that makes it; None if it comes from outside
    key: Hashable = None  # of a value from outside: the same for the same value
    is_parameter: bool = False  # of a value from outside: true if it outlives a run, as a variable does


class VariableValue(NamedTuple):
    """The variable whose value a symbol is: what outlives a run of the graph, and an edit of it may be shared."""

    key: object  # identifies the variable in all graphs that read it
    name: str  # "dense/kernel"
    variable: weakref.ref[Any] | None  # the framework's object, if there is one that is known
    in_order: bool  # the elements come in the variable's order, whatever the shape
    elements: int | None = None  # their number; None if it is not known
    rank: int | None = None


class Access(NamedTuple):
    """The access of routines to the results of an operator."""

    can_replace: bool = True  # where it is no view
    hides_values: bool = False  # None stands for a result that routines do not get
    hides_inputs: bool = False  # the same of inputs
    shows_both: bool = True  # a routine after the operator can be shown its inputs, too
    has_backward: bool = True  # routines can be inserted at backward operators


class CoverageCounter(Protocol):
    """Counts the calls that the framework dispatches. A row is (operator or node, true for a node, times seen, times
    skipped by reason)."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def rows(self) -> list[tuple[str, bool, int, dict[str, int]]]: ...


class Driver(Protocol):
    """A driver, as the Python package uses it. The methods down to `make_coverage_counter` are also used before
    `load`."""

    @property
    def framework(self) -> str:
        """The framework's name in messages."""

    @property
    def loaded_with(self) -> str | None:
        """The module with which the driver is loaded when the program imports it. If it is None, `import amanda` loads
        the driver, and imports the framework if that is installed."""

    @property
    def import_hooks(self) -> Mapping[str, Callable[[], object]]:
        """Other modules, with what is called once when the program has imported one, perhaps before `load`."""

    @property
    def options(self) -> Mapping[str, Option]:
        """The driver's keywords of `amanda.apply`, by name. Scopes hold what they were given in `Scope.options`."""

    def is_available(self) -> bool:
        """True if the framework is installed, and this build has the driver."""

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        """The installed parts, as titles and texts, for `amanda doctor`. `whole`: also what takes seconds to find out."""

    def could_name(self, name: str) -> bool:
        """True if an operator of the framework could have this name, judging by its spelling. Called before `load`,
        when no other driver knows the name."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The words that stand for the driver's operators; None if there are none."""

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter | None:
        """A counter for a scope with these tools, given as numbers from `_core.Scope.tools`. None if this driver does
        not count. The driver may be loaded while the counter is open."""

    def load(self) -> None:
        """Imports the framework and attaches the driver.

        Raises:
            ImportError: the installed framework does not fit. With `loaded_with`, the program runs uninstrumented, after a
                warning with this text.
        """

    def operators(self) -> Iterable[str] | None:
        """The operators that can run now, such as "aten::add.Tensor"; None if they cannot be listed."""

    def has_operator(self, name: str) -> bool:
        """True if an operator of this name can run now, and finding it is quick. False if `operators` must be searched.
        The name is one that `ops=` takes, without wildcards."""

    def operators_named_by(self, value: object) -> Sequence[str]:
        """The names of the operators that `value` represents in the framework, for instance those that a function
        calls; empty if there are none."""

    @property
    def closed_namespaces(self) -> frozenset[str]:
        """The namespaces to which programs add no operators."""

    @property
    def namespace_of_new(self) -> str:
        """A namespace, as an example, to which programs add operators."""

    def enter(self) -> None:
        """The first scope of the process was opened, or the driver was loaded while one is open. `leave` follows, even if
        this raises."""

    def leave(self) -> None:
        """No scope of the process is open any more."""

    def preserved(self, program: object) -> contextlib.AbstractContextManager[None]:
        """A context of a run of `program`; restores what the run changes in addition to its results. See
        `amanda.points`."""

    def recorded(self) -> contextlib.AbstractContextManager[Callable[[object], bool]]:
        """A context of a run of a program; makes its result differentiable.

        The function, called inside with the result, runs its backward operators, and changes no gradient that somebody
        keeps. It returns False where nothing in the result requires a gradient.
        """

    def origins(self, symbol: object) -> Sequence[Origin] | None:
        """The origins of a symbol of a graph: one; several, if a loop or a conditional passes on one of them;
        none, if it is a number that the program wrote. The result is None if it is no symbol of this framework. Called
        in analyses."""

    def variable_of(self, symbol: object) -> VariableValue | None:
        """The variable whose value a symbol of a graph is, perhaps in another shape. None if it is computed, or no symbol
        of this framework. Called in analyses."""

    def is_array(self, symbol: object) -> bool:
        """True if a symbol of this framework stands for an array that routines can read. Called in analyses."""

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        """A context for operators that a tool runs outside of routines: coverage does not count them as the program's."""

    def listen_to_optimizers(
        self, before: Callable[[Any], object], after: Callable[[Any], object]
    ) -> Callable[[], object]:
        """Calls `before(optimizer)` and `after(optimizer)` around each step of an optimizer, on its thread; the result
        ends that. `before` may come earlier and several times, where a function is traced that steps. `after` comes once
        the function that has stepped is over."""

    def access(self, namespace: str, operator: str) -> Access | None:
        """The access to the results of an operator; None if the namespace is not the driver's. `namespace` and
        `operator` are as in `OpContext.namespace` and `Operator.__name__`. Called in analyses."""

    @property
    def requires_gradient(self) -> str:
        """A call whose result requires a gradient, for messages: "call a model with ..."."""

    def remarks(self) -> list[str]:
        """Remarks for users about the scopes so far, as lines for `amanda doctor`."""
