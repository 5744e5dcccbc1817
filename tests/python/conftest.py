"""Fixtures of the tests on PyTorch and the core."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import amanda
import pytest
import torch
from preloaded import Preloaded
from repository import ROOT
from tool_fixtures import after, before, fresh_python, log, placeless, recorder, replace, says  # noqa: F401


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logstart(nodeid: str) -> None:
    """For `.ci/run`: the stacks that a hanging test ends with are long, and its name is above them."""
    (ROOT / "build" / "last_test").write_text(nodeid + "\n")


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


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Each test starts from the same random state, and must leave its thread as it found it."""
    torch.manual_seed(0)
    yield
    assert amanda.is_enabled()
    assert amanda.is_cache_enabled()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    keys = torch._C._dispatch_tls_local_include_set()
    assert not any(keys.has(torch._C._parse_dispatch_key(key)) for key in amanda._torch.dispatch_keys())
