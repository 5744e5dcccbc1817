"""What the tests of regimes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amanda
import pytest
from unharmed import TOOLS, Look, run, thread_state


@pytest.fixture(params=TOOLS)
def unharmed(request: pytest.FixtureRequest) -> Callable[..., Look]:
    """unharmed(program): the program has the same results, to the bit, under a tool, in its first and in later runs.

    Returns the tool, which knows what ran in the last of them, once.
    """

    def check(program: Callable[[], Any], *, runs: int = 2, all_end: bool = True) -> Look:
        expected = run(program)
        assert run(program) == expected, "the program has to give the same each time"
        state = thread_state()
        tool = TOOLS[request.param]()
        with amanda.apply(tool):
            for _ in range(runs):
                tool.clear()
                assert run(program) == expected
        assert run(program) == expected
        assert thread_state() == state
        if all_end:  # else an operator is left by an exception, as where a checkpoint stops early
            assert sorted(tool.ended) == sorted(tool.ran)
        return tool

    return check
