"""Automatic differentiation: what looking, editing and recording do to the forward pass that autograd records."""

# ruff: noqa: E731 -- modules written by hand, in one line

import amanda
import pytest
import torch
import torch.nn.functional as F
from by_hand import StraightThrough, assert_same, edit
from torch.autograd import gradcheck, gradgradcheck


def program(x, w):
    return torch.relu(x @ w) * 3


# ---- straight through ------------------------------------------------------------------------------------------------


def test_an_edited_input_takes_over_the_gradient_edge(before):
    by_hand = lambda x, w: torch.relu(StraightThrough.apply(x @ w, edit)) * 3
    assert_same(before("relu", edit), program, by_hand)


def test_an_edited_output_takes_over_the_gradient_edge(after):
    by_hand = lambda x, w: StraightThrough.apply(torch.relu(x @ w), edit) * 3
    assert_same(after("relu", edit), program, by_hand)


def test_a_leaf_keeps_training_through_an_edit(before):
    by_hand = lambda x, w: torch.relu(x @ StraightThrough.apply(w, edit)) * 3
    assert_same(before("matmul", edit, ["other"]), program, by_hand)


def test_a_masked_weight_still_trains(before):
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    mask = (torch.rand(4, 4) > 0.5).float()
    with amanda.apply(before("linear", lambda weight, mask: weight * mask, ["weight"], mask=mask)):
        model(x).square().sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.linear(x, StraightThrough.apply(model.weight, lambda w: w * mask), model.bias).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(got, model.parameters(), strict=True))
    assert model.weight.grad_fn is None
    assert model.weight.is_leaf


def test_members_of_a_list_keep_their_edges(before):
    by_hand = lambda x, w: torch.cat([StraightThrough.apply(x, edit), StraightThrough.apply(w, edit)])
    assert_same(before("cat", lambda tensors: [edit(t) for t in tensors], [0]), lambda x, w: torch.cat([x, w]), by_hand)


def test_several_edits_in_a_row_keep_the_edge(before, after):
    by_hand = lambda x, w: StraightThrough.apply(torch.relu(StraightThrough.apply(x @ w, edit)), edit) * 3
    assert_same([before("relu", edit), after("relu", edit)], program, by_hand)


def test_the_operator_saves_the_value_that_was_put_in(before):
    """x*x with its first factor replaced: backward sees the value that the operator saw."""
    by_hand = lambda x, w: StraightThrough.apply(x, edit) * w[:4]
    assert_same(before("mul", edit, ["self"]), lambda x, w: x * w[:4], by_hand)


def test_an_inserted_tensor_of_the_tools_own_is_not_touched(after):
    x = torch.randn(3, requires_grad=True)
    own = torch.nn.Parameter(torch.ones(3))
    with amanda.apply(after("relu", lambda y: own)):
        y = torch.relu(x)
    y.sum().backward()
    assert y is not own
    assert torch.equal(x.grad, (x > 0).float())
    assert own.grad is None
    assert own.is_leaf


def test_what_needs_no_gradient_gets_none(after):
    own = torch.nn.Parameter(torch.ones(3))
    with amanda.apply(after("relu", lambda y: own)):
        assert not torch.relu(torch.ones(3)).requires_grad
        with torch.no_grad():
            assert not torch.relu(torch.ones(3, requires_grad=True)).requires_grad


# ---- isolation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_routines_and_analyses_are_not_recorded(regime):
    states = []

    def look(x):
        states.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), (x * 2).requires_grad))

    tool = amanda.Tool()

    def analyse(context):
        look(context.inputs[0])
        context.insert_before_op(look)
        context.insert_after_op(look)

    tool.add_inst_for_op(analyse, ops="relu")
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(tool), regime():
        torch.relu(x)
    assert states == [(False, False, False)] * 3


def test_autocast_does_not_reach_a_routine(before):
    states = []
    w = torch.nn.Parameter(torch.ones(2, 2))

    def look(x, weight, bias):
        states.append(((weight @ weight).dtype, torch.is_autocast_enabled("cpu")))

    with torch.autocast("cpu"):
        with amanda.apply(before("linear", look)):
            y = F.linear(torch.ones(1, 2), w)
        assert y.dtype == torch.bfloat16
        y.sum().backward()
    assert states[0][0] == torch.float32
    assert w.grad is not None  # the cast was not cached without its gradient


def test_what_an_analysis_makes_in_inference_mode_can_be_saved_for_backward():
    masks = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: masks.append(c.inputs[0] * 2), ops="relu")
    with amanda.apply(tool), torch.inference_mode():
        torch.relu(torch.ones(2))
    w = torch.ones(2, requires_grad=True)
    (w * masks[0]).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


# ---- recorded routines -----------------------------------------------------------------------------------------------


def test_a_differentiable_routine_is_recorded(before, after):
    assert_same(after("relu", edit, differentiable=True), program, lambda x, w: edit(torch.relu(x @ w)) * 3)
    assert_same(before("relu", edit, differentiable=True), program, lambda x, w: torch.relu(edit(x @ w)) * 3)


def test_a_routine_that_enables_gradients_itself_is_recorded(before, after):
    def recorded(x):
        with torch.enable_grad():
            return edit(x)

    assert_same(before("relu", recorded), program, lambda x, w: torch.relu(edit(x @ w)) * 3)
    assert_same(after("relu", recorded), program, lambda x, w: edit(torch.relu(x @ w)) * 3)


def test_a_differentiable_routine_may_change_the_shape(after):
    assert_same(after("relu", lambda y: y[:2] * y[2:], differentiable=True), program,
                lambda x, w: (lambda y: y[:2] * y[2:])(torch.relu(x @ w)) * 3)  # fmt: skip


def test_a_differentiable_routine_follows_the_programs_mode(after):
    with amanda.apply(after("relu", edit, differentiable=True)), torch.no_grad():
        assert not torch.relu(torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_differentiable_routine_has_first_and_second_derivatives(point, request):
    tool = request.getfixturevalue(point)("sigmoid", lambda x: x.sin() * x, differentiable=True)
    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    with amanda.apply(tool):
        assert gradcheck(lambda x: torch.sigmoid(x * 2), (x,))
        assert gradgradcheck(lambda x: torch.sigmoid(x * 2), (x,))


def test_gradients_reach_the_tools_own_parameters(after):
    scale = torch.nn.Parameter(torch.tensor(2.0))
    x = torch.ones(3, requires_grad=True)
    with amanda.apply(after("relu", lambda y: y * scale, differentiable=True)):
        torch.relu(x).sum().backward()
    assert (scale.grad.item(), x.grad.tolist()) == (3.0, [2.0] * 3)


# ---- another shape ---------------------------------------------------------------------------------------------------


def test_another_shape_stops_the_gradient_and_warns_once_per_place(forked_python):
    lines = forked_python("""
        import logging, torch, amanda
        logging.basicConfig(format="%(message)s", stream=__import__("sys").stdout)
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y[:2]), ops="relu")
        tool.add_inst_for_op(lambda c: c.insert_before_op(lambda tensors: [tensors[0], tensors[1][:1]], [0]), ops="cat")
        other = amanda.Tool("other")
        other.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y + 1), ops="relu")
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            with amanda.apply(tool, other):
                for _ in range(2):
                    y = torch.relu(x)
                    z = torch.cat([torch.relu(x), x])
                with torch.no_grad():
                    torch.relu(x)
        print(tuple(y.shape), y.requires_grad, tuple(z.shape))
    """).splitlines()
    text = (
        "[action] Tool: <lambda> {}: it put a tensor of another shape in place of {}, which requires a gradient: the "
        "gradient stops there. Schedule the routine with differentiable=True, and it is recorded"
    )
    assert lines == [
        text.format("after aten::relu (forward, <string>:13)", "output 0"),
        text.format("after aten::relu (forward, <string>:14)", "output 0"),
        text.format("before aten::cat (forward, <string>:14)", "input 0 (tensors)"),
        "(2,) False (3,)",
    ]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_recorded_result_of_another_shape_is_no_warning(after, caplog, recorded):
    def program():
        return torch.relu(torch.ones(3, requires_grad=recorded))

    with amanda.apply(after("relu", lambda y: y[:2], differentiable=recorded)):
        program()
    assert caplog.messages == []


# ---- looking ---------------------------------------------------------------------------------------------------------


def facts(tensor):
    return (
        tensor.requires_grad,
        tensor.is_leaf,
        type(tensor.grad_fn),
        tensor._version,
        tensor.is_inference(),
        type(tensor),
    )


def test_looking_changes_nothing(recorder):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4),
        torch.nn.Dropout(0.5),
        torch.nn.ReLU(inplace=True),
        torch.nn.BatchNorm1d(4),
        torch.nn.Linear(4, 2),
    )
    x, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 0])

    def train():
        torch.manual_seed(1)
        model.zero_grad()
        x.grad = None
        y = model(x)
        loss = F.cross_entropy(y, target)
        loss.backward()
        tensors = [y.detach(), loss.detach(), x.grad, torch.get_rng_state(), *(p.grad for p in model.parameters())]
        return tensors, facts(y), facts(loss)

    expected = train()
    late = amanda.Tool()
    late.add_inst_for_op(lambda c: c.update(seen=len(c.outputs)), require_outputs=True, nested=True)
    with amanda.apply(recorder(), recorder(nested=True), late):
        for _ in range(2):
            got = train()
            assert all(torch.equal(a, b) for a, b in zip(got[0], expected[0], strict=True))
            assert got[1:] == expected[1:]


def test_looking_keeps_double_backward(recorder):
    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    with amanda.apply(recorder(nested=True)):
        assert gradgradcheck(lambda x: torch.sigmoid(x) * x, (x,))


def test_looking_keeps_retained_graphs_and_hooks(recorder):
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(recorder()):
        y = x * 3
        y.retain_grad()
        y.register_hook(lambda gradient: gradient * 2)
        loss = torch.relu(y).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert x.grad.tolist() == [12.0, 12.0]
    assert y.grad.tolist() == [4.0, 4.0]


def test_an_autograd_function_is_unharmed(recorder):
    x = torch.ones(2, requires_grad=True)
    tool = recorder()
    with amanda.apply(tool):
        StraightThrough.apply(x, edit).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert tool.ran[:2] == ["mul", "add"]


def test_an_edit_is_straight_through_at_every_level_of_torch_func(after):
    def squared(y):
        return (torch.relu(y * 1) * torch.relu(y * 1)).sum()

    with amanda.apply(after("relu", lambda value: value.clone())):
        hessian = torch.func.hessian(squared)(torch.ones(2))
        gradients = torch.func.vmap(torch.func.grad(squared))(torch.ones(2, 2))
    assert torch.equal(hessian, 2 * torch.eye(2))
    assert torch.equal(gradients, torch.full((2, 2), 2.0))


def test_an_edited_in_place_result_keeps_its_tangent(after):
    with amanda.apply(after("relu_", lambda value: value.clone())), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.full((2,), 5.0))
        y = dual * 1
        torch.relu_(y)
        assert torch.autograd.forward_ad.unpack_dual(y).tangent.tolist() == [5, 5]


# ---- below autograd --------------------------------------------------------------------------------------------------


def copies(*values):
    return [v.clone() if isinstance(v, torch.Tensor) else None for v in values]


@pytest.mark.parametrize("point", ["insert_before_op", "insert_after_op"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
        lambda f, x: torch.func.hessian(f)(x),
        lambda f, x: torch.func.jacfwd(torch.func.jacrev(f))(x),
        lambda f, x: torch.autograd.functional.jvp(f, x, torch.ones_like(x), strict=True),
    ],
)
def test_equal_copies_at_every_level_change_no_derivative(point, transform):
    def f(x):
        return torch.nn.functional.linear(x * 2, torch.ones(2, 2), torch.ones(2)).tanh().sin().sum()

    tool = amanda.Tool()
    ops = ["linear", "addmm", "mul", "tanh", "sin", "sum", "mv", "add"]
    tool.add_inst_for_op(lambda c: getattr(c, point)(copies), ops=ops, nested=True)
    x = torch.tensor([0.1, 0.2])
    expected = transform(f, x)
    with amanda.apply(tool):
        for _ in range(2):
            torch.testing.assert_close(transform(f, x), expected)


@pytest.mark.parametrize("point", ["insert_before_op", "insert_after_op"])
def test_equal_copies_below_autograd_keep_the_tangent(point):
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: getattr(c, point)(copies), ops=["linear", "addmm", "tanh"], nested=True)
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(torch.ones(1, 2), torch.ones(1, 2))
        weight, bias = torch.ones(2, 2), torch.ones(2)
        expected = forward.unpack_dual(torch.nn.functional.linear(dual, weight, bias).tanh())
        with amanda.apply(tool):
            got = forward.unpack_dual(torch.nn.functional.linear(dual, weight, bias).tanh())
    assert torch.equal(got.primal, expected.primal)
    assert torch.equal(got.tangent, expected.tangent)
