"""CausalDiff of programs that compute the same by other operators, and of such that only look alike."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.diff import CausalDiff, Recorder
from torch import nn


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def attend(self, x):
        return F.scaled_dot_product_attention(x, x, x)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.attend(self.norm(x)))))


class ByHand(Fused):
    def attend(self, x):
        return (x @ x.transpose(-1, -2) / 4).softmax(-1) @ x


class OtherScale(Fused):
    def attend(self, x):
        return (x @ x.transpose(-1, -2) / 4.002).softmax(-1) @ x


class Detached(Fused):
    def attend(self, x):
        return (x @ x.transpose(-1, -2) / 4).softmax(-1).detach() @ x


class Doubled(Fused):
    def forward(self, x):
        return super().forward(x) * 2


def squares(given, target):
    return ((given - target) ** 2).mean()


def sum_of_squares(given, target):
    return ((given - target) ** 2).sum()


def run(kind=Fused, loss=F.mse_loss, steps=2, last=None):
    torch.manual_seed(0)
    with amanda.disabled():  # memory of new parameters may hold anything
        model = kind()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(torch.randn(4, 6, 16)), torch.randn(4, 6, 16)).backward()
        optimizer.step()
    with torch.no_grad():
        result = model(torch.randn(2, 6, 16))
        if last is not None:
            last(result)


def compared(folder, reference, other):
    with Recorder(folder) as recorder, amanda.apply(recorder):
        reference()
    with amanda.apply(diff := CausalDiff(folder)):
        other()
    return diff


def test_other_operators_that_compute_the_same(tmp_path):
    for i, other in enumerate((lambda: run(ByHand), lambda: run(loss=squares), lambda: run(ByHand, squares))):
        diff = compared(tmp_path / f"{i}", run, other)
        assert diff.rows()
        assert (diff.agrees, diff.differs) == (True, False)
        assert diff.answer().startswith("both programs compute the same, in other ways\n")
        assert diff.summary.startswith("no value differs beyond rounding; ")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: run(OtherScale), "this run computes something else from aten::matmul"),
        (lambda: run(Detached), "what only one of the runs has moves gradients by up to 0.0"),
        (lambda: run(loss=sum_of_squares), "not known: what aten::sum at "),
        (lambda: run(Doubled, steps=0), "not known: what aten::mul.Tensor at "),
        (lambda: run(ByHand, last=torch.max), "not known: what aten::max at "),
    ],
    ids=["another scale", "a gradient is cut", "another loss", "another result", "another metric"],
)
def test_what_differs_is_no_other_way(tmp_path, other, told):
    steps = 0 if "aten::mul" in told else 2
    diff = compared(tmp_path / "r", lambda: run(steps=steps), other)
    assert (diff.agrees, diff.differs) == (False, True)
    assert told in diff.answer()
    assert "computes the same" not in diff.answer()


@pytest.mark.parametrize(
    "last",
    [
        *(lambda y: y.flip(1), torch.neg, torch.abs, lambda y: y[[1, 0]], lambda y: y.transpose(1, 2).clone()),
        *(lambda y: y.roll(1, -1), lambda y: -y.mean(), lambda y: torch.complex(y, y).conj().resolve_conj()),
    ],
    ids=["another order", "other signs", "no signs", "other rows", "transposed", "shifted", "a number", "complex"],
)
def test_the_last_result_in_another_order_is_no_other_way(tmp_path, last):
    def reference(y):
        torch.complex(y, y), y.mean()

    diff = compared(tmp_path / "r", lambda: run(steps=0, last=reference), lambda: run(steps=0, last=last))
    assert (diff.agrees, diff.differs) == (False, True)
    diff = compared(tmp_path / "s", lambda: run(steps=0, last=last), lambda: run(steps=0, last=reference))
    assert not diff.agrees


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_last_result_by_other_operators(tmp_path, dtype):
    def program(scale):
        torch.manual_seed(0)
        scale(torch.randn(40, 50).to(dtype).exp())

    diff = compared(tmp_path / "r", lambda: program(torch.square), lambda: program(lambda y: (y * y).reshape(50, 40)))
    assert diff.rows()
    assert (diff.agrees, diff.differs) == (True, False)


def heads(split):
    """Attention over heads that are split off one layer for all."""
    torch.manual_seed(0)
    with amanda.disabled():
        layer, out = nn.Linear(16, 48), nn.Linear(16, 16)
    q, k, v = split(layer(torch.randn(2, 5, 16)))
    out((q @ k.transpose(-1, -2)).softmax(-1).matmul(v).transpose(1, 2).reshape(2, 5, 16))


def test_views_of_another_form(tmp_path):
    def reference(x):
        return x.view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)

    def right(x):
        return (one.view(2, 5, 4, 4).permute(0, 2, 1, 3) for one in x.chunk(3, -1))

    def wrong(x):
        return x.view(2, 5, 4, 3, 4).permute(3, 0, 2, 1, 4)

    diff = compared(tmp_path / "right", lambda: heads(reference), lambda: heads(right))
    assert diff.rows()
    assert (diff.agrees, diff.differs) == (True, False)
    diff = compared(tmp_path / "wrong", lambda: heads(reference), lambda: heads(wrong))
    assert (diff.agrees, diff.differs) == (False, True)
    assert "what only one of the runs has moves aten::matmul" in diff.answer()


class Rotated(nn.Module):
    def __init__(self, rotate):
        super().__init__()
        self.query, self.rotate = nn.Linear(8, 8), rotate

    def forward(self, x):
        angles = torch.outer(torch.arange(5.0), 1 / 10 ** torch.arange(4.0))
        return self.rotate(self.query(x), angles) @ x.transpose(-1, -2)


def pairs(x, angles):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)


def halves(x, angles):
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def complex_numbers(x, angles):
    rotated = torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(rotated).flatten(-2)


def test_rotary_embeddings(tmp_path):
    def program(rotate):
        torch.manual_seed(0)
        with amanda.disabled():
            model = Rotated(rotate)
        model(torch.randn(2, 5, 8)) * 2

    diff = compared(tmp_path / "complex", lambda: program(pairs), lambda: program(complex_numbers))
    assert {row.name for row in diff.rows()} >= {"aten::polar", "aten::stack"}
    assert (diff.agrees, diff.differs) == (True, False)
    diff = compared(tmp_path / "halves", lambda: program(pairs), lambda: program(halves))
    assert (diff.agrees, diff.differs) == (False, True)
    assert "aten::chunk" in diff.answer()
