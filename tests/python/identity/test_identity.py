"""What an op_id is: a place in the program, the same in every iteration, process, tool set and loop around a model."""

import subprocess
import sys
import threading
from pathlib import Path

import amanda
import op_ids
import pytest
import torch
from amanda import _torch
from op_ids import Block, Ids, Model, ids, ids_of, x
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_iterations_have_the_same_ids():
    model = Model()

    def twice():
        for _ in range(2):
            model(x)

    runs = ids(twice)
    assert runs[: len(runs) // 2] == runs[len(runs) // 2 :]


def test_a_new_scope_has_the_same_ids():
    model = Model()
    runs = ids(lambda: model(x), scopes=2)
    assert runs[: len(runs) // 2] == runs[len(runs) // 2 :]


def test_processes_have_the_same_ids(forked_python):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import op_ids as t; m = t.Model(); "
        "w = [t.nn.Parameter(t.torch.ones(2, 4)) for _ in range(2)]\n"
        "def step():\n"
        "    m(t.x); [t.torch.nn.functional.linear(t.x, v) for v in w]\n"
        "print(t.ids(step))"
    )
    folder = str(Path(op_ids.__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == forked_python(program, folder)  # their hashes of strings differ


def test_a_filter_does_not_change_ids():
    model = Model()
    every = ids(lambda: model(x))
    assert ids_of("linear", every) == ids_of("linear", ids(lambda: model(x), ops="linear"))


def test_another_scope_around_does_not_change_ids():
    model = Model()
    alone = ids(lambda: model(x))
    with amanda.apply(Ids()):
        assert ids(lambda: model(x)) == alone


def test_inner_calls_have_the_same_ids_whether_or_not_the_outer_one_is_observed():
    layer = nn.Linear(4, 4)
    batch = torch.randn(2, 2, 4)
    alone = ids(lambda: layer(batch), ops="addmm")
    nested = ids(lambda: layer(batch), nested=True)
    assert alone
    assert ids_of("addmm", alone) == ids_of("addmm", nested)


def test_training_and_validation_loops_agree_on_a_model():
    model = Model()

    def train():
        model(x).backward()

    def validate():
        with torch.no_grad():
            model(x)

    assert set(ids_of("linear", ids(train))) == set(ids_of("linear", ids(validate)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_views_of_parameters_have_one_id_each_with_and_without_gradients(mode):
    weights = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]

    def step():
        for weight in weights:
            torch.mm(x, weight.t())

    with_gradients = ids_of("mm", ids(step))
    assert len(set(with_gradients)) == 3
    for _ in range(2):
        with mode():
            assert ids_of("mm", ids(step)) == with_gradients


def test_a_function_agrees_wherever_its_scope_is_entered():
    weight = torch.randn(4, 4)

    def recorded():
        tool = Ids()
        with amanda.apply(tool):
            torch.mm(weight, weight).relu()
        return tool.runs

    assert recorded() == recorded()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_has_the_ids_of_the_first_run(reentrant):
    model = Block()
    start = torch.randn(2, 4, requires_grad=True)

    def step():
        checkpoint(model, start * 1, use_reentrant=reentrant).sum().backward()

    tool = Ids(ops=["linear", "relu"])
    with amanda.apply(tool):
        step()
    assert len(tool.runs) == 8
    assert tool.runs[:4] == tool.runs[4:]


def test_without_the_fast_walk_the_ids_are_the_same():
    model = Model()
    fast = ids(lambda: model(x))
    assert _torch.walks_frames_directly()
    _torch.walk_frames_directly(False)
    try:
        assert ids(lambda: model(x)) == fast
    finally:
        _torch.walk_frames_directly(True)


def test_a_trace_function_does_not_change_ids():
    model = Model()
    plain = ids(lambda: model(x))
    sys.settrace(lambda *event: None)
    try:
        assert ids(lambda: model(x)) == plain
    finally:
        sys.settrace(None)


def test_specialised_instructions_do_not_change_ids():
    def program(n):
        for _ in range(n):
            torch.relu(x)

    runs = ids(lambda: program(200))
    assert len(set(runs)) == 1


def test_threads_agree():
    model, seen = Model(), []

    def work():
        seen.append(tuple(ids(lambda: model(x))))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen[0] == seen[1]
