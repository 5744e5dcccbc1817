"""scripts/wheels: the parts that compile nothing. `make wheels` tries all of it."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fresh_environment import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module():
    """module("release"): a module of scripts/wheels."""
    paths, before = [str(ROOT / "scripts" / name) for name in ("wheels", "versions")], {*sys.modules}
    sys.path[:0] = paths
    yield importlib.import_module
    del sys.path[: len(paths)]
    for name in {*sys.modules} - before & {"release", "installed", "environment", "pairs"}:
        del sys.modules[name]


def test_a_profile_that_is_saved_is_the_same_file_again(module, tmp_path):
    build = module("release").Build(Path(sys.executable), "3.99-2.99.0")
    packed = []
    for name, time in (("first", 1e9), ("second", 2e9)):
        build._profile = tmp_path / name
        build._profile.mkdir()
        for file in ("b#c.gcda", "a.gcda") if name == "first" else ("a.gcda", "b#c.gcda"):
            (build._profile / file).write_text(file)
            os.utime(build._profile / file, (time, time))
        build.pack(tmp_path / "saved" / f"{name}.tar.gz")
        packed.append((tmp_path / "saved" / f"{name}.tar.gz").read_bytes())
    assert packed[0] == packed[1]
    (build._profile / "stale.gcda").touch()
    build.unpack(tmp_path / "saved" / "first.tar.gz")
    assert {path.name: path.read_text() for path in build._profile.iterdir()} == {
        "a.gcda": "a.gcda",
        "b#c.gcda": "b#c.gcda",
    }


def test_a_wheel_is_tried_in_a_fresh_environment(module, wheel):
    def ask(program):
        return run(sys.executable, "-W", "ignore", "-c", program).strip()

    tried = module("installed").tried(wheel, SimpleNamespace(python=Path(sys.executable), ask=ask))
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"; used: {minor}, compiled with" in tried


def test_a_build_with_a_profile_needs_one(tmp_path):
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DAMANDA_BUILD_TORCH=OFF", "-DAMANDA_BUILD_TESTS=OFF"]
    command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path, *options, f"-DAMANDA_PROFILE_DIR={tmp_path}/none"]
    wrong = {
        "use": f"[build] AMANDA_PROFILE=use: {tmp_path}/none has no *.gcda files. Build with AMANDA_PROFILE=generate",
        "guided": '[build] AMANDA_PROFILE is "generate", "use", or empty; got "guided"',
    }
    for value, message in wrong.items():
        done = subprocess.run([*command, f"-DAMANDA_PROFILE={value}"], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert message in " ".join(done.stderr.split())
