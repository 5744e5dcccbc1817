"""One installation, builds for several minor versions of torch: `import amanda` takes the one for the installed torch.

Only one version is installed here. The others are the same build in a folder for another version, and a torch that gives
itself that version's number.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from amanda import _core
from amanda.drivers.torch import TorchDriver
from amanda.drivers.torch.builds import Builds
from amanda.drivers.torch_compile import CompiledFunctions

PACKAGE = Path(_core.__file__).parent
ADVICE = (
    "or build amanda again, against a torch from 2.11 on: pip install --no-build-isolation "
    f"amanda_nn-{_core.__version__}.tar.gz (its sdist), or . in a checkout"
)


@pytest.fixture
def installation(tmp_path):
    """installation("2.12", "2.13"): a folder with the package, with a build for each of these minor versions."""
    (own,) = PACKAGE.glob("_torch_*_*")

    def install(*minors):
        package = tmp_path / "-".join(minors) / "amanda"
        package.mkdir(parents=True)
        for entry in PACKAGE.iterdir():
            if entry != own:
                (package / entry.name).symlink_to(entry)
        for minor in minors:
            (package / f"_torch_{minor.replace('.', '_')}").symlink_to(own)
        return package.parent

    return install


def printed_by(folder, program):
    """What a program prints with the package in `folder`; it must succeed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_build_for_the_installed_torch_is_taken(installation):
    folder = installation("2.9", "2.12", "2.13")
    program = """
        import os, torch
        torch.__version__ = "2.12.1+cpu"
        import amanda

        class Count(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.count = 0
                self.add_inst_for_op(lambda context: context.insert_before_op(self.tick, inputs=[]), ops="relu")

            def tick(self):
                self.count += 1

        count = Count()
        with amanda.apply(count):
            torch.relu(torch.ones(1))
        print(count.count)
        import amanda._torch_tools, amanda._torch_compile, amanda.research.rematerialization, sys
        for module in ("_torch", "_torch_tools", "_torch_compile", "_rematerialization"):
            print(os.path.dirname(sys.modules[f"amanda.{module}"].__file__))
        with open("/proc/self/maps") as maps:
            loaded = {line.split()[-1] for line in maps if "libamanda" in line}
        print(len({os.path.realpath(path) for path in loaded}), len(loaded))
        from amanda.cli.main import main
        main(["doctor"])
    """
    lines = printed_by(folder, program)
    assert lines[0] == "1"
    assert lines[1:5] == [str(folder / "amanda" / "_torch_2_12")] * 4
    assert lines[5] == "2 2"  # libamanda.so and libamanda_torch.so, each once
    (built,) = [line.split(maxsplit=3)[3] for line in lines if line.startswith("built for torch")]
    assert built.startswith("2.9, 2.12, 2.13; used: 2.12, compiled with ")


def test_without_a_build_for_it_the_message_says_what_would_work(installation):
    cases = [
        (["2.13"], "2.12.1+cpu", 'a build for torch 2.13 only; install torch 2.13 (pip install "torch==2.13.*"), '),
        (
            ["2.9", "2.13", "2.10"],
            "2.1.0a0+git1234567",
            'builds for torch 2.9, 2.10 and 2.13 only; install torch 2.13 (pip install "torch==2.13.*"), ',
        ),
    ]
    folders = [str(installation(*minors)) for minors, _, _ in cases]
    program = f"""
        import sys, torch
        for folder, torch.__version__ in {[*zip(folders, (version for _, version, _ in cases), strict=True)]}:
            sys.path.insert(0, folder)
            try:
                import amanda
            except ImportError as error:
                print(error)
            print("amanda" in sys.modules, "amanda._torch" in sys.modules)
            for name in [name for name in sys.modules if name.startswith("amanda.")]:
                del sys.modules[name]
    """
    lines = printed_by(folders[0], program)
    assert lines[1::2] == ["False False"] * 2
    for text, (_, version, message) in zip(lines[::2], cases, strict=True):
        assert text == f"[torch] torch {version} is installed, and this amanda holds {message}{ADVICE}"


def test_with_no_build_at_all_the_package_is_used_without_the_driver(installation):
    program = """
        import amanda, sys
        with amanda.apply(amanda.Tool()):
            pass
        print("torch" in sys.modules)
        from amanda.cli.main import main
        main(["doctor"])
    """
    lines = printed_by(installation(), program)
    assert lines[0] == "False"
    assert ["torch", "installed, but this build of amanda has no driver for it"] in [
        line.split(maxsplit=1) for line in lines
    ]


def test_other_folders_are_no_builds_and_minors_are_numbers(tmp_path):
    for name in ("_torch_2_9", "_torch_2_10", "_torch_2_11x", "torch_2_12", "_torch_tools"):
        (tmp_path / name).mkdir()
    (tmp_path / "_torch.pyi").touch()
    path = [str(tmp_path)]
    builds = Builds(path)
    assert (builds.minors(), builds.used) == (["2.9", "2.10"], None)
    for _ in range(2):
        builds.use("2.10.0+cu130")
        assert path == [str(tmp_path / "_torch_2_10"), str(tmp_path)]
    assert (builds.minors(), builds.used) == (["2.9", "2.10"], "2.10")


def test_where_torch_is_missing_the_builds_are_listed(tmp_path, monkeypatch):
    (tmp_path / "_torch_2_13").mkdir()
    monkeypatch.setitem(sys.modules, "torch", None)
    driver = TorchDriver(Builds([str(tmp_path)]), CompiledFunctions())
    assert not driver.is_available()
    assert driver.describe() == [
        ("torch", 'not installed; pip install "torch==2.13.*"'),
        ("built for torch", "2.13"),
    ]


def test_a_build_that_does_not_load_with_this_torch_is_one_sentence(installation, tmp_path):
    (own,) = PACKAGE.glob("_torch_*_*")
    folder = installation()
    shutil.copytree(own, folder / "amanda" / own.name)
    library = folder / "amanda" / own.name / "libamanda_torch.so"
    # A library without the symbols that are looked for, as one for another ABI.
    subprocess.run(["g++", "-shared", "-x", "c++", os.devnull, "-o", library], check=True)
    (line,) = printed_by(
        folder,
        """
        try:
            import amanda
        except ImportError as error:
            print(error)
        """,
    )
    version = torch.__version__
    start = (
        f"[torch] the build for torch {version[:4]} does not load with torch {version} in {torch.__path__[0]}: {folder}"
    )
    assert line.startswith(start)
    assert ": undefined symbol: " in line
    assert line.endswith(
        f"; if that torch was built from source, or with another C++ ABI, {ADVICE.removeprefix('or ')}"
    )
