"""Routines before, after and in place of backward operators: what they get, what their values do, what really runs."""

# ruff: noqa: E731 -- routines, in one line

import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward import ReplaceAll, Scheduled, Watcher, same
from torch.autograd import gradcheck, gradgradcheck

nn = torch.nn
EITHER = pytest.mark.parametrize("forward", [False, True], ids=["backward analysis", "forward analysis"])


def leaf(*shape, **options):
    return torch.randn(*shape, requires_grad=True, **options)


def gradients(program, *leaves):
    """The leaves' gradients after program(*leaves) went backward."""
    for each in leaves:
        each.grad = None
    program(*leaves).sum().backward()
    return [each.grad for each in leaves]


def under(tools, program, *leaves, runs=3):
    """Gradients of each run under the tools."""
    with amanda.apply(*([tools] if isinstance(tools, amanda.Tool) else tools)):
        return [gradients(program, *leaves) for _ in range(runs)]


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


def test_what_a_node_runs_with_is_shared_by_its_routines():
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
    assert shared == [(1, "SinBackward0"), (1, "MulBackward0"), (1, "AccumulateGrad")] * 2


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


# ---- replacing -------------------------------------------------------------------------------------------------------


@EITHER
def test_a_replacements_values_are_the_grad_inputs(forward):
    x = leaf(3)
    tool = Scheduled("replace", "MulBackward0", lambda g: (g * 7, None), ops="mul", forward=forward)
    for (got,) in under(tool, lambda x: x * 2, x):
        assert got.tolist() == [7.0] * 3


def test_before_feeds_a_replacement_and_after_sees_its_result():
    x = leaf(3)
    tools = [
        Scheduled("before", "SinBackward0", lambda g: g + 1, name="b"),
        Scheduled("replace", "SinBackward0", lambda g: g * 10, name="r"),
        Scheduled("after", "SinBackward0", lambda g: g + 0.5, name="a"),
    ]
    for (got,) in under(tools, torch.sin, x):
        assert got.tolist() == [20.5] * 3


def test_a_replacement_may_return_an_undefined_gradient():
    x, y = leaf(3), leaf(3)
    for got in under(Scheduled("replace", "MulBackward0", lambda g: (None, g)), torch.mul, x, y):
        assert got[0] is None
        assert got[1].tolist() == [1.0] * 3


def counting():
    """A Function that counts how often its own backward runs."""

    class Counting(torch.autograd.Function):
        runs = 0

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            Counting.runs += 1
            return g * 2

    return Counting


def test_the_original_does_not_run():
    """Decided in its first run, that run drops its results; later ones do without it."""
    function, x = counting(), leaf(3)
    with amanda.apply(Scheduled("replace", "CountingBackward", lambda g: g * 5)):
        for _ in range(4):
            assert gradients(function.apply, x)[0].tolist() == [5.0] * 3
    assert function.runs == 1


def test_the_originals_kernel_does_not_run():
    x = leaf(1, 1, 4, 4)
    w = leaf(1, 1, 3, 3)
    replacement = lambda g: (torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), None)
    counts = []
    with amanda.apply(Scheduled("replace", "ConvolutionBackward0", replacement)):
        for _ in range(3):
            with torch.profiler.profile() as profile:
                gradients(F.conv2d, x, w)
            counts.append(sum(e.name == "aten::convolution_backward" for e in profile.events()))
    assert counts == [1, 0, 0]


@pytest.mark.xfail(strict=True, reason="a node that is in a graph already is not replaced: its results are dropped")
def test_the_original_does_not_run_again_on_a_retained_graph():
    function, x = counting(), leaf(3)
    with amanda.apply(Scheduled("replace", "CountingBackward", lambda g: g * 5)):
        y = function.apply(x).sum()
        for _ in range(3):
            x.grad = None
            y.backward(retain_graph=True)
            assert x.grad.tolist() == [5.0] * 3
    assert function.runs == 1


def test_a_replaced_node_equals_a_function_written_by_hand():
    """Training with a straight-through sign in place of tanh's derivative."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.tanh(x)

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-0.1, 0.1)

    def train(activation):
        torch.manual_seed(0)
        first, last = nn.Linear(4, 8), nn.Linear(8, 2)
        optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters()], 0.01)
        for _ in range(4):
            optimizer.zero_grad()
            last(activation(first(torch.randn(3, 4)))).square().sum().backward()
            optimizer.step()
        return [p.detach() for p in (*first.parameters(), *last.parameters())]

    with amanda.apply(Scheduled("replace", "TanhBackward0", lambda g: g.clamp(-0.1, 0.1))):
        got = train(torch.tanh)
    assert same(got, train(ByHand.apply))


def in_place_on_a_view(x):
    y = x * 1
    y[0].mul_(3)
    y[:, 1].add_(x[:, 0])
    return (y * y).relu_()


def several_outputs(x):
    a, b = x.split([1, 1])
    values, _ = a.max(1)
    return (a + b.exp()).sum() + values.sum() + sum(x.unbind(1)).sum()


PROGRAMS = {
    "views in place": in_place_on_a_view,
    "several outputs": several_outputs,
    "linear": lambda x: F.linear(x[None], torch.ones(4, 3, requires_grad=True) * 1),
    "views": lambda x: x.T.reshape(-1)[1:4].view(3, 1).expand(3, 2) * 2,
    "saved output": lambda x: torch.softmax(x.exp().sigmoid(), 0).tanh(),
    "in place": lambda x: (x * 2).add_(x).mul_(x).sigmoid_(),
    "foreach": lambda x: sum(torch._foreach_mul([x, x * 2], [2.0, 3.0])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_node_may_be_replaced_by_itself(name):
    x = leaf(2, 3)
    expected = gradients(PROGRAMS[name], x)
    tool = ReplaceAll()
    for got in under(tool, PROGRAMS[name], x):
        assert same(got, expected)
    assert tool.runs


def test_an_inner_node_may_be_replaced():
    x, w = leaf(2, 3), leaf(4, 3)
    expected = gradients(F.linear, x, w)
    for got in under(Scheduled("replace", "TBackward0", lambda g: g.t() * 2), F.linear, x, w):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1] * 2)


def test_a_replaced_node_keeps_the_users_hooks():
    x, seen = leaf(3), []

    def program(x):
        h = x * 1
        h.retain_grad()
        h.register_hook(lambda g: seen.append("hook") or g * 2)
        y = h.sin()
        y.register_hook(lambda g: seen.append("hook of sin") or g * 3)
        y.grad_fn.register_prehook(lambda gs: seen.append("prehook"))
        y.grad_fn.register_hook(lambda gi, go: seen.append("posthook"))
        program.h = h
        return y.sum()

    tool = Scheduled("replace", "SinBackward0", lambda g: seen.append("replacement") or g * 10)
    for (got,) in under(tool, program, x):
        assert got.tolist() == [60.0] * 3
        assert program.h.grad.tolist() == [60.0] * 3
    assert seen[-5:] == ["hook of sin", "prehook", "replacement", "posthook", "hook"]


def test_a_replaced_node_has_the_originals_name_and_edges():
    x = leaf(3)
    with amanda.apply(ReplaceAll(ops="sin")):
        for _ in range(2):
            y = (x * 2).sin()
            y.sum().backward()
    assert y.grad_fn.name() == "SinBackward0"
    assert y.grad_fn.next_functions[0][0].name() == "MulBackward0"


def test_a_replaced_node_of_a_graph_that_is_retained():
    x = leaf(3)
    with amanda.apply(ReplaceAll()):
        for _ in range(2):
            y = (x * x).exp().sum()
            first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    expected = torch.autograd.grad((x * x).exp().sum(), x)[0]
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)


def test_a_replaced_node_runs_the_original_after_the_scope():
    x = leaf(3)
    with amanda.apply(Scheduled("replace", "SinBackward0", lambda g: g * 0)):
        for _ in range(2):
            y = x.sin()
            y.sum().backward(retain_graph=True)
        x.grad = None
        with amanda.disabled():
            y.sum().backward(retain_graph=True)
        assert torch.equal(x.grad, x.detach().cos())
    x.grad = None
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_replaced_nodes_have_second_derivatives():
    x = torch.tensor([0.3, 0.7], dtype=torch.double, requires_grad=True)
    with amanda.apply(ReplaceAll()):
        for _ in range(2):
            assert gradcheck(lambda v: v.sin() * v**3, (x,))
            assert gradgradcheck(lambda v: v.sin() * v**3, (x,))


def test_replaced_nodes_of_operators_that_save_their_results_have_second_derivatives():
    x = leaf(3)
    with amanda.apply(ReplaceAll(ops="exp")):
        for _ in range(2):
            x.grad = None
            y = x.exp()
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (g + y).sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach().exp())


def test_a_deep_graph_of_replaced_nodes_is_freed(fresh_python):
    printed = fresh_python("""
        import amanda, torch
        def analyse(context):
            if context.backward_op.__name__ != "AccumulateGrad":
                context.replace_backward_op(lambda g: (g, None))
        tool = amanda.Tool()
        tool.add_inst_for_op(analyse, ops="mul", backward=True)
        x = torch.ones(2, requires_grad=True)
        with amanda.apply(tool):
            for depth in (2, 100_000):
                y = x
                for _ in range(depth):
                    y = y * 1.0
                if depth == 2:
                    y.sum().backward()
                del y
        print("freed")
    """)
    assert printed == "freed"


# ---- calling the original --------------------------------------------------------------------------------------------


def test_the_original_can_be_called_as_often_as_one_likes():
    x = leaf(3)
    tool = amanda.Tool()

    def analyse(context):
        op = context.backward_op
        if op.__name__ == "SinBackward0":
            context.replace_backward_op(lambda g: op(g) + op(g * 2))

    tool.add_inst_for_op(analyse, ops="sin", backward=True)
    for (got,) in under(tool, torch.sin, x):
        torch.testing.assert_close(got, 3 * x.detach().cos())


@pytest.mark.parametrize("point", ["before", "after"])
def test_the_original_can_be_called_beside_itself(point):
    x, results = leaf(3), []
    tool = amanda.Tool()

    def analyse(context):
        op = context.backward_op
        if op.__name__ == "SinBackward0":
            schedule = context.insert_before_backward_op if point == "before" else context.insert_after_backward_op
            schedule(lambda: results.append(op(torch.full((3,), 5.0))), [])

    tool.add_inst_for_op(analyse, ops="sin", backward=True)
    for (got,) in under(tool, torch.sin, x):
        assert torch.equal(got, x.detach().cos())
    assert all(torch.equal(result, 5 * x.detach().cos()) for result in results)
    assert len(results) == 3


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
