"""Routines before, after and in place of backward operators: what they get, what their values do, what really runs."""

# ruff: noqa: E731 -- routines, in one line

import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward_tools import Scheduled, Watcher, gradients, leaf, under
from torch.autograd import gradcheck, gradgradcheck

nn = torch.nn
EITHER = pytest.mark.parametrize("forward", [False, True], ids=["backward analysis", "forward analysis"])


# ---- before and after ------------------------------------------------------------------------------------------------


@EITHER
@pytest.mark.parametrize("point", ["before", "after"])
def test_an_edit_is_what_flows_on(point, forward):
    x = leaf(3)
    tool = Scheduled(point, "SinBackward0", lambda g: g * 3, [0], ops="sin", forward=forward)
    for (got,) in under(tool, lambda x: (x * 2).sin(), x):
        assert torch.equal(got, (x * 2).detach().cos() * 3 * 2)


def test_positions_are_the_nodes():
    """AddmmBackward0 of linear: bias, input, transposed weight."""
    x, w, b = leaf(2, 3), leaf(4, 3), leaf(4)
    expected = gradients(F.linear, x, w, b)
    for position, leaf_of_it in enumerate([2, 0, 1]):
        tool = Scheduled("after", "AddmmBackward0", lambda g: g * 2, [position])
        for got in under(tool, F.linear, x, w, b):
            assert [torch.equal(g, e * 2) for g, e in zip(got, expected, strict=True)].index(True) == leaf_of_it
            assert sum(torch.equal(g, e) for g, e in zip(got, expected, strict=True)) == 2


def test_routines_get_the_gradients_of_their_positions_and_their_kwargs():
    got = []
    x, y = leaf(3), torch.ones(3)
    before = Scheduled("before", "MulBackward0", lambda *g, tag: got.append((tag, g)), tag="b", name="b")
    after = Scheduled("after", "MulBackward0", lambda *g, tag: got.append((tag, g)), tag="a", name="a")
    none = Scheduled("after", "MulBackward0", lambda *g: got.append(("n", g)), [], name="n")
    with amanda.apply(before, after, none):
        (x * y).backward(torch.full((3,), 2.0))
    assert [tag for tag, _ in got] == ["b", "a", "n"]
    assert [[g if g is None else g.tolist() for g in gs] for _, gs in got] == [[[2.0] * 3], [[2.0] * 3, None], []]


def test_a_forward_analysis_reaches_each_node_that_has_the_positions():
    runs = []
    tool = amanda.Tool()

    def analyse(context):
        for position in range(4):
            context.insert_after_backward_op(lambda g, position: runs.append(position), [position], position=position)

    tool.add_inst_for_op(analyse, ops="linear")
    with amanda.apply(tool):
        F.linear(leaf(2, 2, 3), leaf(4, 3), leaf(4)).sum().backward()
    assert sorted(runs) == [0, 0, 0, 0, 1, 2]  # View, Addmm, T, View


def test_several_edits_follow_the_order_of_the_tools():
    x = leaf(3)
    plus = Scheduled("before", "SinBackward0", lambda g: g + 1, name="plus")
    times = Scheduled("before", "SinBackward0", lambda g: g * 3, name="times")
    cos = x.detach().cos()
    assert torch.equal(under([plus, times], torch.sin, x)[-1][0], 6 * cos)
    assert torch.equal(under([times, plus], torch.sin, x)[-1][0], 4 * cos)


def test_a_dependency_runs_first_on_both_sides_and_is_wrapped():
    trace, x = [], leaf(3)

    class Named(amanda.Tool):
        def __init__(self, name):
            super().__init__(name)
            self.add_inst_for_op(self.analyse, ops="sin", backward=True)

        def analyse(self, context):
            if context.backward_op.__name__ == "SinBackward0":
                op = context.backward_op
                context.insert_before_backward_op(lambda g: trace.append(f"{self.name}<"))
                context.insert_after_backward_op(lambda g: trace.append(f"{self.name}>"))
                context.replace_backward_op(lambda g: trace.append(f"{self.name}(") or op(g))

    a, b = Named("a"), Named("b")
    b.depends_on(a)
    for got in under(b, torch.sin, x):
        assert torch.equal(got[0], x.detach().cos())
    assert trace == ["a<", "b<", "b(", "a(", "a>", "b>"] * 3


def test_what_an_execution_runs_with_is_shared_by_its_backward_operators():
    tool, shared = amanda.Tool(), []

    def before(run):
        run["runs"] = run.get("runs", 0) + 1

    def after(run):
        shared.append((run["runs"], run["node"]))

    def analyse(context):
        name = context.backward_op.__name__
        context.insert_before_backward_op(before, [], with_run=True)
        context.insert_before_backward_op(lambda run: run.update(node=name), [], with_run=True)
        context.insert_after_backward_op(after, [], with_run=True)

    tool.add_inst_for_op(analyse, ops=["sin", "mul"], backward=True)
    under(tool, lambda x: (x * 2).sin(), leaf(3), runs=2)
    assert shared == [(1, "SinBackward0"), (1, "MulBackward0"), (2, "AccumulateGrad")] * 2


@pytest.mark.xfail(strict=True, reason="run lives until the thread's next operator")
def test_what_a_node_runs_with_is_gone_when_it_throws():
    class Kept:
        pass

    kept = []

    def before(run):
        run["kept"] = Kept()
        kept.append(weakref.ref(run["kept"]))

    tool = amanda.Tool()

    def analyse(context):
        context.insert_before_backward_op(before, [], with_run=True)
        context.insert_after_backward_op(lambda run: None, [], with_run=True)

    tool.add_inst_for_op(analyse, ops="Failing", backward=True)
    with amanda.apply(tool):
        with pytest.raises(ArithmeticError):
            Failing.apply(leaf(2)).sum().backward()
        assert [reference() for reference in kept] == [None]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ArithmeticError


def test_a_removed_action_does_not_run():
    x = leaf(3)
    for point in ("before", "after", "replace"):
        tool = Scheduled(point, "SinBackward0", lambda g: g * 0)
        got = []
        with amanda.apply(tool):
            for run in range(4):
                x.grad = None
                y = torch.sin(x).sum()
                if run == 2:
                    tool.actions[0].remove()  # on a graph that is made already
                y.backward()
                got.append(x.grad)
        assert not any(g.any() for g in got[:2])
        assert all(torch.equal(g, x.detach().cos()) for g in got[2:])


def test_a_routine_added_between_forward_and_backward():
    tool, seen = amanda.Tool(), []
    tool.add_inst_for_op(lambda c: seen.append("first"), ops="sin", backward=True)
    with amanda.apply(tool):
        y = leaf(3).sin().sum()

        def analyse(context):
            seen.append(context.backward_op.__name__)
            context.insert_after_backward_op(lambda *g: seen.append("ran"))

        tool.add_inst_for_op(analyse, ops="sin", backward=True)
        y.backward()
    assert seen == ["first", "SinBackward0", "ran", "first", "AccumulateGrad", "ran"]


# ---- leaves ----------------------------------------------------------------------------------------------------------


def test_before_a_leaf_edits_what_is_accumulated():
    x = leaf(3)
    x.grad = torch.ones(3)
    with amanda.apply(Scheduled("before", "AccumulateGrad", lambda g: g * 10)):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [21.0] * 3


def test_after_a_leaf_its_grad_is_there():
    x, seen = leaf(3), []
    with amanda.apply(Scheduled("after", "AccumulateGrad", lambda *g: seen.append((g, x.grad.tolist())))):
        (x * 2).sum().backward()
        (x * 2).sum().backward()
    assert seen == [((), [2.0] * 3), ((), [4.0] * 3)]


def test_a_gradient_that_is_not_shared_is_still_taken_over():
    """Not copied: looking must not cost a second gradient's memory."""
    pointers = []

    class Fresh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            result = g * 2
            pointers.append(result.data_ptr())
            return result

    x = leaf(100)
    with amanda.apply(Watcher()):
        for _ in range(2):
            gradients(Fresh.apply, x)
            assert x.grad.data_ptr() == pointers[-1]


# ---- recorded routines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_differentiable_routine_has_a_second_derivative(point):
    """(3 g^2 cos x)' by x, with g = x^2 + 1, by hand."""
    x = torch.tensor([0.3, 0.7], dtype=torch.double, requires_grad=True)
    tool = Scheduled(point, "SinBackward0", lambda g: g * g * 3, differentiable=True)
    with amanda.apply(tool):
        (got,) = torch.autograd.grad(x.sin(), x, x.detach() * 2, create_graph=True)
        second = torch.autograd.grad(got.sum(), x)[0]
    g = x.detach() * 2
    by_hand = (g * g * 3 * x.cos()) if point == "before" else (g * x.cos()) ** 2 * 3
    torch.testing.assert_close(got, by_hand)
    torch.testing.assert_close(second, torch.autograd.grad(by_hand.sum(), x)[0])


def test_an_inserted_gradient_goes_straight_through():
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    with amanda.apply(Scheduled("after", "SinBackward0", lambda g: g * 5, ops="sin")):
        (got,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(got.sum(), x)
    torch.testing.assert_close(got, 5 * x.cos())
    torch.testing.assert_close(second, -x.detach().sin())


def test_gradcheck_through_a_differentiable_routine():
    """The routine's own derivative, by finite differences of the gradient it makes."""
    x, g = (torch.tensor([0.3, 0.7], dtype=torch.double, requires_grad=True) for _ in range(2))

    def gradient(x, g):
        return torch.autograd.grad(torch.erf(x), x, g, create_graph=True)[0]  # no ErfBackward0 in its derivatives

    for point in ("before", "after"):
        with amanda.apply(Scheduled(point, "ErfBackward0", lambda g: g.tanh() + g * g, differentiable=True)):
            assert gradcheck(gradient, (x, g))
            assert gradgradcheck(gradient, (x, g))


def test_routines_are_not_recorded_otherwise():
    states = []
    x = leaf(3)
    look = lambda g: states.append((torch.is_grad_enabled(), (g * 2).requires_grad))
    with amanda.apply(Scheduled("before", "SinBackward0", look), Scheduled("after", "SinBackward0", look, name="2")):
        torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    assert states == [(False, False)] * 2


# ---- operators that are recorded, and run backward later or never ---------------------------------------------------


def test_an_operator_that_was_only_recorded_is_analysed_when_it_first_runs_backward():
    """As in a validation loop without no_grad()."""
    tool, x = Watcher(ops="sin"), leaf(3)
    with amanda.apply(tool):
        for run in range(10):  # one place in the program
            y = x.sin()
            if run in (5, 6, 8):
                y.sum().backward()
            elif run < 5:
                assert tool.seen == []
    assert tool.nodes("sin") == ["SinBackward0", "AccumulateGrad"]
    assert tool.count() == tool.count("<") == {"SinBackward0": 3, "AccumulateGrad": 3}


def test_a_node_that_no_pass_needs_is_analysed_when_one_does():
    tool, x, y = Watcher(ops="mul"), leaf(3), leaf(3)
    with amanda.apply(tool):
        for run in range(8):
            torch.autograd.grad((x * y).sum(), [x] if run < 4 else [x, y])
            assert tool.count() == {"MulBackward0": run + 1}
        for run in range(8):
            z = (x * y).sum()
            if run < 4:
                torch.autograd.grad(z, x)
            else:
                z.backward()
    assert tool.nodes("mul") == ["MulBackward0", "MulBackward0", "AccumulateGrad", "AccumulateGrad"]
    assert tool.count() == tool.count("<") == {"MulBackward0": 16, "AccumulateGrad": 8}


def test_one_place_that_creates_many_shapes_is_analysed_once_for_each():
    """More than are kept with the place."""
    tool, x = Watcher(ops="cat"), leaf(3)
    counts = [count for _ in range(3) for count in range(1, 13)]
    with amanda.apply(tool):
        for count in counts:
            torch.cat([x.exp() for _ in range(count)]).sum().backward()
    assert tool.nodes("cat") == ["CatBackward0"] * 12
    assert tool.count() == tool.count("<") == {"CatBackward0": len(counts)}


def test_the_programs_own_hooks_on_a_node_get_all_gradients():
    x, seen = leaf(3), []
    expected = gradients(lambda x: (x * x.detach()).sin(), x)

    def program(x):
        y = (x * x.detach()).sin()
        y.grad_fn.register_prehook(lambda grads: seen.append(("pre", len(grads), grads[0] is not None)))
        y.grad_fn.register_hook(lambda grads, of: seen.append(("post", len(grads), len(of), of[0] is not None)))
        return y

    for tool in (Watcher(), Scheduled("before", "SinBackward0", lambda g: None, [0])):
        assert all(torch.equal(got, expected[0]) for (got,) in under(tool, program, x))
    assert seen == [("pre", 1, True), ("post", 1, 1, True)] * 6
