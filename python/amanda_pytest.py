"""A plugin for pytest: `pytest --amanda nan` runs every test under a tool. Amanda is imported only if that is asked for."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("amanda", "instrumentation of neural networks")
    group.addoption(
        "--amanda",
        action="append",
        default=[],
        metavar="TOOL",
        help="run every test under this tool, as `amanda run -t` names it: nan, profile, MODULE:CLASS; may be repeated",
    )
    group.addoption("--amanda-by", metavar="NAME", help="what a row of its table stands for: op, module, line")
    group.addoption("--amanda-top", type=int, default=20, metavar="N", help="rows of its table")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--amanda"):
        from amanda.cli import pytest_plugin

        config.pluginmanager.register(pytest_plugin.TestsInScope(config), "amanda-tests-in-scope")
