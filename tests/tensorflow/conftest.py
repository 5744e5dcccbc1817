"""Fixtures of the tests on TensorFlow, and how it starts."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import: it tells of GPUs that it does not find
os.environ.setdefault("OMP_NUM_THREADS", "1")
# With oneDNN, two programs that are compared to the bit differ in the last ones on a processor with AVX512-BF16.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import gc
from collections.abc import Callable, Iterator
from typing import Any

import amanda
import numpy as np
import pytest
import tensorflow as tf
from tool_fixtures import after, before, fresh_python, log, placeless, recorder, replace, says  # noqa: F401


def pytest_collection_finish() -> None:
    """Tests of lifetimes call `gc.collect`: it looks at what they made, and not at all of TensorFlow each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Each test starts from the same random state, and must leave its thread as it found it."""
    np.random.seed(0)
    tf.random.set_seed(0)
    yield
    assert amanda.is_enabled()
    assert amanda.is_cache_enabled()
    assert tf.executing_eagerly()


@pytest.fixture(params=["run_v1", "run_function"], ids=["v1", "function"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs nodes of the op AmandaTap, in a graph of version 1 and in a function."""
    import by_hand_taps  # loads the op

    return getattr(by_hand_taps, request.param)
