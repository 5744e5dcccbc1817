"""The drivers that are registered, and those that are loaded. Not public: programs use `amanda.apply` and its options.

`amanda/__init__.py` registers each driver. Modules that import the framework are imported by `Driver.load`.

A driver is loaded when it is registered, or when the program has imported its framework (`Driver.loaded_with`): then scopes
may be open already.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amanda import _core
from amanda.core import fork
from amanda.driver import imports
from amanda.driver.protocol import Access, CoverageCounter, Driver, Origin, VariableValue
from amanda.driver.vocabulary import Vocabulary

_registered: list[Driver] = []
_loaded: list[Driver] = []
_refused: list[Exception] = []  # by drivers whose framework does not fit
_lock = fork.rlock()  # guards `_is_entered`: a framework may be imported while another thread enters a scope
_is_entered = False
_Listener = tuple[Callable[[Any], object], Callable[[Any], object]]
_listeners: list[tuple[_Listener, list[Callable[[], object]]]] = []  # to optimizers, and what ends that of each driver


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
    for module, callback in driver.import_hooks.items():
        imports.when_imported(module, callback)


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
        for listener, stops in _listeners:
            stops.append(driver.listen_to_optimizers(*listener))
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


def _frameworks() -> str:
    """ "PyTorch, TensorFlow or ONNX Runtime"."""
    *others, last = [driver.framework for driver in _registered]
    return f"{', '.join(others)} or {last}" if others else last


def absence() -> str | None:
    """The reason why tools will see nothing of a program: no framework is installed that a driver fits. Otherwise None."""
    if _loaded or waiting():
        return None
    return (
        f"no {_frameworks()} that this amanda has a driver for is installed for {sys.executable}, so tools see nothing; "
        "`amanda doctor` says what would fit"
    )


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
        names = _frameworks()
        absent = f"{names} is not" if len(_registered) == 1 else "none of them is"
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


def variable_of(symbol: object) -> VariableValue | None:
    """As `Driver.variable_of`; None if no driver knows it."""
    found = (driver.variable_of(symbol) for driver in loaded())
    return next((value for value in found if value is not None), None)


def is_array(symbol: object) -> bool:
    """As `Driver.is_array`, of the driver that knows the symbol."""
    return any(driver.is_array(symbol) for driver in loaded())


def listen_to_optimizers(before: Callable[[Any], object], after: Callable[[Any], object]) -> Callable[[], None]:
    """As `Driver.listen_to_optimizers`, of all drivers, also of those that are loaded later."""
    with _lock:
        listening: tuple[_Listener, list[Callable[[], object]]] = (before, after), []
        _listeners.append(listening)
        listening[1].extend(driver.listen_to_optimizers(before, after) for driver in _loaded)

    def stop() -> None:
        with _lock:
            _listeners.remove(listening)
            for each in listening[1]:
                each()

    return stop


def vocabularies() -> list[tuple[str, Vocabulary]]:
    """Those of all drivers, loaded or not, with the frameworks' names."""
    return [(driver.framework, found) for driver in _registered if (found := driver.vocabulary) is not None]


def vocabulary_of(namespace: str) -> Vocabulary | None:
    """That of the operators with this `OpContext.namespace`."""
    first = namespace.partition("/")[0]
    return next((found for _, found in vocabularies() if found.namespace == first), None)


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
