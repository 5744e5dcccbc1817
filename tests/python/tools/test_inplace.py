"""InplaceErrors: the saver, the writer and the versions of planted writes, against PyTorch's own error."""

import gc
import re
import sys
import threading
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder
from amanda.tools.statistics import OpStatistics
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


# ---- kinds in PyTorch's own tests of autograd -----------------------------------------------------------------------


def only_the_product_needs_it():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x * y
    total, product = z + y, z * y
    z.add_(2)
    total.sum().backward(retain_graph=True)
    product.sum().backward()


def the_last_result_is_right():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x * y
    product = z * y
    z.add_(y).sum().backward(retain_graph=True)
    product.sum().backward()


def by_an_operator_that_saves_its_result():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x / 2 + y / 8
    product, w = z * y, z.exp_()
    w.sum().backward(retain_graph=True)
    product.sum().backward()


def a_leaf_in_no_grad():
    x = leaf(4)
    y = (x * x).sum()
    with torch.no_grad():
        x.mul_(2)
    y.backward()


def the_base_of_a_saved_view():
    base = torch.randn(4, 4)
    y = leaf(4) * base[1]
    base.add_(1)
    y.sum().backward()


def a_view_of_a_saved_base():
    base = leaf(4, 4) * 1
    y = base.pow(3)
    base.detach()[0].fill_(3)
    y.sum().backward()


def an_index():
    index = torch.tensor([0, 2])
    y = leaf(4)[index]
    index.add_(1)
    y.sum().backward()


def in_the_second_derivative():
    x = leaf(4)
    (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    y = gradient * gradient
    with torch.no_grad():
        gradient.add_(1)
    y.sum().backward()


def weights_of_an_lstm():
    lstm = nn.LSTM(3, 3)
    y = lstm(torch.randn(2, 1, 3))[0]
    with torch.no_grad():
        lstm.weight_hh_l0.mul_(2)
    y.sum().backward()


def saved_twice_by_a_function():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * y, gradient * x

    x, y = leaf(4) * 1, leaf(4)
    z = Product.apply(x, y)
    x.mul_(2)
    z.sum().backward()


CASES = [
    (only_the_product_needs_it, "aten::mul", "MulBackward0", "self", ["aten::add_"]),
    (the_last_result_is_right, "aten::mul", "MulBackward0", "self", ["aten::add_"]),
    (by_an_operator_that_saves_its_result, "aten::mul", "MulBackward0", "self", ["aten::exp_"]),
    (a_leaf_in_no_grad, "aten::mul", "MulBackward0", None, ["aten::mul_"]),
    (the_base_of_a_saved_view, "aten::mul", "MulBackward0", "other", ["aten::add_"]),
    (a_view_of_a_saved_base, "aten::pow", "PowBackward0", "self", ["aten::fill_"]),
    (an_index, "aten::index", "IndexBackward0", "indices", ["aten::add_"]),
    (in_the_second_derivative, "aten::mul", "MulBackward0", None, ["aten::add_"]),
    (weights_of_an_lstm, "aten::lstm", None, None, ["aten::mul_"]),
    (saved_twice_by_a_function, "autograd::Product", "ProductBackward", "saved_tensors", ["aten::mul_"]),
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
    assert (found.saver.name.partition(".")[0], found.needed) == (saver, needed or found.needed)
    assert node in (None, found.backward_op)
    assert [write.place.name.partition(".")[0] for write in found.writes] == writers
    assert error.__notes__ == [f"[inplace] {found}"]
    # PyTorch's own figures, and lines
    version, expected = map(int, re.search(r"is at version (\d+); expected version (\d+)", str(error)).groups())
    assert (found.version, found.writes[-1].after) == (expected, version)
    first = program.__code__.co_firstlineno
    lines = [int(place.source.rpartition(":")[2]) for place in (found.saver, *(write.place for write in found.writes))]
    assert all(first < line < first + 17 for line in lines)
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
        r'no backward pass raised "modified by an inplace operation", in \d+ operators',
        tool.answer(),
    )


def test_other_errors_have_no_note():
    with pytest.raises(RuntimeError) as caught, amanda.apply(InplaceErrors()):
        leaf(2).mul(2).add_(torch.ones(3))  # of another shape
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
    (note,) = caught.value.__notes__
    assert note.startswith("[inplace] no operator can be named that wrote to the tensor: ")
    assert (tool.findings(), tool.unexplained) == ([], 1)
    return tool.answer()


def test_of_operands_that_are_alike_the_right_one_is_named():
    """AddmmBackward0 saves both; only the first is overwritten for it, as the gradient of the weight alone is asked for."""
    x, weight = torch.randn(4, 4) * 1, leaf(4, 4)

    def program():
        y = F.linear(x, weight, leaf(4))
        with torch.no_grad():
            x.add_(1)
            weight.add_(1)
        y.sum().backward()

    (found,), _ = explained(program)
    assert (found.needed, found.parameter, [write.shape for write in found.writes]) == ("mat1", "", [(4, 4)])
    assert found.saver.name == "aten::linear"


def test_a_forward_pass_outside_the_scope_is_not_explained():
    y = leaf(4).exp()
    y.add_(1)
    assert "the forward pass ran outside the scope" in unexplained(lambda: y.sum().backward())


def test_a_version_that_no_operator_has_changed():
    def program():
        x = leaf(4)
        y = x * x
        torch.autograd.graph.increment_version(x)
        y.sum().backward()

    assert "the write was none of an operator" in unexplained(program)


def test_an_error_that_the_program_catches_is_explained():
    tool = InplaceErrors()
    with amanda.apply(tool):
        with pytest.raises(RuntimeError, match=MODIFIED) as first:
            result()
        with pytest.raises(RuntimeError, match=MODIFIED) as second:
            operand()
    assert [one.saver.name for one in tool.findings()] == ["aten::exp", "aten::mul"]
    for caught, found in zip((first, second), tool.findings(), strict=True):
        assert caught.value.__notes__ == [f"[inplace] {found}"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_in_a_checkpointed_region(reentrant):
    def region(x):
        y = x.exp()
        y.add_(1)
        return y

    def program():
        torch.utils.checkpoint.checkpoint(region, leaf(3), use_reentrant=reentrant).sum().backward()

    tool = InplaceErrors()
    if not reentrant:  # that pass recomputes only what it needs: it stops before the write
        with amanda.apply(tool):
            program()
        assert tool.findings() == []
        return
    (found,), error = explained(program)
    assert (found.saver.name, len(found.writes), len(error.__notes__)) == ("aten::exp", 1, 1)


def test_a_forward_pass_on_another_thread():
    """Its nodes have the same numbers as this thread's. No wrong operator is named."""
    model, made = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    tool = InplaceErrors()
    scope = amanda.apply(tool)

    def forward():
        with scope:
            made.append(model(torch.randn(2, 4)))
            made[0].add_(1)

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()

    def program():
        leaf(3).exp()
        leaf(3).sin().cos()
        made[0].sum().backward()

    with pytest.raises(RuntimeError, match=MODIFIED), scope:
        program()
    (found,) = tool.findings()
    assert found.backward_op == "TanhBackward0"
    assert found.saver is None or found.saver.name == "aten::tanh"
    assert [write.place.name for write in found.writes] == ["aten::add_"]


# ---- writes that PyTorch refuses ------------------------------------------------------------------------------------


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(2, 3)


def to_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight.add_(1)


def to_a_row_of_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight[0].mul_(2)


def to_an_item_of_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight[0] = 1


def to_a_chunk():
    q, _ = nn.Linear(4, 8)(torch.randn(2, 4)).chunk(2, -1)
    q.mul_(2)


def to_unbound():
    first, _ = (leaf(2, 3) * 1).unbind(0)
    first.add_(1)


def to_a_list_of_views():
    torch._foreach_add_(list((leaf(2, 3) * 1).unbind(0)), 1.0)


def to_a_view_of_no_grad():
    y = leaf(2, 3) * 1
    with torch.no_grad():
        row = y[0]
    row.add_(1)


def to_a_view_of_a_function():
    Flat.apply(leaf(2, 3) * 1).add_(1)


def to_inference():
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(leaf(2))


REFUSED = [
    (to_a_leaf, "aten::add_", "self", "a leaf", "weight", None),
    (to_a_row_of_a_leaf, "aten::mul_", "self", "a view of a leaf", "weight", "aten::select"),
    (to_an_item_of_a_leaf, "aten::fill_", "self", "a view of a leaf", "weight", "aten::select"),
    (to_a_chunk, "aten::mul_", "self", "one of several views", "", "aten::chunk"),
    (to_unbound, "aten::add_", "self", "one of several views", "", "aten::unbind"),
    (to_a_list_of_views, "aten::_foreach_add_", "self[0]", "one of several views", "", "aten::unbind"),
    (to_a_view_of_no_grad, "aten::add_", "self", "a view made in no_grad", "", None),
    (to_a_view_of_a_function, "aten::add_", "self", "a view from an autograd.Function", "", None),
    (to_inference, "aten::add_", "self", "a tensor of inference mode", "", None),
]


@pytest.mark.parametrize(
    ("program", "op", "operand", "kind", "parameter", "maker"),
    REFUSED,
    ids=[program.__name__ for program, *_ in REFUSED],
)
def test_a_write_that_is_refused(program, op, operand, kind, parameter, maker):
    with pytest.raises(RuntimeError) as plain:
        program()
    tool = InplaceErrors()
    with pytest.raises(RuntimeError) as caught, amanda.apply(tool):
        program()
    assert str(caught.value) == str(plain.value)
    (found,) = tool.findings()
    assert (found.place.name, found.operand, found.kind, found.parameter) == (op, operand, kind, parameter)
    assert (found.maker and found.maker.name) == maker
    first = program.__code__.co_firstlineno
    assert first < int(found.place.source.rpartition(":")[2]) < first + 6
    assert caught.value.__notes__ == [f"[inplace] {found}"]
    assert tool.answer() == str(found)


def test_the_remedy_of_a_refused_write():
    with pytest.raises(RuntimeError), amanda.apply(tool := InplaceErrors()):
        to_a_chunk()
    (found,) = tool.findings()
    assert re.fullmatch(
        r"use mul, which returns a new tensor, in place of mul_ in \S+: x = x \* y, not x \*= y; or take each view by "
        r"itself, x\[i\] or x.narrow\(...\)",
        found.remedy,
    )


# ---- other scopes ---------------------------------------------------------------------------------------------------


def test_a_scope_of_other_tools_says_how_to_learn_more(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "3"])
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(OpStatistics()):
        result()
    assert caught.value.__notes__ == [
        "[inplace] which operator wrote was not recorded; `amanda inplace train.py --rate 3` names it, and so does "
        "amanda.tools.inplace.InplaceErrors() in a scope around the forward and the backward pass"
    ]
    with pytest.raises(RuntimeError, match=MODIFIED) as caught:
        result()
    assert not hasattr(caught.value, "__notes__")


def test_the_innermost_scope_writes_the_note_and_all_have_the_finding():
    outer, inner = WriteRecorder(), InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(outer), amanda.apply(inner):
        result()
    (whole,), (writer,) = inner.findings(), outer.findings()
    assert caught.value.__notes__ == [f"[inplace] {whole}"]
    assert (writer.saver, writer.backward_op, writer.needed) == (None, "ExpBackward0", "result")
    assert [one.place.source for one in writer.writes] == [one.place.source for one in whole.writes]


@pytest.mark.parametrize(
    "program", [program for program, *_ in CASES if program is not out], ids=lambda one: one.__name__
)
def test_the_recorder_of_writes_names_the_same_writers(program):
    tool, whole = WriteRecorder(), InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED), amanda.apply(tool), amanda.apply(whole):
        program()
    assert [one.place for one in tool.findings()[0].writes] == [one.place for one in whole.findings()[0].writes]


def test_the_recorder_of_writes_names_no_wrong_one():
    """It does not see the write by `out=`, and does not name the one before it."""

    def program():
        y = leaf(4).exp()
        y.add_(1)
        with torch.no_grad():
            torch.add(torch.ones(4), 1, out=y.detach())
        y.sum().backward()

    tool = WriteRecorder()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(tool):
        program()
    assert (tool.findings(), tool.unexplained) == ([], 1)
    assert "its operator is not one that is named as those that write are" in caught.value.__notes__[0]


def test_an_operator_that_writes_nothing_has_no_routine_of_the_recorder():
    scope = amanda.apply(WriteRecorder())
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)), torch.randn(2, 4)
    with scope:
        model(x).sum().backward()
        x.add_(1)
    found = {one.operator.partition(".")[0] for one in scope.describe().rows()}
    assert "aten::add_" in found
    assert all(name.endswith("_") for name in found)  # those that make the first gradient are among them
