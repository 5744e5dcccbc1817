"""`make versions`: what it tries, and the table that it writes. It runs for hours, and is not run here."""

import importlib
import sys

import pytest
from repository import ROOT


@pytest.fixture
def module(monkeypatch):
    """module("table"): a module of scripts/versions."""
    names = "pairs", "environment", "junit", "trial", "table", "command"
    monkeypatch.syspath_prepend(ROOT / "scripts" / "versions")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_what_it_tries_exists(module):
    pairs = module("pairs")
    for files in pairs.SUITES.values():
        assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(pairs.SLICE) < pairs.SUITES.keys()
    assert [folder for folder in pairs.CPP_TESTS if not (ROOT / "tests" / folder / "CMakeLists.txt").exists()] == []
    assert {"3.11", "3.12", "3.13", "3.14"} == {pair.python for pair in pairs.PAIRS}
    assert {"2.11", "2.12", "2.13", "2.14"} == {pair.torch.rpartition(".")[0] for pair in pairs.PAIRS}


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
        "C++": module("junit").Suite(passed=5),
        "forward": module("junit").Suite(7, 2, ["one"]),
        "tools": module("junit").Suite(error="stopped"),
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
        "<testcase classname='tests.python.tools.test_run_of_tool.TestIt' name='c'><error/></testcase>"
        "<testcase classname='tests.python.tools.test_run_of_tool' name='d'><skipped/></testcase>"
        "<testcase classname='' name='tests.python.core.test_broken'><error/></testcase>"
        "</testsuite></testsuites>"
    )
    junit = module("junit")
    run, broken = "core.test_run::b", "::tests.python.core.test_broken"
    tool = "tools.test_run_of_tool.TestIt::c"
    assert junit.read(file) == junit.Suite(passed=1, skipped=1, failed=[run, tool, broken])
    assert junit.read(file, ("tests/python/core/test_run.py",)) == junit.Suite(passed=1, failed=[run])
    assert junit.read(file, ("tests/python/core",)) == junit.Suite(passed=1, failed=[run, broken])
    assert junit.read(file, ("tests/python/tools/test_run.py",)) == junit.Suite()
    assert junit.read(tmp_path / "none.xml") == junit.Suite(error="its runner failed")


@pytest.mark.parametrize(
    ("suite", "end", "status"),
    [
        (None, "not tried: no Python", 0),
        ({"passed": 3, "skipped": 1}, "passed", 0),
        ({"passed": 3, "failed": ["one"]}, "failed: see build/versions/3.12-2.11.0", 1),
        ({}, "failed: see build/versions/3.12-2.11.0", 1),  # no test ran
        ({"passed": 3, "error": "stopped"}, "failed: see build/versions/3.12-2.11.0", 1),
    ],
)
def test_the_last_line_and_the_exit_status(module, tmp_path, monkeypatch, capsys, suite, end, status):
    """In CI: only some suites run, and the page stays as it is."""
    versions, trial, pairs = module("command"), module("trial"), module("pairs")
    result = trial.Result("3.12:2.11.0", installed="no Python")
    if suite is not None:
        suites = {"C++": module("junit").Suite(**suite)}
        result = trial.Result("3.12:2.11.0", installed="yes", builds="yes", imports="yes", suites=suites)
    asked = []
    monkeypatch.setattr(trial, "run", lambda *arguments, **options: asked.append((*arguments, options)) or result)
    monkeypatch.setattr(module("table"), "write", None)
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    (tmp_path / "3.12-2.11.0").mkdir()
    monkeypatch.setattr(sys, "argv", ["versions", "--slice", "3.12:2.11.0"])
    with pytest.raises(SystemExit) as ended:
        versions.main()
    assert ended.value.code == status
    assert asked == [(("3.12", "2.11.0"), pairs.SLICE, {"optimized": False})]
    assert capsys.readouterr().out.splitlines()[-1] == f"[versions] 3.12:2.11.0 {end}"


def test_a_build_that_fails_has_failed(module):
    trial = module("trial")
    assert not trial.succeeded(trial.Result("3.12:2.11.0", installed="yes", builds="no: see build.log"))


def test_packages_are_installed_again_if_others_are_wanted(module, tmp_path, monkeypatch):
    environment = module("environment")
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    installed = []
    monkeypatch.setattr(environment.Environment, "_install", lambda self, *packages: installed.append(packages))
    made = environment.Environment(module("pairs").Pair("3.12", "2.11.0"))
    made.folder.mkdir()
    for packages in (("numpy",), ("numpy",), ("numpy", "rich")):
        monkeypatch.setattr(environment, "PACKAGES", packages)
        made._install_packages()
    constraints = made.folder / "constraints.txt"
    assert installed == [("--constraint", constraints, *packages) for packages in (("numpy",), ("numpy", "rich"))]
    assert "numpy==" in constraints.read_text()
    assert "torch==" not in constraints.read_text()
