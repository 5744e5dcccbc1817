"""Builds Amanda in an environment, imports it and runs tests."""

import dataclasses
import os
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from environment import ROOT, Environment, NotInstalledError
from pairs import MINUTES, SUITES, Pair

JOBS = os.environ.get("JOBS", "2")


@dataclasses.dataclass
class Suite:
    """How many tests of a suite ended how."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)  # their names
    error: str = ""  # why it did not run to its end


@dataclasses.dataclass
class Result:
    """The result of a pair. A step that failed is the last one: its text says why."""

    pair: str
    torch: str = ""  # as it calls itself
    python: str = ""
    installed: str = "no"  # "yes", or why not
    builds: str = "no"
    imports: str = "no"
    doctor: str = ""
    suites: dict[str, Suite] = dataclasses.field(default_factory=dict)
    seconds: dict[str, int] = dataclasses.field(default_factory=dict)
    date: str = ""


def run(pair: Pair) -> Result:
    result = Result(str(pair), date=time.strftime("%Y-%m-%d"))
    environment = Environment(pair)
    try:
        environment.make()
    except NotInstalledError as error:
        result.installed = str(error)
        return result
    result.installed = "yes"
    result.torch = environment.ask("import torch; print(torch.__version__)")
    result.python = environment.ask("import platform; print(platform.python_version())")
    for step in _build, _import, _ctest, _pytest:
        started = time.monotonic()
        goes_on = step(environment, result)
        result.seconds[step.__name__.strip("_")] = round(time.monotonic() - started)
        if not goes_on:
            break
    return result


def _build(environment: Environment, result: Result) -> bool:
    folder = environment.folder
    options = [f"-DPython_EXECUTABLE={environment.python}", "-DAMANDA_BUILD_TESTS=ON", "-DAMANDA_BUILD_EXAMPLES=OFF"]
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    steps = [
        ["cmake", "--preset", "release", "-B", folder / "build", *options],
        ["cmake", "--build", folder / "build", "-j", JOBS],
        ["cmake", "--install", folder / "build", "--prefix", folder / "stage"],
    ]
    with open(folder / "build.log", "w") as log:
        for step in steps:
            if _call(environment, step, log).returncode != 0:
                result.builds = f"no: see {(folder / 'build.log').relative_to(ROOT)}"
                return False
    environment.use(folder / "stage")
    result.builds = "yes"
    return True


def _import(environment: Environment, result: Result) -> bool:
    done = _call(environment, [environment.python, "-m", "amanda", "doctor"], subprocess.PIPE)
    result.doctor = done.stdout
    last = (done.stdout.strip().splitlines() or [""])[-1]
    result.imports = "yes" if done.returncode == 0 else f"no: {last}"
    return done.returncode == 0


def _ctest(environment: Environment, result: Result) -> bool:
    """All C++ tests: the core's, and the driver's against this LibTorch."""
    file = environment.folder / "ctest.xml"
    file.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", environment.folder / "build", "-j", JOBS, "--output-junit", file]
    with open(environment.folder / "ctest.log", "w") as log:
        _call(environment, command, log)
    result.suites["C++"] = _read(file)
    return True


def _pytest(environment: Environment, result: Result) -> bool:
    for name, paths in SUITES.items():
        file = environment.folder / f"{name}.xml"
        file.unlink(missing_ok=True)
        command = [
            environment.python,
            "-m",
            "pytest",
            "-q",
            f"--junit-xml={file}",
            "-n",
            JOBS,
            "--dist",
            "loadfile",
            *paths,
        ]
        with open(environment.folder / f"{name}.log", "w") as log:
            try:
                _call(environment, command, log, timeout=MINUTES * 60)
            except subprocess.TimeoutExpired:
                result.suites[name] = Suite(error=f"stopped after {MINUTES} minutes")
                continue
        result.suites[name] = _read(file)
    return True


def _call(environment: Environment, command, output, timeout=None):
    """Runs in the checkout, with the environment's programs first."""
    variables = {**os.environ, "PATH": f"{environment.python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=variables,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def _read(file: Path) -> Suite:
    """The suite of a JUnit file."""
    if not file.exists():
        return Suite(error="its runner failed")
    suite = Suite()
    for case in ElementTree.parse(file).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            suite.failed.append(f"{re.sub(r'^tests[.]python[.]', '', case.get('classname', ''))}::{case.get('name')}")
        elif case.find("skipped") is not None:
            suite.skipped += 1
        else:
            suite.passed += 1
    return suite
