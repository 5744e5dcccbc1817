"""Compiled functions in scopes of several threads at once: each runs under the tools of its own thread."""

from __future__ import annotations

import sys
import threading

import amanda
import pytest
import torch

# The first use in a process: what the driver makes then, it makes while several threads ask for it.
FIRST_USE = """
import sys, threading
import amanda, torch

torch.set_num_threads(1)
torch.manual_seed(0)
sys.setswitchinterval(float(sys.argv[1]))
THREADS = 4
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
x = torch.randn(4, 8)
compiled = torch.compile(model, backend="aot_eager")
if sys.argv[2] == "after a run":
    compiled(x)
results, begin = [], threading.Barrier(THREADS)

def work(number):
    for turn in range(3):
        tool, analyses = amanda.Tool(f"times {number}"), []
        tool.add_inst_for_op(lambda c: (analyses.append(1), c.insert_after_op(lambda y: y * number)), ops="relu")
        with amanda.apply(tool, compiled="graph"):
            begin.wait()
            y = compiled(x)
        results.append((torch.equal(y, model[2](model[1](model[0](x)) * number)), len(analyses)))

threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 2 + THREADS)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert results == [(True, 1)] * THREADS * 3, results
regions = amanda.drivers.torch_compile.front.regions._ours.values()
assert len(set(regions)) == 1, regions  # the threads share what is compiled
"""


@pytest.mark.parametrize("when", ["after a run", "before any run"])
def test_the_first_use_of_a_process_on_several_threads(forked_python, when):
    forked_python(FIRST_USE, "0.005", when)


@pytest.mark.long
@pytest.mark.parametrize("when", ["after a run", "before any run"])
def test_the_first_use_of_a_process_on_threads_that_often_switch(forked_python, when):
    for _ in range(5):
        forked_python(FIRST_USE, "1e-6", when)


# A forked child has no scope: it runs the code without taps, whether the parent has compiled the function before or not.
FORK = """
import os, sys
import amanda, torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
x = torch.randn(4, 8, requires_grad=True)
expected, twice = torch.autograd.grad(model(x).sum(), x)[0], model[2](model[1](model[0](x)) * 2)
compiled, ran = torch.compile(model, backend="aot_eager"), []
doubled = amanda.Tool("doubled")
doubled.add_inst_for_op(lambda c: c.insert_after_op(lambda y: (ran.append(1), y * 2)[1]), ops="relu")
with amanda.apply(doubled, compiled="graph"):
    if sys.argv[1] == "compiled before":
        compiled(x)
    before = len(ran)
    child = os.fork()
    if child == 0:
        gradient = torch.autograd.grad(compiled(x).sum(), x)[0]
        os._exit(0 if torch.equal(gradient, expected) and len(ran) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(compiled(x), twice) and len(ran) == before + 1, ran
"""


@pytest.mark.parametrize("when", ["compiled before", "not yet compiled"])
def test_a_forked_child(forked_python, when):
    forked_python(FORK, when)


@pytest.fixture
def often_switched():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    torch._dynamo.reset()
    yield
    sys.setswitchinterval(interval)
    torch._dynamo.reset()


def scaled(number):
    """A tool that scales results of relu, and what it was shown."""
    tool, shown = amanda.Tool(f"times {number}"), []

    def analyze(context):
        shown.append(context.op_id)
        context.insert_after_op(lambda y: y * number)

    tool.add_inst_for_op(analyze, ops="relu")
    return tool, shown


def functions():
    def first(x):
        return torch.relu(x * 2) + 1

    def second(x):
        return torch.relu(x.sin()).cos()

    def broken(x):
        x = torch.relu(x - 1)
        torch._dynamo.graph_break()
        return x * 3

    return [first, second, broken]


@pytest.mark.long
def test_threads_with_edits_of_their_own_and_threads_without_any(often_switched):
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    for _ in range(4):
        torch._dynamo.reset()
        programs = functions()
        compiled = [torch.compile(program, backend="aot_eager") for program in programs]
        expected = {}
        for number in (1, 2, 3, 4):
            with amanda.apply(scaled(number)[0]):
                expected[number] = [program(x) for program in programs]
        wrong: list[object] = []
        begin = threading.Barrier(6)

        def work(number, compiled=compiled, expected=expected, wrong=wrong, begin=begin):
            begin.wait()
            for turn in range(4):
                tool, shown = scaled(number)
                order = range(3) if number % 2 else reversed(range(3))
                if number in (0, 1):  # no scope
                    results = {i: compiled[i](x) for i in order}
                else:
                    with amanda.apply(tool, compiled="graph"):
                        results = {i: compiled[i](x) for i in order}
                right = [torch.equal(results[i], expected[number or 1][i]) for i in range(3)]
                if not all(right) or len(shown) != (3 if number > 1 else 0):
                    wrong.append((number, turn, right, len(shown)))

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1, 2, 3, 4, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
