"""Builds Amanda in an environment, imports it and runs tests."""

import dataclasses
import functools
import os
import shutil
import subprocess
import time

import junit
from environment import ROOT, Environment, NotInstalledError
from junit import Suite
from pairs import CPP_TESTS, MINUTES, SUITES, Pair

JOBS = os.environ.get("JOBS", "2")
# ccache keeps what is compiled with precompiled headers only if it may overlook their times and macros.
CCACHE_SLOPPINESS = "pch_defines,time_macros,include_file_mtime,include_file_ctime"


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


def run(pair: Pair, suites: tuple[str, ...] = tuple(SUITES), optimized: bool = True) -> Result:
    """`suites`: those of SUITES that run. Without `optimized`, the build takes about half the time."""
    result = Result(str(pair), date=time.strftime("%Y-%m-%d"))
    environment = Environment(pair)
    environment.folder.mkdir(parents=True, exist_ok=True)
    try:
        environment.make()
    except NotInstalledError as error:
        result.installed = str(error)
        return result
    result.installed = "yes"
    result.torch = environment.ask("import torch; print(torch.__version__)")
    result.python = environment.ask("import platform; print(platform.python_version())")
    build = functools.partial(_build, optimized=optimized)
    steps = {"build": build, "import": _import, "ctest": _ctest, "pytest": functools.partial(_pytest, suites=suites)}
    for name, step in steps.items():
        started = time.monotonic()
        goes_on = step(environment, result)
        result.seconds[name] = round(time.monotonic() - started)
        if not goes_on:
            break
    return result


def succeeded(result: Result) -> bool:
    """A pair that could not be installed here has not failed: its row says so."""
    if result.installed != "yes":
        return True
    suites = result.suites.values()
    return result.imports == "yes" and all(suite.passed and not suite.failed and not suite.error for suite in suites)


# Compiles what a wheel holds as a wheel does: as one unit for several sources, optimized. Tests need not be.
OPTIONS = (
    "-DAMANDA_BUILD_TESTS=ON",
    "-DAMANDA_BUILD_EXAMPLES=OFF",
    f"-DAMANDA_TEST_FOLDERS={';'.join(CPP_TESTS)}",
    "-DAMANDA_TEST_OPTIONS=-O0",
)


def _build(environment: Environment, result: Result, optimized: bool) -> bool:
    folder = environment.folder
    options = [f"-DPython_EXECUTABLE={environment.python}", *OPTIONS]
    options.append(f"-DCMAKE_CXX_FLAGS_RELEASE={'-O3' if optimized else '-O0'} -DNDEBUG")
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
    """The C++ tests of CPP_TESTS."""
    file = environment.folder / "ctest.xml"
    file.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", environment.folder / "build", "-j", JOBS, "--output-junit", file]
    with open(environment.folder / "ctest.log", "w") as log:
        _call(environment, command, log)
    result.suites["C++"] = junit.read(file)
    return True


def _pytest(environment: Environment, result: Result, suites: tuple[str, ...]) -> bool:
    """One run for all suites: each process imports torch once."""
    file = environment.folder / "pytest.xml"
    file.unlink(missing_ok=True)
    chosen = {name: SUITES[name] for name in suites}
    spread = ["-n", JOBS, "--dist", "loadfile", "--no-loadscope-reorder"]
    paths = [path for paths in chosen.values() for path in paths]
    command = [environment.python, "-m", "pytest", "-q", "--show-capture=no", f"--junit-xml={file}", *spread, *paths]
    stopped = ""
    with open(environment.folder / "pytest.log", "w") as log:
        try:
            _call(environment, command, log, timeout=MINUTES * 60)
        except subprocess.TimeoutExpired:
            stopped = f"stopped after {MINUTES} minutes"
    for name, paths in chosen.items():
        result.suites[name] = Suite(error=stopped) if stopped else junit.read(file, paths)
    return True


def _call(environment: Environment, command, output, timeout=None):
    """Runs in the checkout, with the environment's programs first."""
    variables = {
        **{"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS": CCACHE_SLOPPINESS},
        **os.environ,
        **{"PATH": f"{environment.python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    }
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=variables,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
