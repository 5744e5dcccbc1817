"""The sources as others get them: `make wheel` makes them into an archive, from which pip builds."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The archive."""
    folder = tmp_path_factory.mktemp("sdist")
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, folder], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("amanda_nn-*.tar.gz")
    return archive


def files_of(archive):
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def test_it_has_what_a_build_reads_and_no_more(sdist):
    read = subprocess.run(
        ["ninja", "-t", "deps"], cwd=ROOT / "build" / "release", check=True, capture_output=True, text=True
    )
    needed = set()
    of_package = False
    for line in read.stdout.splitlines():
        if line and not line.startswith(" "):  # "src/CMakeFiles/...: #deps 309, ..."; the rest are its inputs
            of_package = not line.startswith(("tests/", "examples/", "drivers/reference/"))
        elif of_package and line.startswith(f"    {ROOT}/"):
            needed.add(line.removeprefix(f"    {ROOT}/"))
    needed = {name for name in needed if not name.startswith((".venv", "build/"))}
    packaged = {
        path for path in (ROOT / "python" / "amanda").rglob("*") if path.suffix in (".py", ".pyi", ".html", ".typed")
    }
    found = files_of(sdist)
    assert len(needed) > 200
    assert needed | {str(path.relative_to(ROOT)) for path in packaged} <= found
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert found <= {*tracked, "PKG-INFO"}
    assert not [name for name in found if name.startswith(("tests/", "docs/", "."))]


def test_it_configures_without_the_checkout(sdist, tmp_path):
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DAMANDA_BUILD_TESTS=OFF", "-DAMANDA_BUILD_EXAMPLES=OFF"]
    command = ["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    planned = subprocess.run(["ninja", "-n"], cwd=folder / "build", check=False, capture_output=True, text=True)
    assert planned.returncode == 0, planned.stdout[-4000:]  # a source that is missing
    assert "libamanda_torch.so" in planned.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_wheel_of_it_works(sdist, tmp_path):
    """Compiles everything: minutes."""
    environment = {**os.environ, "PYTHON": sys.executable}
    built = subprocess.run(
        [ROOT / "scripts" / "wheel.sh", tmp_path, sdist], env=environment, check=False, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[-4000:]
    (wheel,) = tmp_path.glob("amanda_nn-*-manylinux_*.whl")
    target = tmp_path / "target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "-t", target, wheel], check=True
    )
    program = "import amanda; print(amanda.__file__); import torch\nwith amanda.apply(amanda.Tool()): torch.ones(1)"
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(target)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == str(target / "amanda" / "__init__.py")
