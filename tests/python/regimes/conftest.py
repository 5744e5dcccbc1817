"""What the tests of regimes share."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from unharmed import TOOLS, Look, check_unharmed

QUICK = ("look at some", "look inside")


@pytest.fixture(params=[pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in TOOLS])
def unharmed(request: pytest.FixtureRequest) -> Callable[..., Look]:
    """unharmed(program): check_unharmed under each kind of tool."""
    return functools.partial(check_unharmed, TOOLS[request.param]())
