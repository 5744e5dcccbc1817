"""Fixtures of the tests on PyTorch and the core."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import: the threads of several processes wait for each other

import gc
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import amanda
import pytest
import torch
from amanda.drivers.torch import backward_pass
from preloaded import Preloaded
from rank_programs import Ranks
from repository import ROOT
from tool_fixtures import after, before, fresh_python, log, placeless, recorder, replace, says  # noqa: F401
from torch.optim import optimizer


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


OPTIMIZER_HOOKS = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks

# Workers of pytest-xdist take one file after another. They end together if the files that take longest come first: those
# that run for a given time, start programs, or compile.
# First of all come those that look at all objects of the process, of which thousands of tests leave many.
AMONG_FEW_OBJECTS = {"test_memory_growth.py"}
LONG_FIRST = ["scopes", "core", "house", "cli", "models", "reports", "regimes", "drivers", "research", "tools"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {name: place for place, name in enumerate(LONG_FIRST)}
        below = len(ROOT.parts) + 2  # tests/python
        items.sort(
            key=lambda item: (item.path.name not in AMONG_FEW_OBJECTS, places.get(item.path.parts[below], len(places)))
        )


def pytest_collection_finish() -> None:
    _freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Tests of lifetimes call `gc.collect` often: it looks at what they made, and not each time at all of PyTorch and what
    other files have left."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str) -> None:
    _running.append(nodeid)
    _write_running()


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.remove(nodeid)
    _write_running()


_running: list[str] = []


def _write_running() -> None:
    """For `.ci/run`: the stacks that a hanging test ends with are long, and its name is above them.

    Workers of pytest-xdist report to the main process, which knows the tests of all.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        (ROOT / "build" / "running_tests").write_text("".join(f"{nodeid}\n" for nodeid in _running))


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    made = Preloaded()
    yield made
    made.close()


@pytest.fixture
def run_example(preloaded: Preloaded, tmp_path: Path) -> Callable[[str], str]:
    """run_example("trace.py"): what that file of examples/python prints, on one thread. It must succeed."""

    def run(name: str) -> str:
        done = preloaded.run(str(ROOT / "examples" / "python" / name), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def forked_python(preloaded: Preloaded, tmp_path: Path) -> Callable[..., str]:
    """As `fresh_python`, where it may be that PyTorch and Amanda are imported already. The code may have arguments."""

    def run(code: str, *arguments: object, **environment: str) -> str:
        command = ["-c", textwrap.dedent(code), *map(str, arguments)]
        (done,) = preloaded.run_together([command], [environment], folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def ranks(preloaded: Preloaded, tmp_path: Path) -> Ranks:
    return Ranks(preloaded, tmp_path)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch's own threads: one. Sums are the same to the bit in every run, and operators on small tensors are fast."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Each test starts from the same random state, and must leave its thread as it found it."""
    torch.manual_seed(0)
    hooks = _hooks()
    yield
    assert _hooks() == hooks
    assert amanda.is_enabled()
    assert amanda.is_cache_enabled()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    keys = torch._C._dispatch_tls_local_include_set()
    assert not any(keys.has(torch._C._parse_dispatch_key(key)) for key in amanda._torch.dispatch_keys())


def _hooks() -> tuple[object, ...]:
    """The listeners and hooks of the process, by which tools learn of passes and steps."""
    return backward_pass._listeners, *(tuple(each) for each in OPTIMIZER_HOOKS)
