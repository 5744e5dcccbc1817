"""Routines in place of backward operators: the node stays what and where it is, and does not run."""

# ruff: noqa: E731 -- routines, in one line

import contextlib
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward_tools import ReplaceAll, Scheduled, gradients, leaf, same, under
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

nn = torch.nn
EITHER = pytest.mark.parametrize("forward", [False, True], ids=["backward analysis", "forward analysis"])


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
    function, x = counting(), leaf(3)
    with amanda.apply(Scheduled("replace", "CountingBackward", lambda g: g * 5)):
        for _ in range(4):
            assert gradients(function.apply, x)[0].tolist() == [5.0] * 3
    assert function.runs == 0


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
    assert counts == [0, 0, 0]


def test_the_original_does_not_run_on_a_retained_graph():
    function, x = counting(), leaf(3)
    with amanda.apply(Scheduled("replace", "CountingBackward", lambda g: g * 5)):
        y = function.apply(x).sum()
        for _ in range(3):
            x.grad = None
            y.backward(retain_graph=True)
            assert x.grad.tolist() == [5.0] * 3
    assert function.runs == 0


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


def test_a_replaced_node_is_the_node_that_it_was():
    """All that Python can ask of a node, and of an autograd.Function's ctx."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.factor = 3
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    x = leaf(3)
    tool = ReplaceAll()
    with amanda.apply(tool):
        for runs in range(1, 3):
            y = (x * 2).tanh()
            z = Scale.apply(y)
            node, ctx = y.grad_fn, z.grad_fn
            z.sum().backward(retain_graph=True)
            assert y.grad_fn is node
            assert type(node).__name__ == "TanhBackward0"
            assert torch.equal(node._saved_result, y)
            assert node._saved_result.grad_fn is node
            assert node.next_functions[0][0].name() == "MulBackward0"
            assert z.grad_fn is ctx
            assert ctx.factor == 3
            assert ctx.saved_tensors[0] is y
            assert ctx.next_functions[0][0] is node
            assert tool.runs["TanhBackward0"] == runs


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


def test_a_deep_graph_of_replaced_nodes_is_freed(forked_python):
    printed = forked_python("""
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


# ---- nodes with side effects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"use_reentrant": True}, {"use_reentrant": False}], ids=["reentrant", "not"])
def test_checkpoints_whose_nodes_are_replaced_by_themselves(options):
    """The nodes unpack once, and accumulate once, in the run in which the replacement is decided, too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 4))
    x = leaf(2, 4)

    def step():
        torch.manual_seed(1)
        net.zero_grad()
        x.grad = None
        checkpoint(net, x, **options).sum().backward()
        return [x.grad, *(p.grad.clone() for p in net.parameters())]

    expected = step()
    tool = ReplaceAll()
    with amanda.apply(tool):
        for _ in range(3):
            assert same(step(), expected)
    assert tool.runs


def test_a_node_that_a_routine_calls_runs_once():
    function, x = counting(), leaf(3)
    tool = ReplaceAll()
    with amanda.apply(tool):
        for runs in range(1, 4):
            gradients(function.apply, x)
            assert function.runs == runs
    assert tool.runs["CountingBackward"] == 3


def test_an_original_that_writes_to_its_gradient():
    """What the program's own backward does to it is not the routine's doing."""

    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g.mul_(2)

    x = leaf(3)
    for (got,) in under(ReplaceAll(), lambda x: Doubling.apply(x) * 3, x):
        assert got.tolist() == [6.0] * 3


def test_a_replacement_that_is_decided_after_the_cache_was_cleared():
    """The node was made when nothing was scheduled on it."""
    function, x = counting(), leaf(3)
    tool = amanda.Tool()
    replace = []
    tool.add_inst_for_op(
        lambda c: replace and c.backward_op.__name__ == "CountingBackward" and c.replace_backward_op(lambda g: g * 5),
        backward=True,
    )
    with amanda.apply(tool) as scope:
        gradients(function.apply, x)
        y = function.apply(x).sum()
        replace.append(True)
        scope.cache_clear()
        x.grad = None
        y.backward()
    assert x.grad.tolist() == [5.0] * 3
    assert function.runs == 1


# ---- higher derivatives -----------------------------------------------------------------------------------------------

SAVE_THEIR_RESULTS = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "softmax": lambda x: x.softmax(-1),
    "reciprocal": torch.reciprocal,
    "tanh_": lambda x: (x * 1).tanh_(),
    "net": nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)),
}


def gradient_penalty(program, x):
    """Of the first gradient's norm; the derivatives of the program's own parameters, too."""
    leaves = [x := x.clone().requires_grad_(), *getattr(program, "parameters", list)()]
    (gradient,) = torch.autograd.grad(program(x).sum(), x, create_graph=True)
    penalty = (gradient.norm(2, dim=1) - 1).square().mean()
    return torch.autograd.grad(penalty, leaves, materialize_grads=True)


def thrice(program, x):
    first = torch.func.grad(lambda x: program(x)[0, 0])
    return [torch.func.grad(lambda x: torch.func.grad(lambda x: first(x)[0, 0])(x)[0, 0])(x)]


def hessian_vector_product(program, x):
    return torch.autograd.functional.hvp(lambda x: program(x).sum(), x, torch.ones_like(x))


def jacobian_vector_product(program, x):
    return torch.autograd.functional.jvp(program, x, torch.ones_like(x))


@pytest.mark.parametrize(
    "derivative", [gradient_penalty, thrice, hessian_vector_product, jacobian_vector_product], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("name", SAVE_THEIR_RESULTS)
def test_higher_derivatives_of_operators_that_save_their_results(name, derivative):
    """Each replaced by itself: to the bit, in the first runs and later."""
    program, x = SAVE_THEIR_RESULTS[name], torch.rand(3, 3) + 0.5
    expected = derivative(program, x)
    tool = ReplaceAll()
    with amanda.apply(tool):
        for _ in range(4):
            assert same(derivative(program, x), expected)
    assert tool.runs


def test_an_inner_loop_that_trains_through_its_own_updates():
    """MAML: gradients of a loss after an update, by the parameters before it."""
    torch.manual_seed(0)
    x, target = torch.randn(8, 4), torch.randn(8, 2)
    weights = [torch.randn(5, 4), torch.randn(2, 5)]

    def loss(weights):
        return ((torch.sigmoid(x @ weights[0].T)) @ weights[1].T - target).square().mean()

    def step():
        slow = [w.clone().requires_grad_() for w in weights]
        fast = slow
        for _ in range(3):
            gradient = torch.autograd.grad(loss(fast), fast, create_graph=True)
            fast = [w - 0.1 * g for w, g in zip(fast, gradient, strict=True)]
        return torch.autograd.grad(loss(fast), slow)

    expected = step()
    with amanda.apply(ReplaceAll()):
        for _ in range(3):
            assert same(step(), expected)


# ---- threads ----------------------------------------------------------------------------------------------------------


def test_a_thread_without_the_scope_runs_the_original_of_the_same_node():
    x = leaf(3)
    results = {"in scope": [], "outside": []}
    with amanda.apply(Scheduled("replace", "SinBackward0", lambda g: g * 5)) as scope:
        y = x.sin().sum()

    def run(name, context):
        with context:
            for _ in range(200):
                results[name].append(torch.autograd.grad(y, x, retain_graph=True)[0])

    threads = [
        threading.Thread(target=run, args=arguments)
        for arguments in [("in scope", scope), ("outside", contextlib.nullcontext())]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(got.tolist() == [5.0] * 3 for got in results["in scope"])
    assert all(torch.equal(got, x.detach().cos()) for got in results["outside"])
    assert [len(each) for each in results.values()] == [200, 200]
