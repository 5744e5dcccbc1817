"""InplaceErrors: the saver, the writer and the versions of planted writes, against PyTorch's own error."""

import gc
import re
import threading
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.inplace import InplaceErrors
from inplace_programs import (
    CASES,
    MODIFIED,
    copied_into,
    leaf,
    list_of_tensors,
    masked,
    operand,
    result,
    through_a_view,
)
from torch import nn


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
    assert found.remedy.startswith(
        "run the forward pass again after the step, or call backward() before it; detach() what is"
    )


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


def random_numbers():
    noise = torch.ones(4)
    loss = (leaf(4) * noise).sum()
    noise.uniform_()
    loss.backward()


def embedding_with_a_limit():
    items = nn.Embedding(3, 2, max_norm=0.1)
    (torch.ones(1, 2, requires_grad=True) @ items.weight.T + items(torch.tensor([0])).sum()).sum().backward()


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        (result, r"use add, which returns a new tensor, in place of add_ in \S+: x = x \+ y, not x \+= y"),
        (masked, r"use masked_fill, which returns a new tensor, in place of masked_fill_ in \S+"),
        (copied_into, r"write to a copy, x.clone\(\) in \S+"),
        (list_of_tensors, r"write to a copy, x.clone\(\) in \S+"),
        (random_numbers, r"write to a copy, x.clone\(\) in \S+"),
        (
            embedding_with_a_limit,
            r"an embedding with max_norm writes to its weight: elsewhere use a copy, weight.clone\(\) in "
            r"test_inplace.py:\d+",
        ),
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
