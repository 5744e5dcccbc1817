"""Drivers connect frameworks with the core. Not public: programs use `amanda.apply` and its options.

Each driver is a package in this folder, and `amanda/__init__.py` registers it. Modules that import the framework are
imported by `Driver.load`; the package itself can be imported without the framework.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from amanda import _core


class Option(NamedTuple):
    """A keyword of `amanda.apply` that one driver reads."""

    choices: tuple[str, ...]  # the default first
    meaning: str  # for command lines


class CoverageCounter(Protocol):
    """Counts the calls that the framework dispatches. `rows`: (operator or node, is it a node, times seen, times
    skipped by reason)."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def rows(self) -> list[tuple[str, bool, int, dict[str, int]]]: ...


class Driver(Protocol):
    """What the Python package needs from a driver. Only the first four members are used before `load`."""

    @property
    def framework(self) -> str:
        """The framework's name in messages."""

    @property
    def options(self) -> Mapping[str, Option]:
        """The driver's keywords of `amanda.apply`, by name. Scopes hold what they were given in `Scope.options`."""

    def is_available(self) -> bool:
        """Is the framework installed, and does this build have the driver?"""

    def describe(self) -> list[tuple[str, str]]:
        """What is installed, as titles and texts, for `amanda doctor`."""

    def load(self) -> None:
        """Imports the framework and attaches the driver.

        Raises:
            ImportError: the installed framework does not fit.
        """

    def operators(self) -> Iterable[str] | None:
        """The operators that can run now, as "aten::add.Tensor"; None: they cannot be listed."""

    def operator_named_by(self, value: object) -> str | None:
        """The name of the operator that `value` represents in the framework, for instance a function; None: no
        operator."""

    @property
    def closed_namespaces(self) -> frozenset[str]:
        """The namespaces to which programs add no operators."""

    def enter(self) -> None:
        """The first scope of the process was opened. `leave` follows, even if this raises."""

    def leave(self) -> None:
        """No scope of the process is open any more."""

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter | None:
        """A counter for a scope with these tools, given as numbers from `_core.Scope.tools`. None: this driver does not
        count."""

    def remarks(self) -> list[str]:
        """What users should know about the scopes so far, as lines for `amanda doctor`."""


_registered: list[Driver] = []
_loaded: list[Driver] = []


def register(driver: Driver) -> None:
    """Makes a driver known, and loads it if its framework is installed."""
    _registered.append(driver)
    if driver.is_available():
        driver.load()
        _loaded.append(driver)


def registered() -> Sequence[Driver]:
    return _registered


def loaded() -> Sequence[Driver]:
    return _loaded


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
    made = [counter for driver in _loaded if (counter := driver.make_coverage_counter(tools)) is not None]
    if not made:
        names = " or ".join(driver.framework for driver in _registered)
        raise _core.Error(
            f"[scope] coverage counts what {names} is asked for, and {names} is not installed, or this build has no driver "
            "for it; apply the tools without coverage=True"
        )
    return made


def enter() -> None:
    """The first scope of the process was opened. Call `leave` even if this raises."""
    for driver in _loaded:
        driver.enter()


def leave() -> None:
    """No scope of the process is open any more."""
    with contextlib.ExitStack() as left:
        for driver in _loaded:
            left.callback(driver.leave)
