"""Real programs under a tool that looks at every operator: not one bit differs, and nothing is left in them."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator

import amanda
import function_programs
import graph_programs
import keras
import keras_programs
import numpy as np
import pytest
from looking import Look
from real_programs import Arrays, Program, without_optimizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.tf.(layers|nn.rnn_cell).* is deprecated:UserWarning"),
    pytest.mark.timeout(600),
]
TOPICS: list[types.ModuleType] = [graph_programs, function_programs, keras_programs]


# In these, TensorFlow's optimizer changes arithmetic if no tool looks at what is between.
OPTIMIZED = [graph_programs.sparse_embedding, graph_programs.choices, graph_programs.keras_2]
OPTIMIZED += [function_programs.gathered, function_programs.mapped]
OPTIMIZED += [keras_programs.transformer, keras_programs.gru, keras_programs.convolutions, keras_programs.adversarial]


@pytest.fixture(autouse=True)
def exact(request: pytest.FixtureRequest) -> Iterator[None]:
    optimized = request.node.callspec.params["make"] in OPTIMIZED
    with without_optimizer() if optimized else contextlib.nullcontext():
        yield


def cases(topics: list[types.ModuleType]) -> list[object]:
    return [
        pytest.param(program, id=f"{topic.__name__.removesuffix('_programs')}-{program.__name__}")
        for topic in topics
        for program in topic.PROGRAMS
    ]


def built(program: Callable[[], Program]) -> Program:
    keras.utils.set_random_seed(0)
    return program()


def different(got: Arrays, expected: Arrays) -> list[str]:
    """The names of what differs, to the bit."""
    assert got.keys() == expected.keys()
    return [name for name in expected if bits(got[name]) != bits(expected[name])]


def bits(value: np.ndarray) -> object:
    return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()


def definition(program: Program) -> bytes | None:
    return program.graph and program.graph.as_graph_def().SerializeToString(deterministic=True)


@pytest.mark.parametrize("make", cases(TOPICS))
def test_a_program_gives_the_same_in_a_scope_and_after_it(make: Callable[[], Program]) -> None:
    program = built(make)
    vanilla, traces, graph = program.run(), len(program.traces), definition(program)
    look = Look()
    scope = amanda.apply(look)
    with scope:
        assert different(program.run(), vanilla) == []
    assert look.count.total() > 0
    assert look.backward.total() > 0
    inside = len(program.traces)
    assert inside <= 2 * traces  # once more for the tool
    ran = look.count + look.backward
    assert different(program.run(), vanilla) == []
    assert look.count + look.backward == ran  # the program is vanilla again
    with scope:
        assert different(program.run(), vanilla) == []
    assert len(program.traces) == inside
    assert definition(program) == graph


@pytest.mark.parametrize("make", cases(TOPICS[:2]))
def test_a_program_that_is_built_in_a_scope_gives_the_same(make: Callable[[], Program]) -> None:
    vanilla = built(make).run()
    with amanda.apply(Look()):
        program = built(make)
        assert different(program.run(), vanilla) == []
    assert different(program.run(), vanilla) == []


@pytest.mark.parametrize("make", cases(TOPICS[:2]))
def test_values_that_are_handed_back_change_nothing(make: Callable[[], Program]) -> None:
    program = built(make)
    vanilla = program.run()
    with amanda.apply(Look(hand_back=True)):
        assert different(program.run(), vanilla) == []
    assert different(program.run(), vanilla) == []
