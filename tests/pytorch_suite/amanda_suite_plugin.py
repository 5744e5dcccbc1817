"""A pytest plugin for one process of the runner: opens a scope around each test, and writes down how each one ends.

It is told what to do by the environment:
    AMANDA_SUITE_RECORD   the file for the outcomes, one JSON object a line: {"test", "outcome", "why", "seconds"};
                          a line with the outcome "started" alone tells which test a process died in
    AMANDA_SUITE_SCOPE    1: with a scope; 0: outside
    AMANDA_SUITE_ONLY     a file with the tests to run, one a line; all, if not given
    AMANDA_SUITE_EVERY    of the tests, every n-th only
    AMANDA_SUITE_SKIP     a file with tests that are not to run again
"""

import json
import os
import re
import time
from pathlib import Path

import amanda
import older
import pytest
from faithful import Look

RECORD = Path(os.environ["AMANDA_SUITE_RECORD"])
IN_SCOPE = os.environ["AMANDA_SUITE_SCOPE"] == "1"

WORST_LAST = ["passed", "skipped", "xfailed", "xpassed", "failed"]
outcomes: dict[str, tuple[str, str]] = {}
begun: dict[str, float] = {}


def pytest_configure(config):
    for path in config.args:
        older.supply(Path(path).read_text())


def lines_of(variable):
    path = os.environ.get(variable)
    return None if path is None or not Path(path).exists() else set(Path(path).read_text().splitlines())


def write(**record):
    with RECORD.open("a") as file:
        file.write(json.dumps(record) + "\n")


def name_of(item_or_report):
    return item_or_report.nodeid.split("/")[-1]


def pytest_collection_modifyitems(items):
    only, skip = lines_of("AMANDA_SUITE_ONLY"), lines_of("AMANDA_SUITE_SKIP") or set()
    every = int(os.environ["AMANDA_SUITE_EVERY"])
    items[:] = [
        item for item in items[::every] if (only is None or name_of(item) in only) and name_of(item) not in skip
    ]


def pytest_runtest_logstart(nodeid):
    name = nodeid.split("/")[-1]
    begun[name] = time.perf_counter()
    write(test=name, outcome="started", why="", seconds=0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not IN_SCOPE:
        return (yield)
    with amanda.apply(Look()):
        return (yield)


def pytest_runtest_logreport(report):
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xpassed" if outcome == "passed" else "xfailed"
    why = ""
    if outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
        # What differs from process to process says nothing.
        why = re.sub(r"0x[0-9a-f]+", "0x…", "\n".join(why.splitlines()[:12]))[:1200]
    name = name_of(report)
    before = outcomes.get(name, ("passed", ""))
    if WORST_LAST.index(outcome) >= WORST_LAST.index(before[0]):
        outcomes[name] = (outcome, why)


def pytest_runtest_logfinish(nodeid):
    name = nodeid.split("/")[-1]
    outcome, why = outcomes.pop(name, ("passed", ""))
    write(test=name, outcome=outcome, why=why, seconds=round(time.perf_counter() - begun[name], 3))


def pytest_collectreport(report):
    if report.failed:
        write(test=f"{name_of(report)}::(collection)", outcome="failed", why=str(report.longrepr)[-1200:], seconds=0)
