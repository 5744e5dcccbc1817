"""The package as others get it: a wheel in a fresh environment, and find_package in a C++ program."""

import fnmatch
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from fresh_environment import install, install_with_dependencies_only, run

ROOT = Path(__file__).parents[2]
MINOR = ".".join(importlib.metadata.version("torch").split(".")[:2])


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A Python in a fresh environment that has the wheel, and borrows torch from this one."""
    return install(wheel, tmp_path_factory.mktemp("package"))


def test_the_wheel_names_the_oldest_glibc_and_no_library_but_those_of_torch(wheel):
    shown = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
    assert set(shown["external_libs"]) == {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"}
    assert wheel.name.endswith(f"-{shown['sym_tag']}.whl")
    # Where it was built, it can be installed.
    floor = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", shown["sym_tag"])
    assert floor
    assert tuple(map(int, floor.groups())) <= tuple(map(int, platform.libc_ver()[1].split(".")))


def test_nothing_in_the_wheel_names_a_folder_of_this_machine(wheel):
    packages = Path(importlib.util.find_spec("torch").origin).parents[1]
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert (
        b"torch/include/ATen/core" in contents[next(name for name in contents if name.endswith("libamanda_torch.so"))]
    )
    for folder in (ROOT, packages):
        assert [name for name, content in contents.items() if f"{folder}/".encode() in content] == []


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


def test_the_import_is_quick_and_takes_no_other_package(installed, wheel, tmp_path):
    python, _ = installed
    footprint = [sys.executable, ROOT / "scripts" / "footprint.py", wheel, "--rounds", "3"]
    printed = run(*footprint)  # it fails where the import takes longer than the limit
    assert re.search(r"^\| `import amanda` after `import torch`, CPU time \| \d+ ± \d+ ms \|$", printed, re.MULTILINE)
    program = "import sys, torch; before = {*sys.modules}; import amanda; print(*{*sys.modules} - before)"
    packages = {name.partition(".")[0] for name in run(python, "-c", program, cwd=tmp_path).split()}
    unlisted = {"_interpreters", "_xxsubinterpreters"}  # CPython's, which stdlib_module_names leaves out
    assert packages - sys.stdlib_module_names - unlisted == {"amanda"}


SCRIPT = "import torch\ntorch.manual_seed(0)\nlayer = torch.nn.Linear(4, 2)\nlayer(torch.ones(3, 4)).sum().backward()\n"
COMMANDS = {
    "run",
    "doctor",
    "ls",
    "profile",
    "memory",
    "nan",
    "diff",
    "trace",
    "watch",
    "check",
    "gradients",
    "inplace",
}


def test_the_commands_of_the_readme_need_no_extra(wheel, tmp_path):
    scripts = install_with_dependencies_only(wheel, tmp_path)
    found = re.findall(r"`amanda (\w+ [^`]*\.py)`", (ROOT / "README.md").read_text())
    commands = [shlex.split(command) for command in found if "onnx" not in command] + [  # README names that extra
        ["run", "-t", "profile", "--html", "page.html", "train.py"]
    ]
    assert {command[0] for command in commands} == COMMANDS
    for name in ("train.py", "before.py", "after.py", "script.py"):
        (tmp_path / name).write_text(SCRIPT)
    for command in commands:
        run(scripts / "amanda", *command, cwd=tmp_path)
    assert (tmp_path / "page.html").stat().st_size > 1e6
    assert run(scripts / "python", "-c", "import importlib.util as u; print(u.find_spec('pandas'))").strip() == "None"


@pytest.mark.parametrize("page", ["README.md", "docs/installation.md"])
def test_a_wheel_needs_no_compiler(wheel, tmp_path, page):
    """The commands that a page shows, where no others than the environment's are found; the fixture does pip's."""
    (block,) = re.findall(r"^```sh\n((?:pip install .*\n)+amanda .*)\n```$", (ROOT / page).read_text(), re.MULTILINE)
    *installs, command = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert fnmatch.fnmatch(wheel.name, re.sub(r"cp311|manylinux_\d+_\d+", "*", installs[-1][-1]))
    scripts = install_with_dependencies_only(wheel, tmp_path)
    (tmp_path / command[-1]).write_text(SCRIPT)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = run(scripts / command[0], *command[1:], cwd=tmp_path, env={"PATH": str(scripts), "HOME": str(tmp_path)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert re.search(r"^ module +calls +mean ", printed, re.MULTILINE)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60


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


def test_where_the_package_does_not_load_the_command_is_one_sentence(installed, tmp_path):
    """The installed torch says that it is another version."""
    python, package = installed
    (package.parent / "sitecustomize.py").write_text(
        "import os\nif 'TORCH_VERSION' in os.environ: import torch; torch.__version__ = os.environ['TORCH_VERSION']\n"
    )
    minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    sentence = (
        "amanda: [torch] torch 2.10.0 is installed, and this amanda holds a build for torch "
        f'{minor} only; install torch {minor} (pip install "torch=={minor}.*"), or build amanda again, against a torch '
        "from 2.11 on: pip install --no-build-isolation amanda_nn-0.1.0.tar.gz (its sdist), or . in a checkout\n"
    )
    environment = {**os.environ, "TORCH_VERSION": "2.10.0", "PYTHONWARNINGS": "ignore"}
    for arguments, printed in (
        (("profile", "train.py"), ""),
        (("doctor",), f"amanda     0.1.0, in {package.parent}; it cannot be imported\npython "),
    ):
        command = [python.parent / "amanda", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, sentence)
        assert done.stdout.startswith(printed)


@pytest.fixture
def read_only(wheel, tmp_path):
    """The scripts' folder of an environment in which nothing can be written, and the start of a command that may not
    override that."""
    scripts = install_with_dependencies_only(wheel, tmp_path)
    folders = [path for path in (tmp_path / "env").rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in folders:
        folder.chmod(0o555)
    may_not = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
    yield scripts, may_not
    for folder in folders:
        folder.chmod(0o755)


def test_a_folder_of_packages_that_cannot_be_written_is_enough(read_only, tmp_path):
    scripts, may_not = read_only
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(SCRIPT)
    package = next((tmp_path / "env" / "lib").glob("python*/site-packages/amanda"))
    before = {path.relative_to(tmp_path) for path in (tmp_path / "env").rglob("*")}
    with pytest.raises(AssertionError, match="Permission denied"):
        run(*may_not, "touch", package / "written")
    for command in (
        ["run", "-t", "profile", "--html", "page.html", "--out", "results", "train.py"],
        ["nan", "train.py"],
    ):
        run(*may_not, scripts / "amanda", *command, cwd=tmp_path / "work")
    assert (tmp_path / "work" / "page.html").stat().st_size > 1e6
    assert list((tmp_path / "work" / "results").iterdir()) != []
    doctor = run(*may_not, scripts / "amanda", "doctor", cwd=tmp_path / "work")
    assert f"amanda                0.1.0, in {package}, which is read-only\n" in doctor
    assert {path.relative_to(tmp_path) for path in (tmp_path / "env").rglob("*")} == before


def test_a_build_for_another_python_says_so(installed, tmp_path):
    python, _ = installed
    program = "import sys; sys.version_info = (3, 99, 0)\ntry: import amanda\nexcept ImportError as e: print(e)"
    built = ".".join(platform.python_version_tuple()[:2])
    assert run(python, "-c", program, cwd=tmp_path).strip() == (
        f"[amanda] this build of amanda is for Python {built}, and this is Python 3.99; build amanda again "
        "with it, or use that Python"
    )


def block(language, holding):
    """The only block of this language in docs/building_cpp_tools.md that holds a text."""
    page = (ROOT / "docs" / "building_cpp_tools.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if holding in block]
    return found


def build(folder, *definitions):
    """Configures and builds the project in `folder`. Returns what CMake printed."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", *definitions, env=tools)
    run("cmake", "--build", folder / "build", env=tools)
    return printed


def prefix_path(python):
    return run(python, "-c", "import amanda; print(amanda.cmake_prefix_path)").strip()


def test_the_cpp_program_of_the_documentation_builds(installed, tmp_path):
    python, package = installed
    assert prefix_path(python) == str(package)
    (tmp_path / "CMakeLists.txt").write_text(block("cmake", "project(count_conv CXX)"))
    program = block("cpp", "struct CountConv")
    assert program == (ROOT / "examples" / "cpp" / "count_conv.cpp").read_text()
    (tmp_path / "count_conv.cpp").write_text(program)
    build(tmp_path, f"-DCMAKE_PREFIX_PATH={package}")  # torch is that of the python on the PATH
    assert "conv2d ran 4 times" in run(tmp_path / "build" / "count_conv")


def test_the_cpp_program_with_names_builds(installed, tmp_path):
    _, package = installed
    project = block("cmake", "project(count_conv CXX)").replace("count_conv", "module_names")
    (tmp_path / "CMakeLists.txt").write_text(project)
    program = block("cpp", "struct NameLayers")
    assert program == (ROOT / "examples" / "cpp" / "module_names.cpp").read_text()
    (tmp_path / "module_names.cpp").write_text(program)
    build(tmp_path, f"-DCMAKE_PREFIX_PATH={package}")
    printed = block("console", "build/module_names").partition("\n")[2]
    assert run(tmp_path / "build" / "module_names") == printed


def test_the_cpp_tool_of_the_documentation_builds_and_works_in_python(installed, tmp_path):
    python, _ = installed
    (tmp_path / "CMakeLists.txt").write_text(block("cmake", "project(weight_uses CXX)"))
    (tmp_path / "weight_uses.cpp").write_text(block("cpp", "PYBIND11_MODULE(weight_uses, m)"))
    (tmp_path / "use.py").write_text(block("python", "import weight_uses"))
    build(tmp_path, f"-DPython_EXECUTABLE={python}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "build")}
    assert run(python, tmp_path / "use.py", env=environment).strip() == "{'0.weight': 3, '2.weight': 3}"


def test_torch_is_found_beside_the_package(installed, tmp_path):
    """As where pip installs both: no Python is asked, and none could answer."""
    import torch

    _, package = installed
    (tmp_path / "amanda").symlink_to(package)
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(consumer CXX)\n"
        "find_package(amanda 0.1 REQUIRED)\n"
        'message(STATUS "found ${Torch_DIR}; prefixes: ${CMAKE_PREFIX_PATH}")\n'
    )
    printed = build(tmp_path, f"-DCMAKE_PREFIX_PATH={tmp_path}/amanda", "-DPython_EXECUTABLE=/bin/false")
    assert f"found {tmp_path}/torch/share/cmake/Torch; prefixes: {tmp_path}/amanda\n" in printed


@pytest.fixture
def find_amanda(installed, tmp_path):
    """find_amanda(how, prefixes): what `find_package(amanda 0.1 QUIET how)` ends with, in an empty project."""
    _, package = installed
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(consumer NONE)\n"
        "find_package(amanda 0.1 QUIET ${how})\n"
        'message(STATUS "found: ${amanda_FOUND}; ${amanda_NOT_FOUND_MESSAGE}")\n'
    )

    def find(how="", prefixes=(), package=package):
        paths = ";".join(map(str, [package, *prefixes]))
        command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", "--fresh", f"-DCMAKE_PREFIX_PATH={paths}"]
        printed = run(*command, f"-Dhow={how}", "-DPython_EXECUTABLE=/bin/false")
        return re.search(r"^-- found: (.*)$", printed, re.MULTILINE).group(1)

    return find


def make_torch(folder, version, config):
    """The folder of a TorchConfig.cmake with this text; no version: without a file that tells it."""
    files = folder / "share" / "cmake" / "Torch"
    files.mkdir(parents=True)
    (files / "TorchConfig.cmake").write_text(config)
    if version:
        (files / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
    return files


def test_a_torch_without_a_build_is_named_and_not_loaded(find_amanda, tmp_path):
    config = make_torch(tmp_path / "torch", "2.99.1", 'message(FATAL_ERROR "no CUDA toolkit")\n')
    assert find_amanda(prefixes=[tmp_path / "torch"]) == (
        f"0; [amanda] torch 2.99.1 was found ({config}), and this package has builds for torch {MINOR} only; "
        "name one of these with CMAKE_PREFIX_PATH, or build amanda against torch 2.99.1."
    )
    assert find_amanda("COMPONENTS;core", [tmp_path / "torch"]) == "1; "
    assert find_amanda("COMPONENTS;core;OPTIONAL_COMPONENTS;torch", [tmp_path / "torch"]) == "1; "


def test_a_torch_that_tells_no_version_is_named(find_amanda, tmp_path):
    config = make_torch(tmp_path / "torch", None, "set(Torch_FOUND TRUE)\n")
    assert find_amanda(prefixes=[tmp_path / "torch"]) == (
        f"0; [amanda] torch (of unknown version) was found ({config}), and this package has builds for torch {MINOR} only; "
        "name one of these with CMAKE_PREFIX_PATH, or build amanda against torch (of unknown version)."
    )


def test_a_missing_torch_is_named(find_amanda):
    assert find_amanda() == (
        f"0; [amanda] no torch was found, and this package has builds for torch {MINOR}; install one of these, name it "
        "with CMAKE_PREFIX_PATH (python -c 'import torch; print(torch.utils.cmake_prefix_path)'), or ask for "
        "COMPONENTS core."
    )


def test_a_package_without_the_driver_says_so(find_amanda, installed, tmp_path):
    _, package = installed
    config = tmp_path / "site" / "amanda" / "lib" / "cmake" / "amanda"
    shutil.copytree(package / "lib", tmp_path / "site" / "amanda" / "lib")
    (tmp_path / "site" / "amanda" / "include").symlink_to(package / "include")
    for file in config.glob("amanda-torch-*"):
        file.unlink()
    assert find_amanda("COMPONENTS;torch", package=tmp_path / "site" / "amanda") == (
        f"0; [amanda] this package ({config}) was built without the PyTorch driver; build it with "
        "-DAMANDA_BUILD_TORCH=ON, or ask for COMPONENTS core."
    )
    assert find_amanda(package=tmp_path / "site" / "amanda") == "1; "


def test_an_unknown_component_is_named(find_amanda):
    assert find_amanda("COMPONENTS;cuda") == "0; [amanda] there is no component 'cuda'; there are core and torch."


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
    build(tmp_path, f"-DCMAKE_PREFIX_PATH={package}")
    assert run(tmp_path / "build" / "count") == "1"


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "env")
    return folder / "env" / "bin" / "python"


def configured(python, build, *definitions):
    """What CMake has ended with, and what it wrote on standard error, with its line breaks taken out."""
    command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", build, f"-DPython_EXECUTABLE={python}", *definitions]
    command += ["-DAMANDA_BUILD_TESTS=OFF", "-DAMANDA_BUILD_EXAMPLES=OFF", "-DCMAKE_PREFIX_PATH="]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    return done.returncode, " ".join(done.stderr.split())


def configured_without(python, build, *definitions):
    status, errors = configured(python, build, *definitions)
    assert status != 0
    return errors


def test_a_build_in_isolation_names_the_command_that_works(python_without_torch, tmp_path):
    assert (
        f"[build] {python_without_torch}, the Python of this build, has no torch. By default pip builds in an isolated "
        "environment, but Amanda is built for the torch that you use. Install torch, scikit-build-core and pybind11, then "
        "run: pip install --no-build-isolation ."
    ) in configured_without(python_without_torch, tmp_path, "-DSKBUILD=2")


def test_a_build_without_torch_says_what_to_do(python_without_torch, tmp_path):
    assert (
        f"[build] {python_without_torch} has no torch. Install torch for it, name another Python with "
        "-DPython_EXECUTABLE=..., name a LibTorch with -DCMAKE_PREFIX_PATH=..., or build without the PyTorch driver with "
        "-DAMANDA_BUILD_TORCH=OFF."
    ) in configured_without(python_without_torch, tmp_path)


@pytest.fixture
def python_with_cuda(tmp_path):
    """python_with_cuda(version): a Python with this environment's torch, which says that it has this version, and CUDA."""

    def make(version):
        venv.create(tmp_path / "env")
        (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
        (packages / "torch").mkdir()
        prefix = run(sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)").strip()
        (packages / "torch" / "__init__.py").write_text(
            f"__version__ = {version!r}\nclass version: cuda = '13.0'\nclass utils: cmake_prefix_path = {prefix!r}\n"
        )
        return tmp_path / "env" / "bin" / "python"

    return make


def without_toolkit():
    nvcc = shutil.which("nvcc")
    hidden = f"/usr/local/cuda/bin;{Path(nvcc or '/usr/bin/nvcc').parent}"
    return f"-DCMAKE_IGNORE_PATH={hidden}", "-DCMAKE_CXX_COMPILER=/usr/bin/g++", "-DAMANDA_BUILD_PYTHON=OFF"


def test_a_build_for_cuda_needs_no_toolkit(python_with_cuda, tmp_path):
    """It is compiled and linked as one with PyTorch's own CMake files, but for libtorch.so, which has no code."""
    pythons = {"cuda": python_with_cuda("2.13.0+cu130"), "cpu": sys.executable}
    for name, python in pythons.items():
        assert configured(python, tmp_path / name, *without_toolkit(), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")[0] == 0
    commands = {
        name: [
            {*entry["command"].replace(str(tmp_path / name), "").split()}
            for entry in json.loads((tmp_path / name / "compile_commands.json").read_text())
        ]
        for name in pythons
    }
    assert len(commands["cpu"]) > 10
    assert commands["cuda"] == commands["cpu"]
    linked = {
        name: {*re.findall(r"/(lib(?:torch\w*|c10)\.so)\b", (tmp_path / name / "build.ninja").read_text())}
        for name in pythons
    }
    assert linked == {"cpu": {"libtorch.so", "libtorch_cpu.so", "libc10.so"}, "cuda": {"libtorch_cpu.so", "libc10.so"}}


def test_a_build_for_cuda_without_its_toolkit_refuses_an_old_torch(python_with_cuda, tmp_path):
    python = python_with_cuda("2.9.1+cu128")
    found = configured_without(python, tmp_path / "build", *without_toolkit())
    assert "[build] torch 2.9.1+cu128 was found; Amanda needs torch 2.11 or newer." in found


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_a_build_for_another_system_is_refused(system, tmp_path):
    assert (
        f"[build] Amanda runs on Linux only, and this is {system}; build it in a container or a virtual machine with Linux "
        "and glibc."
    ) in configured_without(sys.executable, tmp_path, f"-DCMAKE_SYSTEM_NAME={system}")


def test_a_build_for_musl_is_refused(tmp_path):
    """A compiler whose <features.h> is not glibc's, as that of Alpine Linux."""
    (tmp_path / "features.h").write_text("#define _FEATURES_H\n")
    compiler = tmp_path / "musl-g++"
    compiler.write_text(f'#!/bin/sh\nexec g++ -isystem {tmp_path} "$@"\n')
    compiler.chmod(0o755)
    assert (
        f"[build] {compiler} compiles for another C library than glibc, such as musl of Alpine Linux; PyTorch's packages "
        "and Amanda need glibc: build on Debian, Ubuntu, Fedora or a similar system."
    ) in configured_without(sys.executable, tmp_path / "build", f"-DCMAKE_CXX_COMPILER={compiler}")


def test_a_build_for_a_torch_newer_than_known_warns(python_with_cuda, tmp_path):
    python = python_with_cuda("2.15.0+cu130")
    status, errors = configured(python, tmp_path / "build", *without_toolkit())
    assert (
        "[build] torch 2.15.0 was found, which is newer than this amanda knows (2.11 to 2.14); if the build or `import "
        "amanda` fails, install torch 2.14, or take a newer amanda."
    ) in errors
    assert status == 0


def test_a_build_without_pybind11_says_what_to_do(python_without_torch, tmp_path):
    python = python_without_torch
    assert (
        f'[build] {python} has no pybind11 3. Install it: {python} -m pip install "pybind11>=3,<4"'
    ) in configured_without(python, tmp_path, "-DAMANDA_BUILD_TORCH=OFF")
