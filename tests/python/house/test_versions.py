"""`make versions`: what it tries, and the table that it writes. It runs for hours, and is not run here."""

import importlib
import sys

import pytest
from repository import ROOT


@pytest.fixture
def module(monkeypatch):
    """module("table"): a module of scripts/versions."""
    names = "pairs", "environment", "trial", "table"
    monkeypatch.syspath_prepend(ROOT / "scripts" / "versions")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_what_it_tries_exists(module):
    pairs = module("pairs")
    for files in pairs.SUITES.values():
        assert [file for file in files if not (ROOT / file).exists()] == []
    assert {"3.11", "3.12", "3.13"} == {pair.python for pair in pairs.PAIRS}
    assert {"2.11", "2.12", "2.13"} == {pair.torch.rpartition(".")[0] for pair in pairs.PAIRS}


def test_pairs_as_text(module):
    pairs = module("pairs")
    assert pairs.Pair.parse("3.12:2.11.0") == ("3.12", "2.11.0")
    assert str(pairs.Pair("3.12", "2.11.0")) == "3.12:2.11.0"
    with pytest.raises(ValueError, match=r'a pair is a Python and a torch, as "3.12:2.11.0"; got "2.11"'):
        pairs.Pair.parse("2.11")


def test_a_python_that_is_missing_is_said(module, tmp_path, monkeypatch):
    trial, environment, table = module("trial"), module("environment"), module("table")
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    result = trial.run(module("pairs").Pair("3.99", "2.13.0"))
    why = "no Python 3.99 is on the PATH or among pyenv's"
    assert result.installed == why
    assert table.row(result) == f"| 3.99, 2.13.0 | not tried |  | could not be installed: {why} | none known |"


def test_the_rows_of_other_pairs_stay(module, tmp_path, monkeypatch):
    trial, table = module("trial"), module("table")
    page = tmp_path / "page.md"
    page.write_text(
        f"before\n{table.BEGIN}{table.HEAD}| 3.11, 2.13.0 | old |\n| 3.13, 2.13.0 | old |\n{table.END}after\n"
    )
    monkeypatch.setattr(table, "PAGE", page)
    suites = {
        "C++": trial.Suite(passed=5),
        "forward": trial.Suite(7, 2, ["one"]),
        "tools": trial.Suite(error="stopped"),
    }
    new = trial.Result("3.12:2.11.0", installed="yes", builds="yes", imports="yes", suites=suites)
    table.write([new])
    table.write([new])
    assert page.read_text().splitlines() == [
        "before",
        *(table.BEGIN + table.HEAD).splitlines(),
        "| 3.11, 2.13.0 | old |",
        f"| 3.12, 2.11.0 | yes | yes | C++ 5; forward 7 of 8, 2 skipped; tools (stopped) | {table.LIMITS['2.11']} |",
        "| 3.13, 2.13.0 | old |",
        table.END.strip(),
        "after",
    ]


def test_how_tests_ended(module, tmp_path):
    file = tmp_path / "suite.xml"
    file.write_text(
        "<testsuites><testsuite><testcase classname='tests.python.core.test_run' name='a'/>"
        "<testcase classname='tests.python.core.test_run' name='b'><failure/></testcase>"
        "<testcase classname='x' name='c'><error/></testcase><testcase classname='x' name='d'><skipped/></testcase>"
        "</testsuite></testsuites>"
    )
    trial = module("trial")
    assert trial._read(file) == trial.Suite(passed=1, skipped=1, failed=["core.test_run::b", "x::c"])
    assert trial._read(tmp_path / "none.xml") == trial.Suite(error="its runner failed")
