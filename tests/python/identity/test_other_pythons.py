"""The walk reads the interpreter's own frames, whose layout differs between versions of Python: it is built for the
others that are on this machine, and compared with their public functions."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

HERE = Path(__file__).parent


def include_of(python, environment):
    """The folder of the Python's headers; None: it cannot run, or has none."""
    if not shutil.which(python):
        return None
    program = "import sysconfig; print(sysconfig.get_path('include'))"
    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, env=environment)
    include = Path(ran.stdout.strip() or "none")
    return include if (include / "Python.h").exists() else None


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_walk_on_another_python(version, tmp_path):
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"all other tests run on Python {version}")
    python = f"python{version}"
    environment = os.environ | {"PYENV_VERSION": version}  # where pyenv chooses it
    include = include_of(python, environment)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not include or not compiler:
        pytest.skip(f"needs a C++ compiler, and {python} with its headers")
    driver = ROOT / "drivers/torch"
    subprocess.run(
        [
            compiler, "-std=c++20", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-isystem", include, "-I", driver,
            HERE / "frame_walk.cpp", driver / "python/identity/last_walk.cpp", "-o", tmp_path / "frame_walk.so",
        ],
        check=True,
    )  # fmt: skip
    ran = subprocess.run(
        [python, HERE / "walk_in_this_python.py", tmp_path], capture_output=True, text=True, env=environment
    )
    assert ran.stdout == f"{version}: the walks agree; 3 different paths\n", ran.stderr
