"""Fixtures of the tests on a GPU: ``make gpu``."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: cuBLAS is deterministic with it

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda", help="with cpu, those run that need a device, but no GPU")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the programs run."""
    chosen = torch.device(request.config.getoption("--device"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU is here; --device cpu runs what needs none")
    return chosen


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """For what CUDA alone has."""
    if device.type != "cuda":
        pytest.skip(f"streams, graphs and kernels are CUDA's, not of {device.type}")
    return device


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
