"""The same sources give the same wheel, in each folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_environment import run

ROOT = Path(__file__).parents[2]
FOLDERS = "a", "another/and/a/longer/one"


def test_packing_does_not_depend_on_the_time_the_folder_or_the_umask(wheel, tmp_path):
    packed = []
    for name, mask in zip(FOLDERS, (0o022, 0o077), strict=True):
        copy = tmp_path / name / "copy" / wheel.name
        copy.parent.mkdir(parents=True)
        shutil.copyfile(wheel, copy)
        os.utime(copy, (1e9, 1e9 + mask))
        environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
        merge = [sys.executable, ROOT / "scripts" / "merge_wheels.py", tmp_path / name, copy]
        subprocess.run(merge, check=True, capture_output=True, umask=mask, env=environment)
        packed.append((tmp_path / name / wheel.name).read_bytes())
    assert packed[0] == packed[1]


# A loop with a call through a pointer of a function that no other file sees: both have checksums in a profile.
PROGRAM = """
#include "part.h"
namespace { __attribute__((noinline)) int local(int x) { return part(x) + 1; } }
int (*volatile pointer)(int) = local;
int main(int count, char**) {
  int sum = 0;
  for (int i = 0; i < count * 1000; ++i) sum += i & 7 ? pointer(i % 20) : i;
  return sum == 0;
}
"""
PART = "inline int part(int x) { int s = 0; for (int i = 0; i < x; ++i) s += i % 3 ? i * x : -i; return s; }\n"


def test_a_profile_fits_the_sources_in_each_folder(tmp_path):
    def compile(folder, object, *options):
        launcher = ROOT / "cmake" / "compile_same_names.sh"
        maps = [f"-ffile-prefix-map={folder}/=wrong/", f"-ffile-prefix-map={folder}/="]
        names = [*maps, f"-fprofile-prefix-path={folder}/build"]
        dependencies = ["-MD", "-MT", object, "-MF", f"{object}.d"]
        source = ["-o", object, "-c", folder / "src" / "program.cpp"]
        command = [launcher, "g++", "-O3", f"-I{folder}/include", *names, *options, *dependencies, *source]
        run(*command, cwd=folder / "build")
        assert str(folder / "include" / "part.h") in (folder / "build" / f"{object}.d").read_text()
        return (folder / "build" / object).read_bytes()

    recorded, objects = tmp_path / "recorded", []
    for name in FOLDERS:
        folder = tmp_path / name
        for file, text in {"src/program.cpp": PROGRAM, "include/part.h": PART, "build/empty": ""}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        if name == FOLDERS[0]:
            compile(folder, "program.o", f"-fprofile-generate={recorded}")
            run("g++", "-fprofile-generate", "program.o", "-o", "program", cwd=folder / "build")
            run(folder / "build" / "program")
            assert [path.name for path in recorded.iterdir()] == ["program.gcda"]
        objects.append(compile(folder, "program.o", f"-fprofile-use={recorded}", "-Werror=missing-profile"))
    assert objects[0] == objects[1]
    assert objects[0] != compile(folder, "program.o")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_build_does_not_depend_on_its_folder(tmp_path):
    """All but the libraries that link LibTorch is compiled twice: minutes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wheels = []
    for name in FOLDERS:
        for file in listed.split("\0")[:-1]:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tmp_path / name / file)
        environment = {**os.environ, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "1700000000"}
        options = ["--config-settings=cmake.define.AMANDA_BUILD_TORCH=OFF"]
        run(tmp_path / name / "scripts" / "wheel.sh", "dist", ".", *options, env=environment)
        wheels += (tmp_path / name / "dist").glob("amanda_nn-*.whl")
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
