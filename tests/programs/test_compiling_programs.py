"""Programs that compile their models, under a tool that looks at compiled code: not one bit differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amanda
import compiling_programs
import pytest
import torch
from compiling import Looks, apply
from test_programs import differing, outcome
from unharmed import thread_state

PROGRAMS = {program.__name__: program for program in compiling_programs.PROGRAMS}
LONG = {"lora_compiled"}  # a model compiled as a whole, as the Trainer's
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in PROGRAMS]
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def no_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_program_gives_the_same_under_a_tool(name: str) -> None:
    program = PROGRAMS[name]
    outcome(program)  # what a library does once only, at its first use, is done
    expected = outcome(program)
    assert differing(outcome(program), expected) == []
    looks, state = Looks(), thread_state()
    with apply(looks):
        got = outcome(program)
    assert differing(got, expected) == []
    assert thread_state() == state
    assert differing(outcome(program), expected) == []
    assert any(each.endswith("/compile") for each in looks.namespaces)
    assert looks.forward["linear"] + looks.forward["conv2d"] > 10


def linear_outputs(program: Any, **options: Any) -> dict[int, tuple[str, str]]:
    looks = Looks(["linear", "conv2d"])
    with amanda.apply(looks, **options):
        outcome(program)
    return looks.places


@pytest.mark.parametrize("name", ["lora_compiled", pytest.param("accelerate_compiled", marks=pytest.mark.long)])
def test_layers_have_the_modules_of_eager_mode(name: str) -> None:
    eager, compiled = linear_outputs(PROGRAMS[name]), linear_outputs(PROGRAMS[name], compiled="graph")
    assert sorted(compiled.values()) == sorted(eager.values())
