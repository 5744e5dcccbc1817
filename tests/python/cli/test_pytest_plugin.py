"""`pytest --amanda`: tests under a tool. In processes of their own: the plugin is not active in this one."""

import textwrap

TESTS = """
    import unittest
    import torch

    def test_good():
        torch.relu(torch.ones(3))

    class TestMore(unittest.TestCase):
        def test_that_is_no_function(self):
            self.assertTrue(torch.relu(torch.ones(3)).all())

    def test_bad():
        zero = torch.zeros(3)
        assert (zero / zero).sum() is not None
"""


def run_tests(run_python, tmp_path, *arguments):
    (tmp_path / "test_model.py").write_text(textwrap.dedent(TESTS))
    return run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "amanda_pytest", *arguments)


def test_each_test_runs_under_the_tools(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "nan", "--amanda", "profile", "--amanda-top", "1")
    assert done.returncode == 1
    assert (
        "E           amanda.tools.nonfinite.finding.NonfiniteError: [nan] aten::div produced the first NaN"
        in done.stdout
    )
    assert "1 failed, 2 passed" in done.stdout
    table = done.stdout.partition("= amanda: profile =")[2]
    assert "more)" in table
    assert "total" in table


def test_nothing_is_imported_unless_asked(run_python, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure(): assert not [name for name in sys.modules if name.split('.')[0] == 'amanda']\n"
    )
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    done = run_python("-m", "pytest", "-q", "-p", "amanda_pytest", "test_nothing.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tool_that_needs_steps(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "amanda.tools.history:History")
    assert done.returncode == 4
    assert done.stderr.startswith("ERROR: --amanda: [scope] 'history' works step by step: use `with amanda.scheduled(")


def test_an_unknown_tool(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "nann")
    assert done.returncode == 4
    assert done.stderr.startswith("ERROR: --amanda: no tool is named 'nann'; known are activation_pruning, ")
