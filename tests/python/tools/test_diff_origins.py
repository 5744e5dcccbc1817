"""Origins: code that was written again, with other operators. The line that computes something else is named."""

import math

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder

STEPS, WIDTH, HEADS = 6, 8, 2
SIZE = WIDTH // HEADS


def reference(x, weights):
    """Attention with rotary positions, as a library has it."""
    query, key, value, out = weights
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))
    angles = torch.outer(torch.arange(STEPS).float(), frequencies)
    both = torch.cat([angles, angles], -1)
    cos, sin = both.cos(), both.sin()

    def rotated(y):
        half = torch.cat([-y[..., SIZE // 2 :], y[..., : SIZE // 2]], -1)
        return y * cos + half * sin

    split = [F.linear(x, one).view(1, STEPS, HEADS, SIZE).transpose(1, 2) for one in (query, key, value)]
    scores = torch.matmul(rotated(split[0]), rotated(split[1]).transpose(-1, -2)) * SIZE**-0.5
    mask = torch.full((STEPS, STEPS), torch.finfo(torch.float32).min).triu(1)
    shares = F.softmax(scores + mask, dim=-1, dtype=torch.float32)
    return F.linear(torch.matmul(shares, split[2]).transpose(1, 2).reshape(1, STEPS, WIDTH), out)


PORT = """
def port(x, weights):
    q, k, v, out = weights
    angle = torch.arange(STEPS).float()[:, None] / 10000.0 ** (torch.arange(0, SIZE, 2) / SIZE)
    c, s = angle.cos(), angle.sin()
    def rotate(y):
        one, two = y[..., : SIZE // 2], y[..., SIZE // 2 :]
        return torch.cat([one * c - two * s, two * c + one * s], -1)
    q, k, v = (F.linear(x, w).view(1, STEPS, HEADS, SIZE).transpose(1, 2) for w in (q, k, v))
    score = rotate(q) @ rotate(k).mT / math.sqrt(SIZE)
    share = score.masked_fill(torch.ones(STEPS, STEPS).triu(1) > 0, -math.inf).softmax(-1)
    return F.linear((share @ v).transpose(1, 2).reshape(1, STEPS, WIDTH), out)
"""
FAULTS = {
    "sign": ("- two * s, two * c +", "+ two * s, two * c -", 8),
    "scale": ("math.sqrt(SIZE)", "SIZE", 10),
    "mask": (".triu(1)", ".triu(2)", 11),
}


def weights():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(WIDTH, WIDTH, generator=generator) for _ in range(4)], torch.randn(
        1, STEPS, WIDTH, generator=generator
    )


def recorded(folder, run):
    with amanda.disabled():
        given, x = weights()
    with Recorder(folder) as recorder, amanda.apply(recorder):
        run(x, given)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("records") / "library", reference)


@pytest.fixture
def port(tmp_path):
    def make(old="", new=""):
        path = tmp_path / "port.py"
        assert old in PORT
        path.write_text(PORT.replace(old, new) if old else PORT)
        names = {"torch": torch, "F": F, "math": math, "STEPS": STEPS, "WIDTH": WIDTH, "HEADS": HEADS, "SIZE": SIZE}
        exec(compile(path.read_text(), str(path), "exec"), names)
        return names["port"]

    return make


def compared(library, run):
    diff = CausalDiff(library)
    with amanda.disabled():
        given, x = weights()
    with amanda.apply(diff):
        run(x, given)
    return diff.answer()


def test_a_right_port_agrees(library, port):
    answer = compared(library, port())
    assert "what was compared agrees; up to rounding, also " in answer
    assert "something else" not in answer
    assert "move" not in answer


@pytest.mark.parametrize("fault", FAULTS)
def test_the_line_of_a_fault(library, port, tmp_path, fault):
    old, new, line = FAULTS[fault]
    run = port(old, new)
    begins = compared(library, run).splitlines()[0]
    assert begins.startswith("this run computes something else from aten::")
    assert f"port.py:{line} on: its result is nowhere in the reference" in begins
    answer = RecordDiff(library, recorded(tmp_path / "port", run)).answer()
    assert begins in answer


APART = "(F.linear(x, w).view(1, STEPS, HEADS, SIZE).transpose(1, 2) for w in (q, k, v))"
AS_ONE = "F.linear(x, torch.cat([q, k, v])).view(1, STEPS, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)"
MIXED = "F.linear(x, torch.cat([q, k, v])).view(1, STEPS, HEADS, 3, SIZE).permute(3, 0, 2, 1, 4)"


def test_one_layer_in_place_of_three(library, port):
    """The reference has no result of that size; where a view mixes the three, the next line computes something else."""
    answer = compared(library, port(APART, AS_ONE))
    assert "what was compared agrees; up to rounding, also " in answer
    assert "something else" not in answer
    begins = compared(library, port(APART, MIXED)).splitlines()[0]
    assert begins.startswith("this run computes something else from aten::mul")
    assert "port.py:8 on: its result is nowhere in the reference" in begins


def test_an_argument_is_a_change_of_its_own(library, port):
    answer = compared(library, port("/ 10000.0 **", "/ 500000.0 **"))
    assert "self: 10000.0 -> 500000.0 in aten::pow.Scalar at " in answer.splitlines()[0]
    assert "port.py:4 " in answer.splitlines()[0]


def test_elements_in_another_order_have_no_origin(library, port):
    answer = compared(library, port("rotate(q) @", "rotate(q).flip(-1) @"))
    assert "operators that only this run has move aten::" in answer
    assert "aten::flip at " in answer
    assert "the reference has such elements, perhaps in another order" in answer
