"""Scopes: opened, left and opened again; in one another; on several threads; and what routines run."""

from __future__ import annotations

import threading

import amanda
import pytest
from adapter import named
from description import MASK, NEURON, X, flat, neuron
from masking import Masks


def masks_the_weight(driver):
    masks = amanda.Tool("masks")
    masks.analyses = 0

    def analyse(context):
        masks.analyses += 1
        context.insert_before_op(lambda w: driver.times(w, MASK), inputs=[1])

    masks.add_inst_for_op(analyse, ops=named(driver, "mul"))
    return masks


def loss_of(model):
    return flat(model.run(X)[0])[0]


def test_off_and_on_again_builds_nothing_anew(driver):
    masks, model = Masks(driver), driver.build(NEURON)
    scope = driver.apply(masks)
    built = None
    for _ in range(3):
        with scope:
            assert loss_of(model) == neuron(mask=MASK).loss
            with amanda.disabled():
                assert loss_of(model) == neuron().loss
            assert loss_of(model) == neuron(mask=MASK).loss
        assert loss_of(model) == neuron().loss
        built = built if built is not None else (masks.analyses, model.builds())
        assert (masks.analyses, model.builds()) == built


def test_a_scope_that_is_opened_in_another_analyses_nothing_of_the_others_again(driver):
    masks, looks, model = Masks(driver), amanda.Tool("looks"), driver.build(NEURON)
    looks.add_inst_for_op(lambda context: context.insert_before_op(lambda: None, inputs=[]))
    with driver.apply(masks) as outer:
        model.run(X)
        analyses = masks.analyses
        with driver.apply(looks):
            assert loss_of(model) == neuron(mask=MASK).loss
        assert masks.analyses == analyses
        outer.cache_clear()
        assert loss_of(model) == neuron(mask=MASK).loss
    assert masks.analyses == 2 * analyses


@pytest.mark.needs("gradients")
def test_tools_run_in_order_on_both_sides(driver):
    ran = []

    def tool(name):
        made = amanda.Tool(name)

        def analyse(context):
            context.insert_before_op(lambda: ran.append(f"{name}<"), inputs=[])
            context.insert_after_op(lambda: ran.append(f"{name}>"), outputs=[])

        def analyse_backward(context):
            context.insert_before_backward_op(lambda: ran.append(f"{name}'<"), grad_outputs=[])

        made.add_inst_for_op(analyse, ops=named(driver, "relu"))
        made.add_inst_for_op(analyse_backward, ops=named(driver, "relu"), backward=True)
        return made

    first, second, inner = tool("a"), tool("b"), tool("c")
    second.depends_on(first)
    with driver.apply(second), driver.apply(inner):
        driver.build(NEURON).step(X)
    assert ran == ["a<", "b<", "c<", "a>", "b>", "c>", "a'<", "b'<", "c'<"]


def test_edits_of_two_tools_add_up(driver):
    def doubles():
        tool = amanda.Tool("doubles")
        tool.add_inst_for_op(
            lambda context: context.insert_after_op(lambda y: driver.times(y, [2.0] * 3)), ops=named(driver, "relu")
        )
        return tool

    model = driver.build(NEURON)
    with driver.apply(doubles(), doubles()):
        assert loss_of(model) == 4 * neuron().loss
        with driver.apply(doubles()):
            assert loss_of(model) == 8 * neuron().loss
        assert loss_of(model) == 4 * neuron().loss


def test_routines_and_analyses_are_not_instrumented(driver):
    model, other, analysed = driver.build(NEURON), driver.build(NEURON), []
    watches = amanda.Tool("watches")
    watches.add_inst_for_op(lambda context: analysed.append(context.module_path), ops=named(driver, *driver.ops))
    runs = amanda.Tool("runs")

    def analyse(context):
        other.run(X)
        context.insert_before_op(lambda: other.run(X) and None, inputs=[])

    runs.add_inst_for_op(analyse, ops=named(driver, "relu"))
    with driver.apply(watches, runs):
        assert loss_of(model) == neuron().loss
    assert analysed == [path for path, _ in NEURON.ops()]


def test_what_runs_share_is_one_executions(driver):
    seen = []
    tool = amanda.Tool("shares")

    def analyse(context):
        context.insert_before_op(lambda run: run.update(count=run.get("count", 0) + 1), inputs=[], with_run=True)
        context.insert_after_op(lambda run: seen.append(run["count"]), outputs=[], with_run=True)

    tool.add_inst_for_op(analyse, ops=named(driver, "relu"))
    model = driver.build(NEURON)
    with driver.apply(tool):
        model.run(X)
        model.run(X)
    assert seen == [1, 1]


def test_four_threads_on_one_model(driver):
    masks, model, wrong = masks_the_weight(driver), driver.build(NEURON), []
    scope = driver.apply(masks)
    vanilla, masked = neuron().loss, neuron(mask=MASK).loss
    assert vanilla != masked

    def work():
        try:
            for _ in range(10):
                losses = [loss_of(model)]
                with scope:
                    losses.append(loss_of(model))
                    with amanda.disabled():
                        losses.append(loss_of(model))
                if losses != [vanilla, masked, vanilla]:
                    wrong.append(losses)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert masks.analyses == 1
    assert model.builds() in (None, 1)
