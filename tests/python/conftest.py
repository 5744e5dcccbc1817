"""Fixtures of the tests on PyTorch and the core."""

from __future__ import annotations

from collections.abc import Iterator

import amanda
import pytest
import torch
from repository import ROOT
from tool_fixtures import after, before, fresh_python, log, placeless, recorder, replace, says  # noqa: F401


def pytest_runtest_logstart(nodeid: str) -> None:
    """For `.ci/run`: the stacks that a hanging test ends with are long, and its name is above them."""
    (ROOT / "build" / "last_test").write_text(nodeid + "\n")


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
