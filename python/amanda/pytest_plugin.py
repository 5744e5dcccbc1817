"""Runs the tests of pytest under tools. `amanda_pytest` registers it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from amanda.cli.tool_list import NamedTool, Settings, made, tables
from amanda.scope import apply


class TestsInScope:
    """Each test's own code runs in one scope. Fixtures run outside.

    Arguments:
        config: with the options of `amanda_pytest`.

    Raises:
        pytest.UsageError: a tool cannot be made.
    """

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        try:
            self._tools: list[NamedTool] = made(Settings(tools=config.getoption("--amanda")), [])
            self._scope = apply(*(tool for _, tool in self._tools))
        except (ValueError, TypeError, ImportError, OSError) as error:
            raise pytest.UsageError(f"--amanda: {error}") from None
        self._by, self._top = config.getoption("--amanda-by"), config.getoption("--amanda-top")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        with self._scope:
            return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        distributed = terminalreporter.config.pluginmanager.hasplugin("dsession")
        for name, table in tables(self._tools, self._by, self._top, None):
            terminalreporter.section(f"amanda: {name}")
            if distributed:
                terminalreporter.line("tables are not collected from pytest-xdist's workers; run without -n")
            else:
                terminalreporter.line(str(table))
