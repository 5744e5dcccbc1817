"""The container: what can be checked without an engine. The commands of its Dockerfile run in a virtual environment, in a
folder that holds what .dockerignore leaves; the image's own system, and the download of its base, are not checked."""

import fnmatch
import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "requirements.txt").read_text()


class Instruction(NamedTuple):
    stage: str  # "" is the last one
    name: str  # RUN, COPY, ...
    text: str


def instructions():
    """Those of the Dockerfile, in order."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stage = ""
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stage = rest.partition(" AS ")[2]
        yield Instruction(stage, name, rest.strip())


DOCKERFILE = list(instructions())
PIP = [each for each in DOCKERFILE if each.name == "RUN" and each.text.startswith("pip ")]


def applies(pattern, part):
    if pattern.startswith("**/"):
        return part.name == pattern.removeprefix("**/")
    return "/" not in str(part) and fnmatch.fnmatch(str(part), pattern)


def is_sent(path):
    """Does the build see this file? The last line of .dockerignore that applies to it or a folder around it decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not line.startswith("#") and any(applies(pattern, part) for part in [path, *list(path.parents)[:-1]]):
            sent = line.startswith("!")
    return sent


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [Path(name) for name in listed.stdout.splitlines()]


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A folder with the files that the build sees."""
    folder = tmp_path_factory.mktemp("context")
    for path in filter(is_sent, tracked()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return folder


def test_the_build_sees_no_environment_and_no_earlier_build():
    seen = [Path(name) for name in os.listdir(ROOT) if is_sent(Path(name))]
    assert {path.name for path in seen} >= {"CMakeLists.txt", "python", "src"}
    assert {path.parts[0] for path in tracked()} >= {path.name for path in seen}  # git ignores the rest
    assert not is_sent(Path("python/amanda/__pycache__/tool.pyc"))


def test_what_is_copied_is_there(context):
    for each in DOCKERFILE:
        if each.name == "COPY" and "--from" not in each.text:
            source = each.text.split()[0]
            assert (context / source).exists(), each


def test_what_it_installs_is_pinned():
    pinned = set(re.findall(r"^([\w-]+)==", REQUIREMENTS, re.MULTILINE))
    named = set()
    for each in PIP:
        if "--constraint requirements.txt" in each.text:
            named |= {one.partition("==")[0] for one in each.text.partition("requirements.txt ")[2].split()}
    assert {"torch", "pybind11", "transformers"} <= named <= pinned
    for needed in ("requires = [", "dependencies = ["):  # for a build; for what is built
        packages = (ROOT / "pyproject.toml").read_text().partition(f"\n{needed}")[2].partition("]")[0]
        assert set(re.findall(r'"([\w-]+)', packages)) <= named


def test_the_build_stage_has_the_system_packages_that_setup_installs_for_a_build():
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    (install,) = [each.text for each in DOCKERFILE if "apt-get install" in each.text]
    packages = install.partition("--no-install-recommends ")[2].split()
    assert packages
    assert all(f"missing+=({package})" in setup for package in packages)


def test_it_configures(context, tmp_path):
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DAMANDA_BUILD_TESTS=OFF", "-DAMANDA_BUILD_EXAMPLES=OFF"]
    command = ["cmake", "-G", "Ninja", "-S", context, "-B", tmp_path, "-DSKBUILD=2", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    planned = subprocess.run(["ninja", "-n"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert planned.returncode == 0, planned.stdout[-4000:]  # a source that is missing


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_its_commands_install_a_package_that_runs_the_demo(context, tmp_path):
    """Compiles everything: minutes. Torch and what else is installed here are borrowed."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (environment,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (environment / "borrowed.pth").write_text(site.getsitepackages()[0])
    path = f"{python.parent}:/usr/bin:/bin"
    variables = {"PATH": path, "PIP_NO_INDEX": "1", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    variables |= {name: value for name, value in os.environ.items() if name.startswith(("CMAKE_", "CCACHE_"))}

    def run(command):
        done = subprocess.run(
            command,
            cwd=context,
            env=variables,
            shell=isinstance(command, str),
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    run(
        [python, "-m", "pip", "uninstall", "-q", "-y", "setuptools"]
    )  # older than the borrowed one, and before it on the path
    for each in PIP:
        run(each.text)
    (command,) = [json.loads(each.text) for each in DOCKERFILE if each.name == "CMD"]
    assert "all 9 claims hold" in run([python if part == "python" else part for part in command])
    where = run([python, "-c", "import amanda; print(amanda.__file__)"]).strip()
    assert Path(where).is_relative_to(environment)
