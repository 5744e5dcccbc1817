"""Drivers connect frameworks with the core. Not public: programs use `amanda.apply` and its options.

Each driver is a package in this folder, and `amanda/__init__.py` registers it. Modules that import the framework are
imported by `Driver.load`; the package itself can be imported without the framework.

A driver is loaded when it is registered, or when the program has imported its framework (`Driver.loaded_with`): then scopes
may be open already.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from amanda import _core, _fork
from amanda.drivers import imports


class Option(NamedTuple):
    """A keyword of `amanda.apply` that one driver reads."""

    choices: tuple[str, ...]  # the default first
    meaning: str  # for command lines


class Origin(NamedTuple):
    """The origin of a value of a graph."""

    op_id: int | None  # the operator that makes it; None if it comes from outside
    key: Hashable = None  # of a value from outside: the same for the same value
    is_parameter: bool = False  # of a value from outside: true if it outlives a run, as a variable does


class Access(NamedTuple):
    """The access of routines to the results of an operator."""

    can_replace: bool = True  # where it is no view
    hides_values: bool = False  # None stands for a result that routines do not get
    hides_inputs: bool = False  # the same of inputs
    shows_both: bool = True  # a routine after the operator can be shown its inputs, too


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
    def options(self) -> Mapping[str, Option]:
        """The driver's keywords of `amanda.apply`, by name. Scopes hold what they were given in `Scope.options`."""

    def is_available(self) -> bool:
        """True if the framework is installed, and this build has the driver."""

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        """The installed parts, as titles and texts, for `amanda doctor`. `whole`: also what takes seconds to find out."""

    def could_name(self, name: str) -> bool:
        """True if an operator of the framework could have this name, judging by its spelling. Called before `load`,
        when no other driver knows the name."""

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

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        """A context for operators that a tool runs outside of routines: coverage does not count them as the program's."""

    def access(self, namespace: str, operator: str) -> Access | None:
        """The access to the results of an operator; None if the namespace is not the driver's. `namespace` and
        `operator` are as in `OpContext.namespace` and `Operator.__name__`. Called in analyses."""

    @property
    def requires_gradient(self) -> str:
        """A call whose result requires a gradient, for messages: "call a model with ..."."""

    def remarks(self) -> list[str]:
        """Remarks for users about the scopes so far, as lines for `amanda doctor`."""


_registered: list[Driver] = []
_loaded: list[Driver] = []
_refused: list[Exception] = []  # by drivers whose framework does not fit
_lock = _fork.rlock()  # guards `_is_entered`: a framework may be imported while another thread enters a scope
_is_entered = False


def register(driver: Driver) -> None:
    """Makes a driver known, and loads it if its framework is installed: now, or when the program imports that."""
    _registered.append(driver)
    if not driver.is_available():
        return
    if driver.loaded_with is None:
        driver.load()
        _add(driver)
    else:
        imports.when_imported(driver.loaded_with, functools.partial(_load_late, driver))


def _load_late(driver: Driver) -> None:
    """The program imports the framework, and must not fail because of us."""
    try:
        driver.load()
    except Exception as refused:
        _refused.append(refused)
        warnings.warn(str(refused), stacklevel=2)
        return
    _add(driver)


def _add(driver: Driver) -> None:
    with _lock:
        _loaded.append(driver)
        if _is_entered:
            driver.enter()


def registered() -> Sequence[Driver]:
    return _registered


def loaded() -> Sequence[Driver]:
    imports.tell()
    return _loaded


def waiting() -> Sequence[Driver]:
    """The drivers that are loaded when the program imports their framework."""
    return [driver for driver in _registered if driver.loaded_with in imports.awaited()]


def refusal() -> str | None:
    """The reason why tools see nothing: an imported framework does not fit, and no other driver is loaded. Otherwise
    None."""
    return str(_refused[-1]) if _refused and not _loaded else None


def checked(given: Mapping[str, object]) -> dict[str, str]:
    """Checks the options of all drivers, loaded or not, and fills in defaults.

    Raises:
        ValueError: an option has no such choice.
    """
    known = {name: option for driver in _registered for name, option in driver.options.items()}
    options = {}
    for name, value in given.items():
        choices = known[name].choices
        if not isinstance(value, str) or value not in choices:
            expected = " or ".join(f'"{choice}"' for choice in choices)
            raise ValueError(f"[scope] {name} is {expected}, got {value!r}")
        options[name] = value
    return options


def make_coverage_counters(tools: list[int]) -> list[CoverageCounter]:
    """One counter per driver that counts.

    Raises:
        amanda.Error: there is none.
    """
    present = [*loaded(), *waiting()]
    made = [counter for driver in present if (counter := driver.make_coverage_counter(tools)) is not None]
    if not made:
        names = " or ".join(driver.framework for driver in _registered)
        absent = f"{names} is not" if len(_registered) == 1 else "neither is"
        raise _core.Error(
            f"[scope] coverage counts what {names} is asked for, and {absent} installed, or this build has no driver for "
            "it; apply the tools without coverage=True"
        )
    return made


@contextlib.contextmanager
def preserved(program: object) -> Iterator[None]:
    """A context of a run of `program`; restores what the run changes in addition to its results."""
    with contextlib.ExitStack() as kept:
        for driver in loaded():
            kept.enter_context(driver.preserved(program))
        yield


@contextlib.contextmanager
def recorded() -> Iterator[Callable[[object], None]]:
    """A context of a run of a program; makes its result differentiable. The function, called inside with the
    result, runs its backward operators.

    The function raises:
        ValueError: nothing in the result requires a gradient.
    """
    with contextlib.ExitStack() as recordings:
        differentiates = [recordings.enter_context(driver.recorded()) for driver in loaded()]

        def differentiate(result: object) -> None:
            if any(one(result) for one in differentiates):
                return
            advice = ", or ".join(driver.requires_gradient for driver in loaded())
            raise ValueError(
                "[points] backward=True: nothing in the result requires a gradient; "
                f"{advice or 'no framework is imported that could compute one'}; the result is of type "
                f"{type(result).__name__}"
            )

        yield differentiate


def origins_of(symbol: object) -> Sequence[Origin] | None:
    """The origins of a symbol of a graph, as in `Driver.origins`; None if no driver knows them."""
    found = (driver.origins(symbol) for driver in loaded())
    return next((origins for origins in found if origins is not None), None)


def access_to(namespace: str, operator: str) -> Access:
    """To the results of an operator, as `Driver.access`."""
    found = (driver.access(namespace, operator) for driver in loaded())
    return next((access for access in found if access is not None), Access(shows_both=False))


def enter() -> None:
    """The first scope of the process was opened. Call `leave` even if this raises."""
    global _is_entered
    imports.tell()
    with _lock:
        _is_entered = True
        for driver in _loaded:
            driver.enter()


def leave() -> None:
    """No scope of the process is open any more."""
    global _is_entered
    with _lock, contextlib.ExitStack() as left:
        _is_entered = False
        for driver in _loaded:
            left.callback(driver.leave)
