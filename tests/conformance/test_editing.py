"""Tools that edit: the results are those of a model written by hand."""

from __future__ import annotations

from dataclasses import replace

import amanda
import pytest
from adapter import named
from description import MASK, NEURON, VIEWS, Result, X, flat, neuron
from masking import Masks

NO_GRADIENTS = {name: [] for name in NEURON.parameters}


def result_of(step):
    (total, positive), gradients = step
    found = {name: flat(gradient) for name, gradient in gradients.items()} or NO_GRADIENTS
    return Result(flat(total)[0], flat(positive), **found)


def by_hand(driver, **edits):
    """As far as the framework computes it."""
    result = neuron(**edits)
    return replace(result, **NO_GRADIENTS) if driver.capabilities.backward == "none" else result


def test_the_vanilla_model_is_the_one_written_by_hand(driver):
    assert result_of(driver.build(NEURON).step(X)) == by_hand(driver)


def zeros(driver, how):
    """Has every relu give zeros."""
    tool = amanda.Tool("zeros")

    def analyse(context):
        routine = {"replace": context.replace_op, "after": context.insert_after_op}[how]
        routine(lambda value: driver.times(value, [0.0] * 3))

    tool.add_inst_for_op(analyse, ops=named(driver, "relu"))
    return tool


def test_relu_replaced_by_zeros(driver):
    with driver.apply(zeros(driver, "replace")):
        assert result_of(driver.build(NEURON).step(X)) == by_hand(driver, zeros=True)


@pytest.mark.needs("gradients")
def test_backward_does_not_see_what_an_after_action_made_of_a_result(driver):
    """The next operator does; what relu's own gradient is computed from is relu's result."""
    vanilla, by_zeros = neuron(), neuron(zeros=True)
    with driver.apply(zeros(driver, "after")):
        assert result_of(driver.build(NEURON).step(X)) == replace(by_zeros, w=vanilla.w, b=vanilla.b)


@pytest.mark.needs("gradients")
def test_backward_sees_what_a_before_action_made_of_an_input(driver):
    vanilla = neuron()
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda a: driver.times(a, [2.0] * 3), inputs=[0]),
        ops=named(driver, "matmul"),
    )
    with driver.apply(tool):
        result = result_of(driver.build(NEURON).step(X))
    # v's gradient is the value that the product got; w's passes the edit straight through.
    assert result == replace(vanilla, loss=2 * vanilla.loss, v=[2 * value for value in vanilla.v])


@pytest.mark.needs("gradients")
def test_whose_gradient_a_replacement_has(driver):
    """relu(x) -> 2x. Its own gradient is 2; where gradients are in the graph already, it is relu's."""
    vanilla = neuron()
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(
        lambda context: context.replace_op(lambda x: driver.times(x, [2.0] * 3)), ops=named(driver, "relu")
    )
    with driver.apply(tool):
        result = result_of(driver.build(NEURON).step(X))
    own = [2 * number for number in flat(NEURON.parameters["v"])]
    kept = (
        vanilla.b
    )  # relu's backward operator sees 2x, where it would see relu(x): of the same sign, or both not positive
    assert result.b == (kept if driver.capabilities.keeps_gradients else own)


def test_a_weight_and_its_gradient_masked(driver):
    masks, model = Masks(driver), driver.build(NEURON)
    with driver.apply(masks):
        for _ in range(3):
            assert result_of(model.step(X)) == by_hand(driver, mask=MASK)
    assert len({*masks.analysed}) == masks.analyses >= (1 if driver.capabilities.backward == "none" else 2)
    assert result_of(model.step(X)) == by_hand(driver)


def test_what_one_regime_analysed_holds_in_the_other(driver, other_regime):
    if other_regime.capabilities.symbolic:
        pytest.skip("an analysis of symbols does not hold for values")
    masks, other = Masks(driver), other_regime.build(NEURON)
    with driver.apply(masks):
        for model in (other, driver.build(NEURON, beside=other)):
            assert result_of(model.step(X)) == neuron(mask=MASK)
    assert len({*masks.analysed}) == masks.analyses == 2


@pytest.mark.needs("views")
def test_an_edit_that_the_driver_cannot_make_is_refused_at_analysis(driver):
    ran = []
    tool = amanda.Tool("editor")
    tool.add_inst_for_op(
        lambda context: context.replace_op(lambda x, *_: ran.append(x) or x), ops=named(driver, "flatten")
    )
    model = driver.build(VIEWS)
    with driver.apply(tool), pytest.raises(amanda.Error) as refused:
        model.run([[1.0, 2.0]])
    assert str(refused.value).startswith("[context] editor: replace_op on ")
    assert driver.ops["flatten"] in str(refused.value)
    assert "view" in str(refused.value)
    assert ran == []
    assert model.run([[1.0, 2.0]]) == [[-1.0, -2.0]]


@pytest.mark.needs("views")
def test_where_an_edit_is_refused_looking_is_allowed(driver):
    seen = []
    tool = amanda.Tool("looks")
    tool.add_inst_for_op(
        lambda context: context.insert_after_op(lambda y: seen.append(driver.nested(y))), ops=named(driver, "flatten")
    )
    with driver.apply(tool):
        assert driver.build(VIEWS).run([[1.0, 2.0]]) == [[-1.0, -2.0]]
    assert seen == [[-1.0, -2.0]]
