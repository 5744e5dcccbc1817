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
    adapter = ADAPTERS[request.param]
    can = adapter.capabilities
    has = {"gradients": can.backward != "none", "bodies": can.shows_bodies, "views": can.has_views}
    lacks = [mark.args[0] for mark in request.node.iter_markers("needs") if not has[mark.args[0]]]
    if lacks:
        pytest.skip(f"{adapter.name} has no {lacks[0]} that tools are shown")
    return adapter


@pytest.fixture
def other_regime(driver: Adapter) -> Adapter:
    """The driver that has the same ids as this one."""
    if driver.same_ids_as is None:
        pytest.skip(f"no other driver's ids are those of {driver.name}")
    return ADAPTERS[driver.same_ids_as]
