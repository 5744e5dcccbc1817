"""The runner of PyTorch's own tests, on a few tests of ours."""

import subprocess
import sys

import pytest
from repository import ROOT

TESTS = """
import os, unittest
import torch

class Tests(unittest.TestCase):
    def test_passes(self):
        self.assertEqual((torch.ones(2) + 1).tolist(), [2.0, 2.0])

    def test_fails(self):
        self.assertEqual(1, 2)

    def test_is_skipped(self):
        self.skipTest("why not")

    @unittest.skipIf(False, "")
    def test_dies(self):
        os.abort()

    def test_after_that(self):
        torch.relu(torch.ones(2, requires_grad=True)).sum().backward()

    def test_sees_a_scope(self):
        keys = torch._C._dispatch_tls_local_include_set()
        names = ["TESTING_ONLY_GenericWrapper", "TESTING_ONLY_GenericMode", "DeferredInit"]
        self.assertFalse(any(keys.has(torch._C._parse_dispatch_key(name)) for name in names))

for name in [name for name in vars(Tests) if name.startswith("test")]:  # in the order of names, after each of these
    setattr(Tests, f"{name}_left_out", lambda self: os.abort())
"""


@pytest.mark.long
def test_every_second_test_runs_on_both_sides_and_a_difference_is_told(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_some.py").write_text(TESTS)
    command = [sys.executable, ROOT / "tests" / "pytorch_suite", tmp_path, "test_some.py", "--every", "2"]
    done = subprocess.run([*command, "--results", tmp_path / "results"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    differing = [line for line in done.stdout.splitlines() if line.startswith("DIFFERS")]
    assert differing == ["DIFFERS test_some.py::Tests::test_sees_a_scope: passed outside, failed inside"]
    columns = ["file", "tests", "passed", "failed", "skipped", "too long", "same", "allowed", "unstable", "unexplained"]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0] == columns
    assert rows[2] == ["`test_some.py`", "6", "3", "2", "1", "0", "5", "0", "0", "1"]
