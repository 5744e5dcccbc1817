"""What one execution shares, forward and backward, and inputs beside outputs."""

from __future__ import annotations

import amanda
import pytest
from adapter import named
from description import ADDS_THREE_TIMES, NEURON, X, flat, neuron


@pytest.mark.needs("gradients")
def test_a_value_meets_its_own_gradient(driver):
    met = []
    tool = amanda.Tool("meets")

    def meet(*gradients, run):
        given = [driver.nested(gradient) for gradient in gradients if gradient is not None]
        met.append((run.index, flat(driver.nested(run["y"])), flat(given)))

    def analyze_backward(context):
        if context.backward_op.__name__ in driver.backward_ops["relu"]:
            context.insert_before_backward_op(meet, with_run=True)

    def analyze(context):
        context.insert_after_op(lambda y, run: run.update(y=y), outputs=[0], with_run=True)

    tool.add_inst_for_op(analyze, ops=named(driver, "relu"))
    tool.add_inst_for_op(analyze_backward, ops=named(driver, "relu"), backward=True)
    model = driver.build(NEURON)
    with driver.apply(tool):
        for _ in range(2):
            model.step(X)
    gradient = flat(NEURON.parameters["v"])  # of what relu gives, in sum(relu(…) @ v)
    assert met == [(step, neuron().positive, gradient) for step in range(2)]


@pytest.mark.needs("bodies")
def test_executions_of_a_loops_body_are_counted(driver):
    tool, seen = amanda.Tool("counts"), []
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda run: seen.append(run.index), [], with_run=True),
        ops=named(driver, "add"),
    )
    scope, model = driver.apply(tool), driver.build(ADDS_THREE_TIMES)
    for _ in range(2):
        with scope:
            model.run([1.0, 2.0])
    assert seen == [0, 1, 2, 0, 1, 2]


def test_inputs_are_shown_beside_outputs_or_refused(driver):
    tool, seen = amanda.Tool("looks"), []

    def look(y, inputs):
        seen.append([flat(driver.nested(value)) for value in (y, *inputs)])

    tool.add_inst_for_op(
        lambda context: context.insert_after_op(look, outputs=[0], inputs=None), ops=named(driver, "relu")
    )
    model = driver.build(NEURON)
    vanilla = model.step(X)
    if not driver.capabilities.both_sides:
        with driver.apply(tool), pytest.raises(amanda.Error, match="shows a routine after the operator its outputs"):
            model.step(X)
        return
    with driver.apply(tool):
        assert model.step(X) == vanilla
    shifted = [x * w + b for x, w, b in zip(X[0], flat(NEURON.parameters["w"]), NEURON.parameters["b"][0], strict=True)]
    assert seen == [[neuron().positive, shifted]]
