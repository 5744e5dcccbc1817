"""docs/tools_comparison.md has every tool that edits, its lines are counted, and what measures accuracy runs."""

import ast
import concurrent.futures
import functools
import importlib
import re
import runpy
import sys

import pytest
import torch
from repository import ROOT

PAGE = ROOT / "docs" / "tools_comparison.md"
TESTS = ROOT / "tests" / "python"
INDEX = (ROOT / "docs" / "tools.md").read_text()


@pytest.fixture
def module(monkeypatch):
    """Imports a module of tests/tools_table."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "bench")  # markdown_page
    monkeypatch.syspath_prepend(ROOT / "tests" / "tools_table")
    return importlib.import_module


def rows(text):
    return [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| `")]


def tools_that_edit():
    tables = re.findall(r"^\| tool \| edits \|.*\n\|.*\n((?:\|.*\n)+)", INDEX, re.MULTILINE)
    assert len(tables) == 2, "of tools, and of research"
    return re.findall(r"^\| `(\w+\.\w+)` \|", "".join(tables), re.MULTILINE)


@pytest.fixture
def written(module):
    """The page's table of this name."""
    return functools.partial(module("markdown_page").written, PAGE, "tools-table")


def test_the_page_has_every_tool_that_edits(written):
    expected = tools_that_edit()
    assert "pruning.MagnitudePruning" in expected
    assert set(expected) <= {first.strip("`") for first, *_ in rows(written("comparison"))}
    measured = {first.split("`")[1] for first, *_ in rows(written("accuracy"))}
    without = {"research.Rematerialization", "research.EffectivePath", "capture.Patch"}  # the page says why
    assert measured == set(expected) - without


def test_the_table_of_lines_is_what_the_command_writes(module, written):
    assert written("comparison") == module("comparison").markdown()


def test_the_table_of_accuracy_has_every_case(module, written):
    cases, table = module("cases").CASES, rows(written("accuracy"))
    assert [first for first, *_ in table] == [f"`{case.tool}`, {case.setting}" for case in cases]
    for case, (_, *cells) in zip(cases, table, strict=True):
        expected = [name in case.tasks and scored for name in module("tasks").TASKS for scored in (True, case.trains)]
        assert [bool(cell.strip()) for cell in cells] == expected, case.title


def test_the_tests_that_compare_with_oracles_exist(module):
    for row in module("comparison").TOOLS:
        name = row.test.partition("::")[2]
        tree = ast.parse((ROOT / module("comparison").file_of(row.test)).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, row.tool
        helpers = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        trees = [
            tree,
            *(ast.parse(path.read_text()) for path in (TESTS / "support").glob("*.py") if path.stem in helpers),
        ]
        numbers = {node.value for each in trees for node in ast.walk(each) if isinstance(node, ast.Constant)}
        assert row.steps is None or row.steps in numbers, row.tool


# ---- accuracy --------------------------------------------------------------------------------------------------------


class Here(concurrent.futures.Executor):
    """In place of new processes, whose imports take longer than all else."""

    def __init__(self, *options): ...

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.long
def test_a_quick_run_scores_every_model(module, monkeypatch, capsys):
    monkeypatch.setattr(module("accuracy").concurrent.futures, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(sys, "argv", ["tools_table", "--quick", "--tools", "FakeQuantization"])
    runpy.run_path(str(ROOT / "tests" / "tools_table" / "__main__.py"), run_name="tools_table")["main"]()
    printed = capsys.readouterr().out
    (plain,) = re.findall(r"^\| no tool \| (.*) \|$", printed, re.MULTILINE)
    (quantized,) = re.findall(r"^\| `quantization.FakeQuantization`, 8 bits \| (.*) \|$", printed, re.MULTILINE)
    before, after = ([float(cell) for cell in line.split(" | ")] for line in (plain, quantized))
    assert len(before) == len(after) == 6
    assert before[4] == 100 > after[4] > 90  # MiniLM against itself
    assert all(0 < score <= 100 for score in before + after)


def test_rows_that_are_not_measured_stay(module, written):
    accuracy, text = module("accuracy"), written("accuracy")
    assert text.startswith(accuracy.markdown(accuracy.kept(text)))


def test_a_cell_is_the_mean_over_seeds_or_says_equal(module):
    accuracy = module("accuracy")
    same, other = accuracy.Score(90.0, True), accuracy.Score(92.0, False)
    assert accuracy.cell([same, same]) == "equal"
    assert accuracy.cell([same, other]) == "91.0 ±1.4"
    assert accuracy.cell([other]) == "92.0"
    assert accuracy.cell([None, None]) == ""


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_blank_lines_comments_and_docstrings_do_not_count(module):
    text = '''"""A module's docstring.

It goes on."""

# a comment
X = 1  # counts
"""What X is."""


def f(a,
      b):
    """A docstring."""
    return """a string

# of two lines"""
'''
    assert module("code_lines").python_lines(text) == 1 + 2 + 2


def test_comments_of_cpp_do_not_count(module):
    text = """/* Two
lines. */
// one
int x = 1;  // counts

const char* y = "// no comment";  /* and */
char z = '"';  // "
"""
    assert module("code_lines").cpp_lines(text) == 3


def test_a_tools_shared_code_is_what_it_imports_from_other_tools(module):
    comparison, code_lines = module("comparison"), module("code_lines")
    own = code_lines.file_of(comparison.kind_of("pruning.MagnitudePruning"))
    assert own.name == "magnitude.py"
    names = {path.name for path in code_lines.imported(own)}
    assert {"magnitude.py", "weight_pruning.py", "skips.py"} < names
    assert not {"vectorwise.py", "results.py"} & names
