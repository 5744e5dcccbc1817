"""Runs Amanda's commands in a process of their own."""

import os
import subprocess
import sys

import pytest
from preloaded import ONE_THREAD, WARNINGS, read_at_start


@pytest.fixture
def new_python(tmp_path):
    """new_python(*arguments): the finished process, which ran in `tmp_path`."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *WARNINGS, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | ONE_THREAD,
        )

    return run


@pytest.fixture
def run_python(tmp_path, preloaded, new_python):
    """The same, where it may be that PyTorch, Amanda and pytest are imported already."""

    def run(*arguments):
        if arguments[0] == "-m" and read_at_start() == preloaded.settings:
            return preloaded.run(*arguments, folder=tmp_path)
        return new_python(*arguments)

    return run
