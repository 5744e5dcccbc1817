"""In-place operators, views, and what cannot be edited because of them."""

import torch
from recorded_programs import record
from torch import nn


def refusal(call, point, position, is_backward=False):
    from amanda.drivers.torch_compile.program.refusals import Refusal

    return Refusal(call, is_backward)(point, position)


def test_what_an_operator_writes_to_is_seen_by_others_or_not():
    def function(x, y):
        a = torch.sin(x).relu_()
        b = torch.cos(x)
        c = b[0]
        b.mul_(2)
        return a, c, y.add_(1)

    _, recorded = record(function, torch.rand(3), torch.rand(3))
    assert recorded.call("aten::relu_").writes_seen == set()
    assert recorded.call("aten::mul_").writes_seen == {0}  # by a view
    assert recorded.call("aten::add_").writes_seen == {0}  # by the caller
    assert recorded.call("aten::relu_").result_is == (0,)


def test_values_that_are_written_to_later():
    def function(x):
        a = torch.sin(x)
        b = a.view(-1)
        b.add_(1)
        return a * 2, torch.cos(x)

    _, recorded = record(function, torch.rand(3, 2))
    assert recorded.call("aten::sin").written_later == (set(), {0})
    assert recorded.call("aten::view").written_later == ({0}, {0})
    assert recorded.call("aten::cos").written_later == (set(), set())
    assert recorded.call("aten::mul").written_later == (set(), set())


def test_an_inplace_operator_shows_its_argument_as_it_was():
    _, recorded = record(lambda x, w: (x * 2).mul_(w), torch.rand(3), torch.rand(3, requires_grad=True))
    call = recorded.call("aten::mul_")
    assert not call.inputs[0].requires_grad
    assert call.outputs[0].requires_grad
    assert call.backward == "MulBackward0"


def test_why_operands_cannot_be_edited():
    def function(x, p):
        y = x.view(-1)
        z = x.reshape(2, 3).t().reshape(-1)
        return torch.softmax(y, 0) + p, z

    _, recorded = record(function, torch.rand(3, 2), torch.rand(1, requires_grad=True))
    view, softmax = recorded.call("aten::view"), recorded.call("aten::softmax")
    assert "its result is a view" in refusal(view, "after", 0)
    assert "its result is a view" in refusal(view, "replace", 0)
    assert "the operator's result is a view of it" in refusal(view, "before", 0)
    assert refusal(softmax, "before", 1) == "it is a number, which is fixed when the program is compiled"
    assert refusal(softmax, "before", 0) is None
    assert refusal(softmax, "after", 0) is None
    last = [call for call in recorded.calls if call.name == "aten::reshape"][-1]
    assert refusal(last, "after", 0) is None  # it copies
    add = recorded.call("aten::add")
    assert refusal(add, "before", 1, is_backward=True) == "there is no gradient at this position"
    assert refusal(add, "after", 0, is_backward=True) == "there is no gradient at this position"
    assert refusal(add, "after", 1, is_backward=True) is None
    assert refusal(add, "before", 0, is_backward=True) is None


def test_running_statistics_cannot_be_edited():
    _, recorded = record(nn.BatchNorm1d(2), torch.rand(3, 2))
    call = recorded.call("aten::batch_norm")
    assert refusal(call, "before", 3) == "the operator writes to it although its schema calls it read-only"
    assert refusal(call, "before", 1) is None


def test_an_operator_that_changes_shapes_in_place_cannot_be_edited():
    _, recorded = record(lambda x: (x * 2).t_() + 1, torch.rand(3, 2))
    call = recorded.call("aten::t_")
    assert "shape or storage in place" in refusal(call, "after", 0)
    assert "shape or storage in place" in refusal(call, "before", 0)


def test_backward_operators_that_taps_would_not_see_whole():
    def function(w):
        a = torch.sin(w)
        b = a[0]
        a.mul_(2)
        return a + b, torch.cos(w).relu_()

    _, recorded = record(function, torch.rand(3, requires_grad=True))
    assert recorded.call("aten::mul_").backward_unseen.startswith("its forward operator writes in place")
    assert recorded.call("aten::relu_").backward_unseen == ""
    assert recorded.call("aten::select").backward_unseen.startswith("a view of its forward operator's is written")
    assert recorded.call("aten::sin").backward_unseen == ""


def test_assignments_to_parts_of_a_tensor():
    def function(x):
        y = torch.zeros(3, 4)
        y[:, 1] = x[:, 0]
        y[1:2, 2:] = 3
        return y

    x = torch.rand(3, 4, requires_grad=True)
    result, recorded = record(function, x)
    torch.testing.assert_close(result, function(x), rtol=0, atol=0)
    assert recorded.unseen == []
