"""Taps in compiled code do what they do in eager mode."""

import amanda
import pytest
import torch
from torch import nn

BACKENDS = ["eager", "aot_eager"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.norm = nn.Linear(4, 6), nn.Linear(6, 2), nn.LayerNorm(6)

    def forward(self, x):
        first, second = torch.relu(self.norm(self.a(x))).chunk(2, -1)
        return self.b(torch.cat([second, first], -1)).sum()


def step(net, run, x):
    net.zero_grad()
    loss = run(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in net.parameters())]


def compiled_step(net, x, tool, backend="aot_eager"):
    torch._dynamo.reset()
    with amanda.apply(tool, compiled="graph"):
        return step(net, torch.compile(net, backend=backend), x)


def eager_step(net, x, tool):
    with amanda.apply(tool):
        return step(net, net, x)


def both(make_tool, backend="aot_eager", net=None):
    """What a step returns under a tool, compiled and not."""
    net, x = net or Net(), torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    return compiled_step(net, x, make_tool(), backend), eager_step(net, x, make_tool())


def equal(results, expected):
    return all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def close(results, expected):
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lists_as_indices(backend):
    """Routines get the tensors that eager mode makes of them, and edit results and gradients."""

    def function(x):
        x = x + 1  # a leaf has a backward operator of its own, in eager mode
        y = x[:, [0, 2]] * x[[1, 0], :2]
        z = x.clone()
        z[[1]] = y.sum()
        return y.sum() + z.sum()

    def ran(run):
        seen = []
        tool = amanda.Tool()

        def analyze(context):
            context.insert_before_op(lambda *values: seen.append(copied(values)))
            context.insert_after_op(lambda result: result * 2)

        def analyze_backward(context):
            context.insert_before_backward_op(lambda gradient: gradient * 3)

        tool.add_inst_for_op(analyze, ops=["index", "index_put_"])
        tool.add_inst_for_op(analyze_backward, ops="index", backward=True)
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        torch._dynamo.reset()
        with amanda.apply(tool, compiled="graph"):
            result = run(x)
            result.backward()
        return seen, [result.detach(), x.grad]

    def copied(value):
        if isinstance(value, list | tuple):
            return list(map(copied, value))
        return value.tolist() if isinstance(value, torch.Tensor) else value

    (seen, results), (expected, others) = ran(torch.compile(function, backend=backend)), ran(function)
    assert seen == expected
    assert close(results, others)


def only_linear(method, fn, ops="linear", **options):
    """A tool that schedules one action on each linear layer."""

    class Only(amanda.Tool):
        def __init__(self):
            super().__init__("only")
            self.add_inst_for_op(lambda context: getattr(context, method)(fn, **options), ops=ops)

    return Only


class Look(amanda.Tool):
    """Notes what it is shown, forward and backward."""

    def __init__(self):
        super().__init__("look")
        self.forward, self.backward, self.is_symbolic = [], [], set()
        self.add_inst_for_op(self.analyze)
        self.add_inst_for_op(self.analyze_backward, backward=True)

    def analyze(self, context):
        name = context.op.__name__
        self.is_symbolic.add(context.is_symbolic)
        context.insert_before_op(self.saw, name=name)
        context.insert_after_op(self.saw, name=name)

    def analyze_backward(self, context):
        if context.backward_op.__name__ != "AccumulateGrad":
            context.insert_before_backward_op(self.saw_gradient, name=context.op.__name__)

    def saw(self, *values, name):
        self.forward.append((name, [summary(value) for value in values]))
        return None

    def saw_gradient(self, *values, name):
        self.backward.append((name, [summary(value) for value in values if value is not None]))
        return None


def summary(value):
    if isinstance(value, torch.Tensor):
        return round(float(value.detach().double().abs().sum()), 4)
    return [summary(member) for member in value] if isinstance(value, list | tuple) else str(value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_looking_changes_nothing_and_sees_what_eager_mode_shows(backend):
    net, x = Net(), torch.randn(3, 4)
    torch._dynamo.reset()
    vanilla = step(net, torch.compile(net, backend=backend), x)
    tool, eager = Look(), Look()
    assert equal(compiled_step(net, x, tool, backend), vanilla)
    eager_step(net, x, eager)
    assert tool.forward == eager.forward
    assert tool.backward
    assert len(tool.forward) > 10
    assert True in tool.is_symbolic  # the eager driver shows ones_like, of backward()
    assert True not in eager.is_symbolic


@pytest.mark.parametrize(
    ("ops", "method", "fn"),
    [
        ("linear", "insert_before_op", lambda x, w, b: (x * 0.5, w * 2, b + 1)),
        ("linear", "insert_after_op", lambda y: y * 3 + 1),
        ("relu", "insert_before_backward_op", lambda g: g * 2),
    ],
)
def test_edits_do_what_they_do_in_eager_mode(ops, method, fn):
    compiled, eager = both(only_linear(method, fn, ops=ops))
    assert close(compiled, eager)
    assert not close(eager, both(lambda: amanda.Tool("none"))[1])


def test_an_edit_after_a_backward_operator_takes_the_arguments_in_their_order():
    seen = []

    def halve(x, weight, bias):
        seen.append([None if g is None else tuple(g.shape) for g in (x, weight, bias)])
        return None, weight / 2, None

    class Halve(amanda.Tool):
        def __init__(self):
            super().__init__("halve")
            self.add_inst_for_op(
                lambda context: context.insert_after_backward_op(halve, grad_inputs=[0, 1, 2]),
                ops="linear",
                backward=True,
            )

    net, x = Net(), torch.randn(3, 4)
    plain = step(net, net, x)
    halved = compiled_step(net, x, Halve())
    names = ["loss", *(name for name, _ in net.named_parameters())]
    for name, one, other in zip(names, plain, halved, strict=True):
        factor = 0.5 if name in ("a.weight", "b.weight") else 1
        assert torch.allclose(one * factor, other, atol=1e-6), name
    assert seen == [[(3, 6), (2, 6), (2,)], [None, (6, 4), (6,)]]


def test_a_replacement_has_the_gradient_of_what_it_computes():
    def scaled(x, weight, bias):
        return torch.tanh(x @ weight.t()) + bias * 2

    compiled, eager = both(only_linear("replace_op", scaled))
    assert close(compiled, eager)


def test_a_replacement_can_run_the_original():
    class Doubled(amanda.Tool):
        def __init__(self):
            super().__init__("doubled")
            self.add_inst_for_op(self.analyze, ops="linear")

        def analyze(self, context):
            op = context.op
            context.replace_op(lambda *inputs: op(*inputs) * 2)

    compiled, eager = both(Doubled)
    assert close(compiled, eager)


def test_a_replaced_backward_operator_has_its_own_formula():
    class Straight(amanda.Tool):
        def __init__(self):
            super().__init__("straight")
            self.add_inst_for_op(self.analyze, ops="relu", backward=True)

        def analyze(self, context):
            context.replace_backward_op(lambda gradient: gradient * 0.5)

    compiled, eager = both(Straight)
    assert close(compiled, eager)


def test_a_replaced_backward_operator_can_run_the_original():
    class Doubled(amanda.Tool):
        def __init__(self):
            super().__init__("doubled")
            self.add_inst_for_op(self.analyze, ops="relu", backward=True)

        def analyze(self, context):
            op = context.backward_op
            context.replace_backward_op(lambda gradient: 2 * op(gradient))

    compiled, eager = both(Doubled)
    assert close(compiled, eager)


def test_a_differentiable_routine_is_part_of_the_gradient():
    compiled, eager = both(only_linear("insert_after_op", lambda y: torch.sin(y), differentiable=True))
    assert close(compiled, eager)
    assert not close(compiled, both(only_linear("insert_after_op", lambda y: torch.sin(y)))[0])


def test_routines_share_a_run():
    class Relevance(amanda.Tool):
        def __init__(self):
            super().__init__("relevance")
            self.found = []
            self.add_inst_for_op(lambda context: context.insert_after_op(self.keep, with_run=True), ops="relu")
            self.add_inst_for_op(
                lambda context: context.insert_before_backward_op(self.meet, with_run=True), ops="relu", backward=True
            )

        def keep(self, state, run):
            run["state"] = state.clone()

        def meet(self, gradient, run):
            self.found.append((run.index, float((gradient * run["state"]).sum())))

    tools = []

    def make():
        tools.append(Relevance())
        return tools[-1]

    both(make)
    compiled, eager = tools
    assert compiled.found == [(index, pytest.approx(value, abs=1e-6)) for index, value in eager.found]
    assert len(compiled.found) == 1


def test_recomputed_operators_are_told_apart():
    from torch.utils.checkpoint import checkpoint

    class Block(Net):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    class Count(amanda.Tool):
        def __init__(self):
            super().__init__("count")
            self.seen = []
            self.add_inst_for_op(lambda context: context.insert_after_op(self.saw), ops="relu")

        def saw(self, y):
            self.seen.append(torch._C._current_autograd_node() is not None)

    net, x = Block(), torch.randn(3, 4)
    torch._dynamo.reset()
    vanilla = step(net, torch.compile(net, backend="aot_eager"), x)
    tool = Count()
    assert equal(compiled_step(net, x, tool), vanilla)
    assert tool.seen == [False, True]


def test_bodies_of_cond_run_taps():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: torch.sin(x), lambda x: torch.cos(x), (x,))

    compiled = torch.compile(program, backend="aot_eager")
    tool = Look()
    with amanda.apply(tool, compiled="graph"), torch.no_grad():
        torch._dynamo.reset()
        result = compiled(torch.ones(3))
    assert torch.equal(result, torch.sin(torch.ones(3)))
    assert [name for name, _ in tool.forward if name in ("sin", "cos")] == ["sin", "sin"]


def test_a_backend_may_change_bodies_without_taps_of_the_graph_that_it_gets():
    others = {torch.sin: torch.cos, torch.cos: torch.sin, "sin": "cos", "cos": "sin"}

    def destructive(gm, inputs):
        for part in gm.children():
            for node in part.graph.nodes:
                node.target = others.get(node.target, node.target)
            part.recompile()
        return gm.forward

    def function(x):
        return torch.relu(torch.cond(x.sum() > 0, lambda x: torch.sin(x), lambda x: torch.sin(x) + 1, (x,)))

    torch._dynamo.reset()
    compiled, x = torch.compile(function, backend=destructive), torch.tensor([1.0, 2.0])
    for method in ("insert_after_op", "insert_before_op"):  # each is lowered anew, from the same graph
        with amanda.apply(only_linear(method, lambda value: value * 2, ops="relu")(), compiled="graph"):
            found = compiled(x)
        assert torch.equal(found, 2 * torch.relu(torch.cos(x)))


def test_an_exception_arrives_as_itself():
    class Unexpected(Exception):
        pass

    def fail(*values):
        raise Unexpected("here")

    with pytest.raises(Unexpected, match="here"):
        both(only_linear("insert_before_op", fail))


def test_a_value_of_another_shape_is_refused_with_operator_and_reason():
    with pytest.raises(amanda.Error, match=r"linear.*shape \[3, 1\] where \[3, 6\] is needed"):
        both(only_linear("insert_after_op", lambda y: y[:, :1]))


def test_a_table_lives_as_long_as_a_backward_pass_may_run():
    net, x = Net(), torch.randn(3, 4)
    torch._dynamo.reset()
    tool = Look()
    with amanda.apply(tool, compiled="graph"):
        loss = torch.compile(net, backend="aot_eager")(x)
        torch._dynamo.reset()
        loss.backward()
    assert tool.backward


def test_incoming_gradients_after_a_backward_operator_are_an_error_that_says_what_would_work():
    tool = amanda.Tool("both sides")
    tool.add_inst_for_op(
        lambda context: context.insert_after_backward_op(lambda gradient, grad_outputs: None, [0], grad_outputs=[0]),
        ops="linear",
        backward=True,
    )
    with pytest.raises(amanda.Error, match=r"aten::linear.* shows the grad_inputs alone; keep .*with run"):
        compiled_step(Net(), torch.randn(3, 4), tool)


@pytest.mark.parametrize("shaped", [False, True])
def test_the_caller_may_change_a_result_in_place(shaped):
    linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    compiled = torch.compile(lambda x: linear(x).view(-1) if shaped else linear(x), backend="aot_eager")
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_before_backward_op(lambda grad: None), backward=True)
    with amanda.apply(tool, compiled="graph"):
        result = compiled(x)
        result *= 2
        result.sum().backward()
    assert torch.equal(linear.bias.grad, torch.full((3,), 4.0))


def test_members_of_a_list_that_need_no_gradient_get_none():
    seen, weight = [], torch.nn.Parameter(torch.ones(4, 5))
    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda context: context.insert_after_backward_op(lambda gradients: seen.append(gradients), [1]),
        ops="einsum",
        backward=True,
    )
    compiled = torch.compile(lambda x: torch.einsum("bi,ij->bj", x, weight), backend="aot_eager")
    with amanda.apply(tool, compiled="graph"):
        compiled(torch.ones(3, 4)).sum().backward()
    ((none, gradient),) = seen
    assert none is None
    assert torch.equal(gradient, weight.grad)


REFUSED = {
    "a view": (lambda x: x.sin().view(-1) + 1, "view", "its result is a view, .* with the operator's input"),
    "a list of views": (lambda x: torch.cat(x.sin().chunk(2)) + 1, "chunk", "its result is a view"),
    "a shape that is changed in place": (lambda x: x.sin().t_() + 1, "t_", "it changes its tensor's shape or storage"),
}


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize(("program", "ops", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_edit_that_a_graph_cannot_make_is_an_error_where_the_routine_edits(program, ops, reason, differentiable):
    def double(value):
        return [2 * one for one in value] if isinstance(value, list) else 2 * value

    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(lambda context: context.insert_after_op(double, differentiable=differentiable), ops=ops)
    torch.compiler.reset()
    compiled = torch.compile(program, backend="aot_eager")
    text = f"doubles: double after aten::{ops} .*: output 0: {reason}"
    with pytest.raises(amanda.Error, match=text), amanda.apply(tool, compiled="graph"):
        compiled(torch.ones(2, 2))
