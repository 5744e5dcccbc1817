"""InplaceErrors: the saver, the writer and the versions of planted writes, against PyTorch's own error."""

import gc
import re
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.inplace import InplaceErrors
from torch import nn

MODIFIED = "modified by an inplace operation"


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y


def result():
    y = leaf(4).exp()
    y.add_(1)
    y.sum().backward()


def operand():
    x, factor = leaf(4), torch.randn(4)
    y = x * factor
    factor.mul_(2)
    y.sum().backward()


def element():
    y = leaf(4, 4).tanh()
    y[0, 0] = 0
    y.sum().backward()


def through_a_view():
    y = leaf(4, 4).sigmoid()
    y.view(-1)[3:].zero_()
    y.sum().backward()


def through_a_detached_tensor():
    y = leaf(4, 4).sqrt()
    y.detach().add_(1)
    y.sum().backward()


def twice():
    y = leaf(4).exp()
    y.add_(1)
    y.mul_(2)
    y.sum().backward()


def of_a_function():
    y = Square.apply(leaf(4))
    y.mul_(3)
    y.sum().backward()


def copied_into():
    y = F.relu(leaf(4, 4) * 1)
    y.copy_(torch.ones(4, 4))
    y.sum().backward()


def masked():
    y = leaf(4, 4).softmax(-1)
    y.masked_fill_(torch.eye(4).bool(), 0.0)
    y.sum().backward()


def attention():
    q = leaf(1, 2, 4, 8)
    y = F.scaled_dot_product_attention(q, q, q)
    y.mul_(2)
    y.sum().backward()


def list_of_tensors():
    found = [one.exp() for one in (leaf(4), leaf(5))]
    torch._foreach_add_(found, 1.0)
    sum(one.sum() for one in found).backward()


def out():
    y = leaf(4).exp()
    with torch.no_grad():
        torch.add(torch.ones(4), 1, out=y.detach())
    y.sum().backward()


CASES = [
    # program, saver, node, its name for the tensor, the writers
    (result, "aten::exp", "ExpBackward0", "result", ["aten::add_"]),
    (operand, "aten::mul", "MulBackward0", "other", ["aten::mul_"]),
    (element, "aten::tanh", "TanhBackward0", "result", ["aten::copy_"]),
    (through_a_view, "aten::sigmoid", "SigmoidBackward0", "result", ["aten::zero_"]),
    (through_a_detached_tensor, "aten::sqrt", "SqrtBackward0", "result", ["aten::add_"]),
    (twice, "aten::exp", "ExpBackward0", "result", ["aten::add_", "aten::mul_"]),
    (of_a_function, "autograd::Square", "SquareBackward", "saved_tensors", ["aten::mul_"]),
    (copied_into, "aten::relu", "ReluBackward0", "result", ["aten::copy_"]),
    (masked, "aten::softmax", "SoftmaxBackward0", "result", ["aten::masked_fill_"]),
    (attention, "aten::scaled_dot_product_attention", None, "output", ["aten::mul_"]),
    (list_of_tensors, "aten::exp", "ExpBackward0", "result", ["aten::_foreach_add_"]),
    (out, "aten::exp", "ExpBackward0", "result", ["aten::add"]),
]


def explained(program):
    """The findings for a program that fails with PyTorch's error, and that error."""
    with pytest.raises(RuntimeError, match=MODIFIED):
        program()  # as it is
    tool = InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(tool):
        program()
    return tool.findings(), caught.value


@pytest.mark.parametrize(
    ("program", "saver", "node", "needed", "writers"), CASES, ids=[program.__name__ for program, *_ in CASES]
)
def test_the_writer_is_named(program, saver, node, needed, writers):
    (found,), error = explained(program)
    assert (found.saver.name.partition(".")[0], found.needed) == (saver, needed)
    assert node in (None, found.backward_op)
    assert [write.place.name.partition(".")[0] for write in found.writes] == writers
    assert error.__notes__ == [f"[inplace] {found}"]
    # PyTorch's own figures, and lines
    version, expected = map(int, re.search(r"is at version (\d+); expected version (\d+)", str(error)).groups())
    assert (found.version, found.writes[-1].after) == (expected, version)
    first = program.__code__.co_firstlineno
    lines = [int(place.source.rpartition(":")[2]) for place in (found.saver, *(write.place for write in found.writes))]
    assert all(first < line < first + 6 for line in lines)
    assert lines == sorted(lines) or program is list_of_tensors


def test_the_view_is_named():
    (found,), _ = explained(through_a_view)
    assert found.writes[0].view == "a view of shape (13,)"
    assert " wrote to it through a view of shape (13,): version 0 -> 1\n" in str(found)


def test_an_optimizer_between_forward_and_backward():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)

    def program():
        loss = model(torch.randn(2, 4)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        loss.backward()

    (found,), _ = explained(program)
    assert (found.parameter, found.saver.module_path, found.operand) == ("2.weight", "2", "weight")
    assert [write.by_optimizer for write in found.writes] == [True]
    assert found.remedy == "run the forward pass again after the step, or call backward() before it"


class Layer(nn.Module):
    def __init__(self, writes):
        super().__init__()
        self.linear, self.writes = nn.Linear(4, 4), writes

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        z = y * 1
        z.add_(1)  # right: nobody saved it
        if self.writes:
            y.add_(1)
        return z + y


def test_of_equal_layers_the_one_that_is_wrong_is_named():
    """All have tensors of the same shape and versions."""
    model = nn.Sequential(*(Layer(writes=i == 2) for i in range(5)))
    (found,), _ = explained(lambda: model(torch.randn(2, 4)).sum().backward())
    assert (found.saver.module_path, found.saver.name) == ("2", "aten::tanh")
    assert [write.place.module_path for write in found.writes] == ["2"]


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        (result, r"use add, which returns a new tensor, in place of add_ in \S+: x = x \+ y, not x \+= y"),
        (masked, r"use masked_fill, which returns a new tensor, in place of masked_fill_ in \S+"),
        (copied_into, r"write to a copy, x.clone\(\) in \S+"),
        (list_of_tensors, r"write to a copy, x.clone\(\) in \S+"),
    ],
)
def test_the_remedy(program, remedy):
    (found,), _ = explained(program)
    assert re.fullmatch(remedy, found.remedy)


def test_right_programs_have_no_finding():
    """Writes to what no backward operator needs, and two backward passes of a retained graph."""
    tool, model = InplaceErrors(), nn.Sequential(Layer(False), nn.ReLU(inplace=True), Layer(False))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    with amanda.apply(tool):
        for _ in range(3):
            loss = model(torch.randn(2, 4)).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
    assert tool.findings() == []
    assert re.fullmatch(
        r'no error "modified by an inplace operation" left the scope, in \d+ operators and \d+ backward operators',
        tool.answer(),
    )


def test_other_errors_have_no_note():
    with pytest.raises(RuntimeError) as caught, amanda.apply(InplaceErrors()):
        leaf(2).add_(1)  # a leaf
    assert not hasattr(caught.value, "__notes__")


def test_results_are_equal():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(Layer(False), nn.Dropout(0.5), Layer(False))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    expected = train()
    with amanda.apply(InplaceErrors()):
        found = train()
    assert all(map(torch.equal, found, expected))


def test_no_tensor_is_kept():
    tool = InplaceErrors()
    with amanda.apply(tool):
        y = leaf(4).exp()
        y = y * 1
        y.add_(1)
        alive = weakref.ref(y)
        y.sum().backward()
        del y
        gc.collect()
        assert alive() is None


def test_reset():
    tool = InplaceErrors()
    with pytest.raises(RuntimeError), amanda.apply(tool):
        result()
    tool.reset()
    assert tool.findings() == []
    with pytest.raises(RuntimeError), amanda.apply(tool):
        operand()
    assert [one.saver.name for one in tool.findings()] == ["aten::mul"]


def unexplained(program):
    tool = InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(tool):
        program()
    assert (tool.findings(), tool.unexplained, hasattr(caught.value, "__notes__")) == ([], 1, False)
    return tool.answer()


def test_of_operands_that_are_alike_none_is_named():
    """AddmmBackward0 saves only the first as mat1, and has no other name for it."""
    x, weight = torch.randn(4, 4) * 1, leaf(4, 4)

    def program():
        y = F.linear(x, weight, leaf(4))
        with torch.no_grad():
            x.add_(1)
            weight.add_(1)
        y.sum().backward()

    weight.data.add_(0)
    while weight._version < x._version:
        with torch.no_grad():
            weight.add_(0)
    while x._version < weight._version:
        x.add_(0)
    assert unexplained(program).startswith("a backward operator needed a tensor that was written to, and no operator")


def test_a_forward_pass_outside_the_scope_is_not_explained():
    y = leaf(4).exp()
    y.add_(1)
    assert "the forward pass ran outside the scope" in unexplained(lambda: y.sum().backward())
