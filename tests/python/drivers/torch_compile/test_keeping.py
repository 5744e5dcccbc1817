"""A routine may keep what it was shown, although compiled code reuses its memory."""

import re

import amanda
import pytest
import torch

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]


class Keep(amanda.Tool):
    def __init__(self, keep, ops="sin|matmul|mul|add"):
        super().__init__("keep")
        self.kept, self.gradients, self.keep = [], [], keep
        self.add_inst_for_op(lambda context: context.insert_after_op(self.forward), ops=["sin", "matmul", "mul"])
        self.add_inst_for_op(
            lambda context: context.insert_before_backward_op(self.backward), ops=["sin", "matmul"], backward=True
        )

    def forward(self, y):
        self.kept.append((self.keep(y.detach()), y.detach().clone()))

    def backward(self, gradient):
        self.gradients.append((self.keep(gradient), gradient.clone()))


def program(x, w):
    for _ in range(4):
        x = torch.sin(x @ w) * 2
    return x.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keep", [lambda value: value, lambda value: value[1:, ::2]], ids=["itself", "a view"])
def test_what_a_routine_keeps_stays_as_it_was(backend, keep):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=backend)
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    tool = Keep(keep)
    with amanda.apply(tool, compiled="graph"):
        with torch.no_grad():
            compiled(x, w)
        compiled(x, w).backward()
    assert (len(tool.kept), len(tool.gradients)) == (24, 8)
    for kept, copy in tool.kept + tool.gradients:
        assert torch.equal(kept, keep(copy))


def test_writing_to_what_was_kept_changes_nothing():
    torch._dynamo.reset()
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    kept = []

    class Scribble(Keep):
        def forward(self, y):
            for value in kept:
                value.zero_()
            kept.append(y)

    expected = program(x, w)
    with amanda.apply(Scribble(None), compiled="graph"):
        result = torch.compile(program, backend="aot_eager")(x, w)
    assert len(kept) == 12
    torch.testing.assert_close(result, expected)


def test_what_nobody_keeps_is_not_copied():
    torch._dynamo.reset()
    shown, x = [], torch.randn(8, 8)
    tool = amanda.Tool("look")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda x: shown.append(x.data_ptr()), inputs=[0]), ops="sin"
    )
    with amanda.apply(tool, compiled="graph"):
        torch.compile(torch.sin, backend="aot_eager")(x)
    assert shown == [x.data_ptr()]


class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) + torch.cos(x)


def test_an_array_that_shares_the_memory_of_what_is_kept_is_warned_of_at_each_place(caplog):
    torch._dynamo.reset()
    arrays, tool = [], amanda.Tool("arrays")
    tool.add_inst_for_op(
        lambda context: context.insert_after_op(lambda y: arrays.append(y.numpy())), ops=["sin", "cos"]
    )
    model = torch.nn.Sequential(Twice())
    compiled = torch.compile(model, backend="aot_eager")
    with amanda.apply(tool, compiled="graph"):
        compiled(torch.randn(3)), compiled(torch.randn(3))
    lines = [record.getMessage() for record in caplog.records if "keep tensor.numpy().copy()" in record.getMessage()]
    line = Twice.forward.__code__.co_firstlineno + 1
    assert [re.sub(r"at /.*/", "at ", text.partition(", and keeps")[0]) for text in lines] == [
        f"[compile] a routine called numpy() on a tensor of {op} in 0 at test_keeping.py:{line}"
        for op in ("sin", "cos")
    ]
    assert len(arrays) == 4
