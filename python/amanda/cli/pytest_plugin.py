"""Runs the tests of pytest under tools. `amanda_pytest` registers it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from amanda import _core
from amanda.cli.tool_list import NamedTool, Settings, check_by, made, tables
from amanda.core import unmatched
from amanda.core.scope import apply


class _Results(NamedTuple):
    """The tools' findings in one process. They are plain values, because pytest-xdist sends them from its workers."""

    operators: int
    tests: int
    tables: list[tuple[str, str]]  # names of tools, and the text of their tables
    remarks: list[str]


class TestsInScope:
    """Each test's own code runs in one scope. Fixtures run outside.

    Arguments:
        config: with the options of `amanda_pytest`.

    Raises:
        pytest.UsageError: a tool cannot be made, or an option does not fit.
    """

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        self._by, self._top = config.getoption("--amanda-by"), config.getoption("--amanda-top")
        try:
            if self._top < 0:
                raise ValueError(f"--amanda-top is a number of rows, got {self._top}")
            self._tools: list[NamedTool] = made(Settings(tools=config.getoption("--amanda")), [])
            check_by(self._tools, self._by)
            self._scope = apply(*(tool for _, tool in self._tools))
        except (ValueError, TypeError, ImportError, OSError, _core.Error) as error:
            raise pytest.UsageError(f"--amanda: {error}") from None
        self._scope._end.detach()  # no test may run, or workers of pytest-xdist do
        self._scope._tell_unmatched = self._note
        self._tests = 0
        self._unmatched: list[_core.Unmatched] = []
        self._of_workers: dict[str, _Results] = {}

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside what captures output
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        self._tests += 1
        with self._scope:
            return (yield)

    def _note(
        self, found: Sequence[_core.Unmatched], counts: unmatched.Counts, partly: Callable[[], list[str]]
    ) -> None:
        """Unmatched filters are reported at the end: other tests may run what this one did not, and a test may make
        warnings errors."""
        self._unmatched += found

    # ---- results ----------------------------------------------------------------------------------------------------

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        of_worker: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if of_worker is not None:
            of_worker["amanda"] = [*self._results()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        name, output = node.gateway.id, getattr(node, "workeroutput", {}).get("amanda")
        lost = _Results(0, 0, [], [f"the results of worker {name} are lost: it was ended"])
        self._of_workers[name] = _Results(*output) if output else lost

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        found = dict(sorted(self._of_workers.items())) or {"": self._results()}
        terminalreporter.section("amanda")
        operators = sum(one.operators for one in found.values())
        tests = sum(one.tests for one in found.values())
        names = ", ".join(name for name, _ in self._tools)
        terminalreporter.line(f"{_counted(operators, 'operator')} ran in {_counted(tests, 'test')}, under {names}")
        for remark in dict.fromkeys(remark for one in found.values() for remark in one.remarks):
            terminalreporter.line(remark)
        for worker, one in found.items():
            for name, text in one.tables:
                terminalreporter.section(f"amanda: {name}, {worker}" if worker else f"amanda: {name}")
                terminalreporter.line(text)

    def _results(self) -> _Results:
        known, types = self._scope.cache_info(), [name for name, _ in self._scope._core.analysed_types()]
        never = [one for one in self._unmatched if not _has_run(one, types)]
        texts = [(named.name, text) for named in self._tools for text in self._texts(named)]
        remarks = unmatched.texts(never, self._scope._counts) + self._scope._partly_unmatched()
        return _Results(known.hits + known.currsize, self._tests, texts, remarks)

    def _texts(self, named: NamedTool) -> list[str]:
        try:
            return [str(table) for _, table in tables([named], self._by, self._top, None)]
        except Exception as error:  # the other tools' are printed
            return [f"can't print the table: {type(error).__name__}: {error}"]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _has_run(one: _core.Unmatched, types: Iterable[str]) -> bool:
    """True if tests have run what a routine asks for. If it asks for modules, that is unknown, and assumed to be
    true."""
    patterns = [pattern.partition(".")[0] for pattern in one.ops]  # without overloads, as `types`
    return bool(one.modules) or any(
        fnmatch.fnmatchcase(name if "::" in pattern else name.rpartition("::")[2], pattern)
        for name in types
        for pattern in patterns
    )
