"""Programs of real libraries under tools that must not change them: not one bit differs."""

from __future__ import annotations

import functools
import gc
import random
import re
from collections.abc import Callable
from typing import Any

import amanda
import differentiation
import finetuning
import interpretability
import numpy
import probabilistic
import pytest
import structures
import torch
import torch_own
import training
from amanda.tools.check import Check
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.profile import Profile
from amanda.tools.statistics import OpStatistics
from repository import ROOT
from unharmed import Itself, Look, bits, thread_state

TOPICS = [finetuning, training, probabilistic, differentiation, interpretability, structures, torch_own]
PROGRAMS = {program.__name__: program for topic in TOPICS for program in topic.PROGRAMS}


def every_look() -> list[amanda.Tool]:
    return [Look(), Look(nested=True)]


def shipped() -> list[amanda.Tool]:
    return [Profile(), GraphTracing(), OpStatistics(), GradientStatistics(), Flops(), Check(advice=True)]


# Each with what tells that its first tool took part.
REGIMES: dict[str, tuple[Callable[[], list[amanda.Tool]], Callable[[Any], int]]] = {
    "look": (every_look, lambda tool: tool.count.total()),
    "hand back": (lambda: [Look(hand_back=True)], lambda tool: tool.count.total()),
    "shipped tools": (shipped, lambda tool: len(tool.rows())),
    "replace forward": (lambda: [Itself(backward=False)], lambda tool: tool.count.total()),
    # What has a kernel of its own, inside of composite operators and optimizers too.
    "replace inner": (lambda: [Itself(backward=False, inner=True)], lambda tool: tool.count.total()),
    "replace backward": (lambda: [Itself(forward=False)], lambda tool: tool.count.total()),
}


def left_out() -> set[str]:
    """The operators that cannot be replaced: they change shape or storage in place. As docs/limitations.md lists them."""
    page = (ROOT / "docs" / "limitations.md").read_text()
    listed = page.partition("<!-- replacements:")[2].partition("<!-- end of replacements -->")[0]
    return set(re.findall(r"`(\w+)`", listed)) | {"set_"}  # which is beside the list, and not in the operator database


def outcome(program: Callable[[], dict[str, Any]]) -> Any:
    """Everything that the program leaves behind, to the bit."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    left = bits(program())
    return {**left, "random": [bits(torch.get_rng_state()), random.getstate(), str(numpy.random.get_state())]}


@functools.cache
def alone(name: str) -> Any:
    """What the program leaves behind without a tool."""
    outcome(PROGRAMS[name])  # what a library does once only, at its first use, is done
    return outcome(PROGRAMS[name])


def differing(got: Any, expected: Any, path: str = "") -> list[str]:
    """Where two outcomes differ."""
    if isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys():
        return [found for key in got for found in differing(got[key], expected[key], f"{path}.{key}")]
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        return [found for i in range(len(got)) for found in differing(got[i], expected[i], f"{path}[{i}]")]
    return [] if got == expected else [path]


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_gives_the_same_each_time(name: str) -> None:
    expected = alone(name)
    assert differing(outcome(PROGRAMS[name]), expected) == []


MILDER = "hand back", "replace forward"  # "replace inner" replaces more operators
CASES = [
    pytest.param(name, regime, id=f"{name}-{regime}", marks=[pytest.mark.long] if regime in MILDER else [])
    for name in PROGRAMS
    for regime in REGIMES
]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # torchlens leaves its wrappers around torch
@pytest.mark.parametrize(("name", "regime"), CASES)
def test_program_gives_the_same_under_a_tool(name: str, regime: str) -> None:
    expected = alone(name)
    make, calls = REGIMES[regime]
    tools = make()
    state = thread_state()
    with amanda.apply(*tools, coverage=regime == "shipped tools"):
        got = outcome(PROGRAMS[name])
    assert differing(got, expected) == []
    assert thread_state() == state
    assert calls(tools[0]) > 0
    if isinstance(tools[0], Itself):
        assert tools[0].kept <= left_out()
    gc.collect()


MEANT = {"accelerate_offload": ["dropout-in-evaluation"] * 2}  # its models, in training mode, run without gradients


@pytest.mark.parametrize("name", PROGRAMS)
def test_check_finds_nothing_in_a_program_that_is_right(name: str) -> None:
    check = Check()
    with amanda.apply(check):
        outcome(PROGRAMS[name])
    assert [finding.rule for finding in check.findings()] == MEANT.get(name, []), check.answer()
    assert "failed" not in check.skipped
