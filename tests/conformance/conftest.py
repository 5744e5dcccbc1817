"""Each test runs once for each driver that is installed."""

from __future__ import annotations

import pytest
from adapter import Adapter, installed

ADAPTERS = {adapter.name: adapter for adapter in installed()}


@pytest.fixture
def adapters() -> dict[str, Adapter]:
    return ADAPTERS


@pytest.fixture(params=ADAPTERS)
def driver(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.fixture
def other_regime(driver: Adapter) -> Adapter:
    """The driver that has the same ids as this one."""
    if driver.same_ids_as is None:
        pytest.skip(f"no other driver's ids are those of {driver.name}")
    return ADAPTERS[driver.same_ids_as]
