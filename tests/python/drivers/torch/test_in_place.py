"""In-place operators: an edit is never silently without effect, and gradients stay right."""

# ruff: noqa: E731 -- modules written by hand in one line

import amanda
import pytest
import torch
import torch.nn.functional as F
from by_hand import StraightThrough, assert_same, edit, relu_in_place


def add_to_itself(x, w):
    z = x @ w
    return z.add_(z)


def relu_a_view(x, w):
    z = x @ w
    z[:2].relu_()
    return z * 3


def assign_items(x, w):
    z = x @ w
    z[0] = 1.0
    z[1:3, 0] = z[0, 0]
    z[z > 0] = 0.5
    return z * 2


def fill_a_column(x, w):
    y = torch.zeros(len(x), 3)
    y[:, 1] = (x @ w)[:, 0]
    return y * 2


def chain(x, w):
    return (x @ w).mul_(2).add_(1).sub_(0.5).relu_()


PROGRAMS = [relu_in_place, add_to_itself, relu_a_view, assign_items, fill_a_column, chain]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("nested", [False, True])
def test_looking_changes_nothing(program, nested, recorder):
    assert_same(recorder(nested=nested), program, program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_looking_at_results_changes_nothing(program, after):
    assert_same(after("*", lambda *results: None), program, program)


def test_an_edit_after_is_straight_through(after):
    by_hand = lambda x, w: StraightThrough.apply(torch.relu(x @ w), edit) * 3
    assert_same(after("relu_", edit), relu_in_place, by_hand)


def test_an_edit_before_is_straight_through(before):
    by_hand = lambda x, w: torch.relu(StraightThrough.apply(x @ w, edit)) * 3
    assert_same(before("relu_", edit), relu_in_place, by_hand)


def test_a_differentiable_edit_is_recorded(after):
    by_hand = lambda x, w: edit(torch.relu(x @ w)) * 3
    assert_same(after("relu_", edit, differentiable=True), relu_in_place, by_hand)


def test_an_edit_of_a_tensor_added_to_itself(before, after):
    assert_same(after("add_", edit), add_to_itself, lambda x, w: StraightThrough.apply((x @ w) * 2, edit))
    by_hand = lambda x, w: (lambda z: StraightThrough.apply(z, edit) + z)(x @ w)
    assert_same(before("add_", edit, ["self"]), add_to_itself, by_hand)
    by_hand = lambda x, w: (lambda z: z + StraightThrough.apply(z, edit))(x @ w)
    assert_same(before("add_", edit, ["other"]), add_to_itself, by_hand)


def test_an_edit_of_a_view_reaches_its_base(after):
    def by_hand(x, w):
        z = x @ w
        return torch.cat([StraightThrough.apply(torch.relu(z[:2]), edit), z[2:]]) * 3

    assert_same(after("relu_", edit), relu_a_view, by_hand)


def test_every_step_of_a_chain_is_edited(after):
    def by_hand(x, w):
        z = x @ w
        for step in (lambda z: z * 2, lambda z: z + 1, lambda z: z - 0.5, torch.relu):
            z = StraightThrough.apply(step(z), edit)
        return z

    assert_same(after(["mul_", "add_", "relu_", "sub_"], edit), chain, by_hand)


def test_a_replacement_is_the_operator(replace):
    assert_same(replace("relu_", torch.sigmoid), relu_in_place, lambda x, w: torch.sigmoid(x @ w) * 3)


def test_a_replacement_may_call_the_original_on_a_copy():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(lambda x, op: op(x.clone()) * 2, op=c.op), ops="relu_")
    assert_same(tool, relu_in_place, lambda x, w: torch.relu(x @ w) * 2 * 3)


def test_resnet_block_trains_with_its_activation_edited(after):
    torch.manual_seed(0)
    nn = torch.nn

    def train(block, activation):
        conv, norm = block
        x = torch.ones(2, 3, 4, 4, requires_grad=True)
        y = activation(norm(conv(x))) + x
        y.square().sum().backward()
        return [x.grad, conv.weight.grad.clone(), norm.weight.grad.clone()]

    def block():
        torch.manual_seed(1)
        return nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    expected = train(block(), lambda y: StraightThrough.apply(torch.relu(y), lambda y: y * 0.5))
    with amanda.apply(after("relu_", lambda y: y * 0.5)):
        for _ in range(2):
            got = train(block(), nn.ReLU(inplace=True))
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b)


# ---- identity of the tensor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before", "after"])
def test_all_holders_of_the_tensor_see_the_edit(point, request):
    x = torch.tensor([-1.0, 2.0])
    view, address = x[:1], x.data_ptr()
    with amanda.apply(request.getfixturevalue(point)("relu_", lambda x: x + 1)):
        y = F.relu(x, inplace=True)
    assert y is x
    assert x.data_ptr() == address
    assert x.tolist() == ([0.0, 3.0] if point == "before" else [1.0, 3.0])
    assert view.item() == x[0].item()


def test_the_tools_own_value_is_not_written_to(before):
    own = torch.zeros(2)
    x = torch.ones(2)
    with amanda.apply(before("add_", lambda x: own, ["self"])):
        x.add_(5)
    assert (x.tolist(), own.tolist()) == ([5.0, 5.0], [0.0, 0.0])


def test_a_parameter_update_is_edited(after):
    p = torch.nn.Parameter(torch.ones(2))
    with amanda.apply(after("add_", lambda p: p * 10)), torch.no_grad():
        for _ in range(2):
            p.add_(1)
    assert p.tolist() == [210.0, 210.0]
    assert p.requires_grad
    assert p.is_leaf


def test_pytorchs_own_error_for_a_leaf_is_kept(recorder, before, after, replace):
    text = "a leaf Variable that requires grad is being used in an in-place operation"
    for tool in (recorder(), before("relu_", edit), after("relu_", edit), replace("relu_", torch.sigmoid)):
        x = torch.ones(2, requires_grad=True)
        with amanda.apply(tool), pytest.raises(RuntimeError, match=text):
            x.relu_()


def test_random_operators_draw_once(recorder, after):
    def dropout():
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        y = F.dropout(x * 1, 0.5, True, inplace=True)
        y.sum().backward()
        return [y.detach(), x.grad, torch.get_rng_state()]

    expected = dropout()
    for tool in (recorder(), recorder(nested=True), after("dropout_", lambda y: None)):
        with amanda.apply(tool):
            for _ in range(2):
                assert all(torch.equal(a, b) for a, b in zip(dropout(), expected, strict=True))
