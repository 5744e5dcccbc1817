"""Tools that only look: they change nothing, and see the same operators under every driver."""

from __future__ import annotations

import amanda
import pytest
from adapter import named
from description import ADDS_THREE_TIMES, FLIPS_OR_CLIPS, NEURON, X, flat


class Looks(amanda.Tool):
    """At every operand and every gradient, wherever it can."""

    def __init__(self):
        super().__init__()
        self.analyses = self.values = 0
        self.add_inst_for_op(self.analyse)
        self.add_inst_for_op(self.analyse_backward, backward=True)

    def analyse(self, context):
        self.analyses += 1
        context.insert_before_op(self.look)
        context.insert_after_op(self.look)

    def analyse_backward(self, context):
        self.analyses += 1
        context.insert_before_backward_op(self.look)
        context.insert_after_backward_op(self.look)

    def look(self, *values):
        self.values += len(values)


class Sees(amanda.Tool):
    """What is shown of a program: paths, names and ids."""

    def __init__(self, ops=None):
        super().__init__()
        self.forward, self.backward = {}, []
        self.add_inst_for_op(self.analyse, ops=ops)
        self.add_inst_for_op(self.analyse_backward, ops=ops, backward=True)

    def analyse(self, context):
        if context.module_path:  # else it is the framework's, not the program's: the ones that backward() begins with
            assert context.module_path not in self.forward
            self.forward[context.module_path] = (context.op.__name__, context.op_id)
            context["path"] = context.module_path

    def analyse_backward(self, context):
        self.backward.append((context.get("path"), context.op_id, context.backward_op.__name__, context.backward_op_id))


def test_looking_changes_nothing(driver):
    model = driver.build(NEURON)
    before = model.step(X), model.run(X), model.saved(), model.exported()
    looks = Looks()
    with driver.apply(looks):
        assert (model.step(X), model.run(X), model.saved()) == before[:3]
    assert looks.values > (20 if driver.capabilities.backward != "none" else 10)
    assert (model.step(X), model.run(X), model.saved(), model.exported()) == before


def test_what_is_saved_and_exported_in_a_scope_is_vanillas(driver):
    model, other = driver.build(NEURON), driver.build(NEURON)
    with driver.apply(masks_everything(driver)):
        edited = model.run(X)
        saved = model.saved()
    assert edited != other.run(X)
    assert (saved, model.saved(), model.exported()) == (other.saved(), other.saved(), other.exported())


def masks_everything(driver):
    tool = amanda.Tool("masks")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda w: driver.times(w, [0.0, 1.0, 1.0]), inputs=[1]),
        ops=named(driver, "mul"),
    )
    return tool


def test_every_operator_of_the_program_is_seen_once(driver):
    sees = Sees()
    model = driver.build(NEURON)
    with driver.apply(sees):
        for _ in range(2):
            model.step(X)
    assert {path: name for path, (name, _) in sees.forward.items()} == {
        path: driver.ops[op.kind] for path, op in NEURON.ops()
    }
    ids = [op_id for _, op_id in sees.forward.values()]
    assert len({*ids}) == len(ids)
    assert 0 not in ids


@pytest.mark.needs("gradients")
def test_every_backward_operator_is_linked_to_its_forward_operator(driver):
    sees = Sees()
    with driver.apply(sees):
        driver.build(NEURON).step(X)
    kinds = {path: op.kind for path, op in NEURON.ops()}
    of_operators = [seen for seen in sees.backward if seen[2] not in driver.leaf_ops]
    assert {path for path, *_ in of_operators} == set(kinds)  # each has some, and each belongs to an operator
    for path, op_id, name, _ in of_operators:
        assert name in driver.backward_ops[kinds[path]]
        assert op_id == sees.forward[path][1]
    own_ids = [own_id for *_, own_id in sees.backward]
    assert len({*own_ids}) == len(own_ids)
    if driver.capabilities.backward == "one":
        assert len(of_operators) == len(kinds)
    of_leaves = [seen for seen in sees.backward if seen[2] in driver.leaf_ops]
    assert len(of_leaves) == (len(NEURON.parameters) if driver.capabilities.backward == "nodes" else 0)


def test_regimes_of_a_framework_see_the_same_operators(driver, other_regime):
    seen = []
    other = other_regime.build(NEURON)
    for model in (other, driver.build(NEURON, beside=other)):
        sees = Sees()
        with driver.apply(sees):
            model.step(X)
        leaf_ops = driver.leaf_ops | other_regime.leaf_ops
        seen.append((sees.forward, sorted(one for one in sees.backward if one[2] not in leaf_ops)))
    assert seen[0] == seen[1]


@pytest.mark.needs("bodies")
def test_the_bodies_of_a_loop_are_one_operator_that_runs_often(driver):
    model, sees, runs = driver.build(ADDS_THREE_TIMES), Sees(named(driver, "add")), []
    doubles = amanda.Tool("doubles")

    def double(context):
        context.insert_before_op(lambda x: runs.append(1) or driver.times(x, [2.0, 2.0]), inputs=[1])

    doubles.add_inst_for_op(double, ops=named(driver, "add"))
    assert model.run([1.0, 2.0]) == [[4.0, 8.0]]
    with driver.apply(sees, doubles):
        assert model.run([1.0, 2.0]) == [[7.0, 14.0]]  # x + 3 * 2x
    assert [(path, name) for path, (name, _) in sees.forward.items()] == [("loop.step", driver.ops["add"])]
    assert len(runs) == 3


@pytest.mark.needs("bodies")
def test_the_branches_of_a_conditional_are_operators(driver):
    names = named(driver, "neg", "relu")
    model, sees, ran = driver.build(FLIPS_OR_CLIPS), Sees(names), []
    counts = amanda.Tool("counts")
    counts.add_inst_for_op(
        lambda c: c.insert_before_op(lambda name=c.op.__name__: ran.append(name), inputs=[]), ops=names
    )
    with driver.apply(sees, counts):
        assert flat(model.run([1.0, -2.0], [1.0])[0]) == [-1.0, 2.0]
        assert flat(model.run([1.0, -2.0], [0.0])[0]) == [1.0, 0.0]
    assert {path: name for path, (name, _) in sees.forward.items()} == {
        "choice.flip": driver.ops["neg"],
        "choice.clip": driver.ops["relu"],
    }
    assert ran == [driver.ops["neg"], driver.ops["relu"]]  # of the branch that is taken only


def test_analyses_are_told_whether_they_see_symbols(driver):
    told = set()
    tool = amanda.Tool("asks")
    tool.add_inst_for_op(lambda context: told.add((context.is_symbolic, context.namespace)))
    model = driver.build(NEURON)  # in eager mode, if the framework has one
    with driver.apply(tool):
        model.run(X)
    assert told == {(driver.capabilities.symbolic, driver.name)}
