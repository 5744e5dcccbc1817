"""`pytest --amanda`: tests under a tool. In processes of their own: the plugin is not active in this one."""

import re
import textwrap

import pytest
from amanda.tools.profile import Profile

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


def run_tests(run_python, tmp_path, *arguments, tests=TESTS):
    (tmp_path / "test_model.py").write_text(textwrap.dedent(tests))
    return run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "amanda_pytest", *arguments)


def test_each_test_runs_under_the_tools(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "nan", "--amanda", "profile", "--amanda-top", "1")
    assert done.returncode == 1
    assert (
        "E       amanda.tools.nonfinite.finding.NonfiniteError: [nan] aten::div produced the first NaN" in done.stdout
    )
    line = TESTS[: TESTS.index("(zero / zero)")].count("\n") + 1
    assert f"test_model.py:{line}: NonfiniteError\n" in done.stdout, "the program's line, not the tool's"
    assert "1 failed, 2 passed" in done.stdout
    assert " operators ran in 3 tests, under nan, profile\n" in done.stdout
    table = done.stdout.partition("= amanda: profile =")[2]
    assert "more)" in table
    assert "total" in table


def test_nothing_is_imported_unless_asked(new_python, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure(): assert not [name for name in sys.modules if name.split('.')[0] == 'amanda']\n"
    )
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    done = new_python("-m", "pytest", "-q", "-p", "amanda_pytest", "test_nothing.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tool_that_needs_steps(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "amanda.tools.history:History")
    assert done.returncode == 4
    assert done.stderr.startswith("ERROR: --amanda: [scope] 'history' works step by step: use `with amanda.scheduled(")


def test_an_unknown_tool(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "nann")
    assert done.returncode == 4
    assert done.stderr.startswith(
        "ERROR: --amanda: no tool is named 'nann'; did you mean 'nan'? known are activation_pruning, "
    )


ALL_KINDS = '''
    """
    >>> import torch
    >>> torch.relu(torch.ones(1)).item()
    1.0
    >>> torch.relu(torch.ones(1)).item()
    2.0
    """

    import asyncio, os, unittest, warnings
    import amanda, pytest, torch
    from amanda.tools.profile import Profile

    @pytest.fixture(scope="module")
    def model():
        torch.manual_seed(0)
        yield torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        assert torch.isnan(torch.zeros(1) / torch.zeros(1))  # a fixture's: no tool sees it

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_good(model, value):
        model(torch.full((1, 2), value)).sum().backward()

    def test_wrong(model):
        assert model(torch.ones(1, 2)).sum().item() == 100

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_nan(size):
        """Each of them fails under the tool, though it is the same line."""
        assert torch.isnan(torch.zeros(size) / torch.zeros(size)).all() or True

    def test_that_catches_what_it_expects():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.ones(2, 3) @ torch.ones(2, 3)

    def test_with_a_scope_of_its_own(model):
        profile = Profile()
        with amanda.apply(profile):
            model(torch.ones(1, 2))
        assert [row.calls for row in profile.rows("op")] == [1, 1]

    @pytest.mark.skip(reason="a reason")
    def test_skipped():
        raise AssertionError

    def test_skips_itself():
        torch.ones(1)
        pytest.skip("inside")

    @pytest.mark.xfail(strict=True)
    def test_expected():
        raise ValueError(torch.ones(1))

    @pytest.mark.xfail(strict=True)
    def test_unexpected(): torch.ones(1)

    @pytest.mark.filterwarnings("error")
    def test_warnings_are_errors(): torch.exp(torch.ones(1))

    def test_stops():
        raise StopIteration

    class TestCase(unittest.TestCase):
        def setUp(self): self.x = torch.ones(1)
        def test_subtests(self):
            for i in range(2):
                with self.subTest(i=i): self.assertEqual(torch.relu(self.x * i).item(), 1)
        @unittest.expectedFailure
        def test_expected(self): self.fail()

    class TestAsync(unittest.IsolatedAsyncioTestCase):
        async def test_of_two(self):
            async def one(): await asyncio.sleep(0); return torch.relu(torch.ones(1))
            self.assertEqual(len(await asyncio.gather(one(), one())), 2)

    def test_with_an_error_at_its_end(request):
        request.addfinalizer(lambda: 1 / 0)
'''


def outcomes(done):
    """Of each test of pytest's: its name and what became of it."""
    lines = done.stdout.partition("short test summary info")[2].splitlines()
    return {
        line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR", "PASSED", "SKIPPED", "X", "SUBF"))
    }


def test_each_test_ends_as_without_the_plugin(run_python, tmp_path):
    options = ("-rA", "--doctest-modules", "--tb=no")
    alone = outcomes(run_tests(run_python, tmp_path, *options, tests=ALL_KINDS))
    assert len(alone) > 20
    observed = run_tests(run_python, tmp_path, *options, "--amanda", "flops", "--amanda", "profile", tests=ALL_KINDS)
    assert outcomes(observed) == alone
    raising = outcomes(run_tests(run_python, tmp_path, *options, "--amanda", "nan", tests=ALL_KINDS))
    nan = [f"test_model.py::test_nan[{size}]" for size in (1, 2, 3)]
    assert raising - alone == {f"FAILED {name}" for name in nan}
    assert alone - raising == {f"PASSED {name}" for name in nan}


FAILING = """
    import torch

    def test_first():
        torch.ones(2, 2) @ torch.ones(2, 2)
        raise ValueError("the test's")

    def test_second():
        raise AssertionError
"""


def test_the_first_failure_ends_the_run_and_what_was_found_is_printed(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "-x", "--amanda", "flops", tests=FAILING)
    assert done.returncode == 1
    assert "test_model.py:6: ValueError" in done.stdout
    assert "pytest_plugin.py" not in done.stdout
    printed = done.stdout.partition("= amanda =")[2]
    assert re.search(r"operators ran in 1 test, under flops\n=+ amanda: flops =+\n *\n op +module", printed)


ASKING = """
    import amanda

    class Asks(amanda.Tool):
        def __init__(self, ops):
            super().__init__()
            self.add_inst_for_op(lambda context: None, ops=ops)
"""


def test_a_filter_that_matches_in_no_test_is_told_of_at_the_end(run_python, tmp_path):
    (tmp_path / "asks.py").write_text(textwrap.dedent(ASKING))
    tests = "import torch\ndef test_one(): torch.exp(torch.ones(1))\ndef test_two(): torch.relu(torch.ones(1))\n"
    arguments = ("-W", "error", "--amanda", "asks:Asks('relu')", "--amanda", "asks:Asks(ops='cos*')")
    done = run_tests(run_python, tmp_path, *arguments, tests=tests)
    assert done.returncode == 0, done.stdout
    assert "'cos*' of tool 'Asks' matched nothing that ran" in done.stdout
    assert "'relu'" not in done.stdout


def test_where_no_test_runs_nothing_is_told_of(run_python, tmp_path):
    done = run_tests(run_python, tmp_path, "--amanda", "profile", "--collect-only")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "--amanda-by", "epoch"), f"--by is {', '.join(Profile().groupings())}; got 'epoch'"),
        (("profile", "--amanda-top", "-1"), "--amanda-top is a number of rows, got -1"),
        (
            ("memory", "--amanda", "memory"),
            "[scope] got two tools of type PeakMemory, and a scope can have one: PyTorch's",
        ),
    ],
)
def test_mistakes_are_found_before_tests_run(run_python, tmp_path, arguments, message):
    done = run_tests(run_python, tmp_path, "--amanda", *arguments)
    assert done.returncode == 4
    assert done.stderr.startswith(f"ERROR: --amanda: {message}")


def test_workers_of_xdist_hand_in_their_tables(run_python, tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    done = run_tests(run_python, tmp_path, "-n", "2", "-p", "xdist", "--amanda", "nan", "--amanda", "profile")
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 failed, 2 passed" in done.stdout
    assert "operators ran in 3 tests, under nan, profile\n" in done.stdout
    assert [f"= amanda: profile, gw{i} =" in done.stdout for i in (0, 1)] == [True, True]
