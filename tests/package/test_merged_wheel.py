"""scripts/merge_wheels.py: one wheel with builds for several minor versions of torch.

Only one version is installed. The second wheel is the first one with its build renamed, as an environment with torch 2.12
would name it, and a torch that says it is 2.12 takes that build.
"""

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from fresh_environment import install, run

SCRIPT = Path(__file__).parents[2] / "scripts" / "merge_wheels.py"
MINOR = ".".join(importlib.metadata.version("torch").split(".")[:2])


@pytest.fixture(scope="module")
def renamed(wheel, tmp_path_factory):
    """renamed(minor): the wheel with its build renamed for another torch; `change`: a file with a line more."""

    def rename(minor, name=wheel.name, change=None):
        path = tmp_path_factory.mktemp("renamed") / name
        with ZipFile(wheel) as source, ZipFile(path, "w") as target:
            for info in source.infolist():
                content = source.read(info)
                file = info.filename.replace(f"_torch_{MINOR.replace('.', '_')}/", f"_torch_{minor.replace('.', '_')}/")
                if file.startswith("amanda/lib/cmake/"):
                    file = file.replace(f"amanda-torch-{MINOR}-", f"amanda-torch-{minor}-")
                    for old, new in ((MINOR, minor), (MINOR.replace(".", "_"), minor.replace(".", "_"))):
                        content = content.replace(f"torch-{old}-".encode(), f"torch-{new}-".encode())
                        content = content.replace(f"_torch_{old}/".encode(), f"_torch_{new}/".encode())
                if file == change:
                    content += b"# another version\n"
                target.writestr(file, content)
        return path

    return rename


def merge(*arguments):
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def merged(wheel, renamed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    done = merge(folder, renamed("2.9"), wheel, renamed("2.12"))
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = folder.iterdir()
    assert done.stdout == f"[wheel] {path}\n"
    return path


@pytest.fixture(scope="module")
def installed(merged, tmp_path_factory):
    return install(merged, tmp_path_factory.mktemp("merged"))


def test_auditwheel_gives_it_the_same_tag(wheel, merged):
    assert merged.name == wheel.name
    shown = [json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", path)) for path in (wheel, merged)]
    for of_both in ("sym_tag", "overall_tag", "external_libs"):
        assert shown[0][of_both] == shown[1][of_both], of_both
    assert merged.name.endswith(f"-{shown[1]['sym_tag']}.whl")


def test_its_metadata_name_what_it_holds(merged):
    with ZipFile(merged) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    required = re.findall(
        r'^Requires-Dist: (torch\W.*); extra == "torch"$', files[f"{info}/METADATA"].decode(), re.MULTILINE
    )
    assert required == ["torch>=2.9,!=2.10.*,!=2.11.*,<2.14"]
    hashes = {name: hash_ for name, hash_, _ in csv.reader(io.StringIO(files.pop(f"{info}/RECORD").decode()))}
    assert hashes.pop(f"{info}/RECORD") == ""
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()) for name, content in files.items()}
    assert hashes == {name: f"sha256={digest.rstrip(b'=').decode()}" for name, digest in digests.items()}


@pytest.mark.parametrize("version", ["2.12.1+cpu", None])
def test_the_build_of_the_installed_torch_is_used(installed, version, tmp_path):
    python, package = installed
    (tmp_path / "use.py").write_text(
        "import os, sys, torch\n"
        "torch.__version__ = sys.argv[1]\n"
        "import amanda\n"
        "tool = amanda.Tool()\n"
        "ran = []\n"
        "tool.add_inst_for_op(lambda c: c.insert_before_op(lambda: ran.append(c.op.__name__), inputs=[]), ops='relu')\n"
        "with amanda.apply(tool): torch.relu(torch.ones(1))\n"
        "print(ran, os.path.dirname(amanda._torch.__file__))\n"
        "from amanda.cli.main import main\n"
        "main(['doctor'])\n"
    )
    version = version or importlib.metadata.version("torch")
    first, *doctor = run(python, "use.py", version, cwd=tmp_path).splitlines()
    minor = ".".join(version.split(".")[:2])
    assert first == f"['relu'] {package}/_torch_{minor.replace('.', '_')}"
    (line,) = [line for line in doctor if line.startswith("built for torch")]
    assert f" 2.9, 2.12, {MINOR}; used: {minor}, compiled with {MINOR}" in line


@pytest.mark.parametrize("minor", ["2.12", MINOR])
def test_a_cpp_program_gets_the_build_of_the_torch_that_is_found(installed, tmp_path, minor):
    _, package = installed
    config = tmp_path / "share" / "cmake" / "Torch"
    config.mkdir(parents=True)
    (config / "TorchConfig.cmake").write_text("add_library(torch INTERFACE IMPORTED)\nset(TORCH_LIBRARIES torch)\n")
    (config / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{minor}.7")\n')
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(consumer CXX)\n"
        "find_package(amanda 0.1 REQUIRED)\n"
        "get_target_property(location amanda::torch LOCATION)\n"
        "get_target_property(linked amanda::torch INTERFACE_LINK_LIBRARIES)\n"
        'message(STATUS "${location}; ${linked}")\n'
    )
    printed = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={package};{tmp_path}")
    library = package / f"_torch_{minor.replace('.', '_')}" / "libamanda_torch.so"
    assert f"-- {library}; amanda::amanda;torch\n" in printed


def test_what_makes_no_one_wheel_is_refused(wheel, renamed, tmp_path):
    other = renamed("2.12")
    changed = renamed("2.12", change="amanda/core/scope.py")
    interpreter = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    python = renamed("2.12", name=wheel.name.replace(interpreter, "cp39"))
    plain = renamed("2.12", name=re.sub("manylinux_[0-9]+_[0-9]+_", "linux_", wheel.name))
    wrong = {
        (wheel, other, wheel): f"{wheel} and {wheel} both have a build for torch {MINOR}; leave one out",
        (
            wheel,
            changed,
        ): f"{wheel} and {changed} differ in amanda/core/scope.py; build both from the same sources and by the "
        "same compiler",
        (wheel, python): f"{wheel} and {python} are amanda-nn 0.1.0 for {interpreter}, {interpreter} and amanda-nn "
        "0.1.0 for cp39, cp39",
        (wheel, plain): f"{plain.name} has no manylinux tag; build it with scripts/wheel.sh",
    }
    for wheels, message in wrong.items():
        done = merge(tmp_path, *wheels)
        assert (done.returncode, done.stderr) == (1, f"[merge] {message}\n")
    done = merge(wheel.parent, wheel, other)
    assert (done.returncode, done.stderr) == (1, f"[merge] {wheel} would be overwritten; name another folder\n")
    assert list(tmp_path.iterdir()) == []
