"""What tools' code raises arrives as itself: the same object."""

from __future__ import annotations

import logging
import re

import amanda
import pytest
from adapter import named
from description import NEURON, X, flat, neuron


class Mine(Exception):
    pass


def raises(error):
    def routine(*_):
        raise error

    return routine


SCHEDULES = {
    "before": lambda context, routine: context.insert_before_op(routine),
    "after": lambda context, routine: context.insert_after_op(routine),
    "replace": lambda context, routine: context.replace_op(routine),
    "before backward": lambda context, routine: context.insert_before_backward_op(routine),
    "after backward": lambda context, routine: context.insert_after_backward_op(routine),
}


@pytest.mark.parametrize(
    "where",
    [pytest.param(one, marks=[pytest.mark.needs("gradients")] if "backward" in one else []) for one in SCHEDULES],
)
def test_a_routines_error_is_the_same_object(driver, where):
    error = Mine("mine")
    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: SCHEDULES[where](context, raises(error)), ops=named(driver, "relu"))
    model = driver.build(NEURON)
    vanilla = model.step(X)
    with driver.apply(tool), pytest.raises(Mine) as raised:
        model.step(X)
    assert raised.value is error
    assert "[amanda] in tool 'careless'" in error.__notes__[0]
    assert model.step(X) == vanilla


def test_an_analysis_error_is_the_same_object_and_is_not_remembered(driver):
    errors = [Mine("first"), Mine("second")]
    tool = amanda.Tool("careless")
    left = list(errors)

    def analyse(context):
        if left:
            raise left.pop(0)

    tool.add_inst_for_op(analyse, ops=named(driver, "relu"))
    model = driver.build(NEURON)
    with driver.apply(tool):
        for error in errors:
            with pytest.raises(Mine) as raised:
                model.run(X)
            assert raised.value is error
        assert flat(model.run(X)[0])[0] == neuron().loss


def test_a_tool_that_fails_is_disabled(driver, caplog):
    ran = []
    tool = amanda.Tool("careless")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda x: ran.append(1) or 1 / 0), ops=named(driver, "relu")
    )
    model = driver.build(NEURON)
    with caplog.at_level(logging.WARNING, "amanda"), driver.apply(tool, on_error="disable"):
        for _ in range(2):
            assert flat(model.run(X)[0])[0] == neuron().loss
    assert len(ran) == 1
    assert sum("careless" in record.getMessage() for record in caplog.records) == 1


def test_a_value_that_does_not_fit_is_an_error_that_names_tool_and_operator(driver):
    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: "no array"), ops=named(driver, "relu"))
    with driver.apply(tool), pytest.raises(amanda.Error) as raised:
        driver.build(NEURON).run(X)
    assert str(raised.value).startswith("[action] careless: <lambda> after ")
    assert re.search(
        rf"::{driver.ops['relu']} in positive( \(forward, .*\))?: output 0( \(\w+\))?: (got )?str where ",
        str(raised.value),
    )
