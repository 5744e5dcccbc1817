"""A torch that does not fit, or more than one: one sentence each.

Only one torch is installed. Others are folders of links to its files, with metadata of their own.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import amanda
import pytest
import torch
from amanda.drivers.torch import port, versions
from repository import ROOT

TORCH = Path(torch.__path__[0])
PACKAGES = TORCH.parent
STAGE = Path(amanda.__file__).parents[1]
IMPORT = "import amanda"
DOCTOR = "from amanda.cli.main import main; main(['doctor'])"


@pytest.fixture
def packages(tmp_path):
    """packages("2.13.0", ...): a folder with a torch, and metadata of these versions."""

    def make(*versions, name="packages", without=()):
        folder = tmp_path / name
        (folder / "torch").mkdir(parents=True)
        for entry in TORCH.iterdir():
            if not entry.name.startswith(tuple(without)):
                (folder / "torch" / entry.name).symlink_to(entry)
        for version in versions:
            (folder / f"torch-{version}.dist-info").mkdir()
            (folder / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        return folder

    return make


def python(code, *folders, options=()):
    """(exit status, standard output, standard error) of a new interpreter that finds these folders first."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr


def last_line(errors):
    return errors.rstrip().rpartition("\n")[2]


def public(version):
    return version.partition("+")[0]


def test_two_versions_in_one_folder_are_a_warning(packages):
    folder = packages("2.12.1", torch.__version__)
    status, _, errors = python(IMPORT, folder)
    warning = (
        f"[torch] the torch that is imported is {torch.__version__}, and {folder} has the metadata of torch 2.12.1 and "
        f"{torch.__version__}: files of several versions may be mixed there; pip uninstall torch until none is left, then "
        "install one"
    )
    assert status == 0
    assert f"UserWarning: {warning}\n" in errors
    (row,) = [line for line in python(DOCTOR, folder)[1].splitlines() if line.startswith("torch's folder")]
    assert row.split(maxsplit=2)[2] == warning.removeprefix("[torch] ")


def test_metadata_of_another_version_are_a_warning(packages):
    folder = packages("2.12.1")
    errors = python(IMPORT, folder)[2]
    assert f"{folder} has the metadata of torch 2.12.1: files of several versions may be mixed there" in errors


def test_metadata_need_no_local_version(packages):
    assert python(IMPORT, packages(public(torch.__version__)))[::2] == (0, "")


def test_two_versions_in_two_folders_are_shown_and_are_no_warning(packages):
    other = packages("2.11.0", name="other")
    code = f"import sys; sys.path.append({str(other)!r}); "
    assert python(code + IMPORT)[::2] == (0, "")
    rows = [
        line.split(maxsplit=2)[2] for line in python(code + DOCTOR)[1].splitlines() if line.startswith("another torch")
    ]
    assert rows == [f"2.11.0 in {other}, which is not imported"]


def test_where_there_is_no_build_the_message_names_the_other_one(packages):
    other = packages("2.13.0", name="other")
    code = (
        f"import sys, torch; sys.path.append({str(other)!r}); torch.__version__ = '2.12.1'\n"
        "try: import amanda\n"
        "except ImportError as error: print(error)"
    )
    assert python(code)[1].endswith(
        f" (another one is not imported, because its folder is later on sys.path: torch 2.13.0 in {other})\n"
    )


def test_a_torch_for_another_python(packages):
    folder = packages("2.12.1", without=["_C."])
    (folder / "torch" / "_C.cpython-399-x86_64-linux-gnu.so").touch()
    status, _, errors = python(IMPORT, folder, options=["-W", "ignore"])
    assert status == 1
    (own,) = [path.name for path in PACKAGES.glob("torch-*.dist-info")]
    assert last_line(errors) == (
        f"ImportError: [torch] amanda needs a torch that can be imported, and the one in {folder}/torch can't: it is for "
        "another Python, because its extension module is _C.cpython-399-x86_64-linux-gnu.so; install torch again for "
        f"{sys.executable} (another one is not imported, because its folder is later on sys.path: torch "
        f"{own.removeprefix('torch-').removesuffix('.dist-info')} in {PACKAGES.resolve()})"
    )


def test_a_torch_whose_libraries_are_missing(packages):
    folder = packages(torch.__version__, without=["lib"])
    (folder / "torch" / "lib").mkdir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extension = folder / "torch" / f"_C{suffix}"
    extension.unlink()
    extension.write_bytes((TORCH / extension.name).read_bytes())  # $ORIGIN/lib is where it looks
    errors = python(IMPORT, folder)[2]
    line = last_line(errors)
    assert line.startswith(
        f"ImportError: [torch] amanda needs a torch that can be imported, and the one in {folder}/torch"
    )
    assert f"; install torch again for {sys.executable}" in line


def test_another_module_called_torch(tmp_path):
    (tmp_path / "torch.py").write_text("x = 1\n")
    status, _, errors = python(IMPORT, tmp_path)
    assert status == 1
    assert last_line(errors) == (
        f"ImportError: [torch] `import torch` imports {tmp_path}/torch.py, which is not PyTorch; rename that file or "
        "folder, or start Python elsewhere"
    )


def test_what_is_left_of_a_removed_torch_is_none(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    status, printed, errors = python(DOCTOR, tmp_path, STAGE, options=["-S"])
    assert (status, errors) == (0, "")
    minor = versions.minor_of(torch.__version__)
    rows = [line.split(maxsplit=1) for line in printed.splitlines()]
    assert [
        "torch",
        f'not installed, and {tmp_path}/torch is a folder without a package; pip install "torch=={minor}.*"',
    ] in rows


def test_a_newer_torch_is_named_as_newer(packages):
    code = "import torch; torch.__version__ = '2.15.0.dev20270101+cpu'; import amanda"
    minor = versions.minor_of(torch.__version__)
    status, _, errors = python(code, options=["-W", "ignore"])
    assert status == 1
    assert last_line(errors) == (
        "ImportError: [torch] torch 2.15.0.dev20270101+cpu is installed, which is newer than this amanda knows (2.11 to "
        f"2.14), and this amanda holds a build for torch {minor} only; install torch {minor} (pip install "
        f'"torch=={minor}.*"), or a newer amanda'
    )


def test_one_list_of_versions():
    assert f"install torch {', '.join(versions.KNOWN[:-1])} or {versions.KNOWN[-1]}" in port.names._purpose
    cmake = (ROOT / "cmake" / "dependencies.cmake").read_text()
    assert f"newer than this amanda knows ({versions.KNOWN[0]} to {versions.KNOWN[-1]})" in cmake
    major, minor = map(int, versions.KNOWN[-1].split("."))
    assert f"VERSION_GREATER_EQUAL {major}.{minor + 1})" in cmake
    assert not versions.is_newer_than_known(f"{versions.KNOWN[-1]}.9+cu130")


def test_a_program_without_a_framework(tmp_path):
    (tmp_path / "use.py").write_text("import torch\n")
    command = [sys.executable, "-S", "-m", "amanda", "profile", "use.py"]
    environment = os.environ | {"PYTHONPATH": str(STAGE)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "amanda: no PyTorch, TensorFlow or ONNX Runtime that this amanda has a driver for is installed for "
        f"{sys.executable}, so tools see nothing; `amanda doctor` says what would fit"
    )
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
