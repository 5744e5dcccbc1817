"""Runs Amanda's commands in a process of their own."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def run_python(tmp_path):
    """run_python(*arguments): the finished process, which ran in `tmp_path`."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    return run
