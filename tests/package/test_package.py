"""The package as others get it: a wheel in a fresh environment, and find_package in a C++ program."""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **kwargs):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A Python in a fresh environment that has the wheel, and borrows torch from this one."""
    folder = tmp_path_factory.mktemp("package")
    # From what `make` has compiled, where it has: that is most of the time.
    options = ["--no-build-isolation", "--no-deps", f"--config-settings=build-dir={ROOT}/build/release"]
    run(sys.executable, "-m", "pip", "wheel", ROOT, *options, "--quiet", "-w", folder)
    (wheel,) = folder.glob("amanda-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel)
    (environment,) = (folder / "env" / "lib").glob("python*/site-packages")
    # A .pth inside a .pth'd folder has no effect, so this environment's own staged amanda stays out of sight.
    (environment / "borrowed.pth").write_text(site.getsitepackages()[0])
    return python, environment / "amanda"


def test_the_wheel_works_without_the_checkout(installed, tmp_path):
    python, package = installed
    (tmp_path / "use.py").write_text(
        "import amanda, torch\n"
        "class Count(amanda.Tool):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.n = 0\n"
        "        self.add_inst_for_op(lambda c: c.insert_before_op(self.tick, inputs=[]), ops='relu')\n"
        "    def tick(self): self.n += 1\n"
        "tool = Count()\n"
        "with amanda.apply(tool): torch.relu(torch.ones(1))\n"
        "print(tool.n, amanda.__file__)\n"
    )
    count, where = run(python, "use.py", cwd=tmp_path).split()
    assert count == "1"
    assert Path(where).parent == package


def test_importing_works_without_torch(installed, tmp_path):
    python, _ = installed
    # find_spec says None for what sys.modules holds as None: torch is not to be found
    program = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "import amanda\n"
        "class T(amanda.Tool): pass\n"
        "with amanda.apply(T()): pass\n"
        "print('torch' in sys.modules)\n"
    )
    assert run(python, "-c", program, cwd=tmp_path).strip() == "False"


def test_a_build_for_another_torch_says_so(installed, tmp_path):
    python, _ = installed
    program = "import torch; torch.__version__ = '2.99.0'\ntry: import amanda\nexcept ImportError as e: print(e)"
    assert run(python, "-c", program, cwd=tmp_path).startswith(
        "[torch] this build of amanda is for torch 2.13.0, and torch 2.99.0 is installed; build amanda again against it"
    )


def build_and_run(folder, prefixes):
    """Builds the program `count` of the project in `folder`, and returns what it prints."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = f"-DCMAKE_PREFIX_PATH={';'.join(map(str, prefixes))}"
    run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", found, env=tools)
    run("cmake", "--build", folder / "build", env=tools)
    return run(folder / "build" / "count")


def test_a_cpp_program_finds_the_package(installed, tmp_path):
    _, package = installed
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(consumer CXX)\n"
        "set(CMAKE_CXX_STANDARD 20)\n"
        "find_package(amanda 0.1 REQUIRED)\n"
        f"add_executable(count {ROOT}/examples/cpp/count_conv.cpp)\n"
        "target_link_libraries(count PRIVATE amanda::amanda amanda::torch)\n"
    )
    import torch

    printed = build_and_run(tmp_path, [f"{package}/lib/cmake/amanda", torch.utils.cmake_prefix_path])
    assert "conv2d ran 4 times" in printed


def test_a_cpp_program_without_torch_finds_the_core(installed, tmp_path):
    _, package = installed
    (tmp_path / "count.cpp").write_text(
        "#include <amanda/amanda.h>\n"
        "#include <iostream>\n"
        'int main() { amanda::Tool tool("mine"); amanda::Scope scope(tool); std::cout << scope.tools().size(); }\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(consumer CXX)\n"
        "set(CMAKE_CXX_STANDARD 20)\n"
        "find_package(amanda 0.1 REQUIRED COMPONENTS core)\n"
        "add_executable(count count.cpp)\n"
        "target_link_libraries(count PRIVATE amanda::amanda)\n"
    )
    assert build_and_run(tmp_path, [f"{package}/lib/cmake/amanda"]) == "1"
