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


def test_what_was_not_looked_up_is_not_said_to_be_there(tmp_path):
    def shares(parts):
        return [one.softmax(-1) for one in parts]

    def apart(x, given):
        return shares([F.linear(x, one) for one in given])

    def as_one(x, given):
        return shares(F.linear(x, 2 * torch.cat(given)).chunk(4, -1))

    begins = compared(recorded(tmp_path / "apart", apart), as_one).splitlines()[0]
    assert begins.startswith("operators that only this run has move aten::softmax")
    assert begins.endswith("; the reference has no result of that size to compare with")


def test_an_argument_is_a_change_of_its_own(library, port):
    answer = compared(library, port("/ 10000.0 **", "/ 500000.0 **"))
    assert "self: 10000.0 -> 500000.0 in aten::pow.Scalar at " in answer.splitlines()[0]
    assert "port.py:4 " in answer.splitlines()[0]


def test_elements_in_another_order_have_no_origin(library, port):
    answer = compared(library, port("rotate(q) @", "rotate(q).flip(-1) @"))
    assert "operators that only this run has move aten::" in answer
    assert "aten::flip at " in answer
    assert "the reference has such elements, perhaps in another order" in answer


READS = {
    "transposed": ("F.linear(x, weight.T)", None),
    "reshaped": (
        "F.linear(x, weight.reshape(5, WIDTH))",
        "it reads weight of the reference, (8, 5), reshaped to (5, 8), and not transposed",
    ),
    "reshaped otherwise": (
        "F.linear(x[..., :4], weight.reshape(10, 4))",
        "it reads weight of the reference, (8, 5), reshaped to (10, 4)",
    ),
    "with a dimension of one": ("F.conv1d(x.mT, weight.T[:, :, None]).mT", None),
    "with a dimension of one, and another fault": ("2 * F.conv1d(x.mT, weight.T[:, :, None]).mT", ""),
}


@pytest.mark.parametrize("ends", ["", "print(y)", "y.square().mean()"])
@pytest.mark.parametrize("how", READS)
def test_a_weight_in_another_shape(tmp_path, how, ends):
    """Whatever the program does with the result: nothing that operators show, printing it, or computing with it."""
    code, said = READS[how]

    def run(name, code):
        with amanda.disabled():
            _, x = weights()
            holder = torch.nn.Module()
            holder.weight = torch.nn.Parameter(torch.arange(40.0).view(WIDTH, 5).sin())
        names = {"F": F, "WIDTH": WIDTH, "x": x, "weight": holder.weight, "model": holder}
        path = tmp_path / f"{name}.py"
        path.write_text(f"y = {code}\n{ends}\n")
        with Recorder(tmp_path / name) as recorder, amanda.apply(recorder), torch.no_grad():
            exec(compile(path.read_text(), str(path), "exec"), names)
        return tmp_path / name

    lines = RecordDiff(run("library", "x @ weight"), run("port", code)).answer().splitlines()
    if said is None:
        assert any("what was compared agrees" in line for line in lines), lines
        assert not any("something else" in line or "reshaped" in line for line in lines)
    else:
        assert lines[0].startswith("this run computes something else from aten::")
        assert "port.py:1 on: its result is nowhere in the reference" in lines[0]
        assert [line for line in lines if "reshaped" in line] == [said] * bool(said)


@pytest.mark.parametrize("fault", ["", ".flip(-2)"])
def test_an_end_that_differs_after_parts_that_agree(tmp_path, fault):
    """Also if the answer was asked for before, inside the scope."""
    code = {
        "library": "z = x @ weight\ny = z.exp() @ other",
        "port": "z = F.linear(x, weight.T)\ny = F.linear(z.exp(), other.T)",
    }
    with amanda.disabled():
        (weight, other, *_), x = weights()
        names = {"F": F, "x": x, "weight": weight, "other": other}
    code["port"] = code["port"].replace("other.T", f"other{fault}.T")
    with Recorder(tmp_path / "library") as recorder, amanda.apply(recorder):
        exec(code["library"], dict(names))
    diff, answers = CausalDiff(tmp_path / "library"), []
    with amanda.apply(diff):
        for line in code["port"].splitlines():
            exec(compile(line, "port.py", "exec"), names)
            answers.append(diff.answer())
    assert ("this run computes something else from aten::linear at " in answers[-1]) == bool(fault)
    assert ("what was compared agrees" in answers[-1]) != bool(fault)
    assert "something else" not in answers[0]


def test_what_only_this_run_computes_at_its_end_is_no_fault(library, port):
    def run(x, given):
        y = port()(x, given)
        return y.abs().add(1.0).log()

    answer = compared(library, run)
    assert "what was compared agrees" in answer
    assert "something else" not in answer
