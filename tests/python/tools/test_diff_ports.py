"""CausalDiff of two programs: they part, or one is a port of the other."""

import dataclasses
import inspect
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.diff import CausalDiff, Recorder, matching
from torch import nn


def test_two_programs_that_part(tmp_path):
    def run(other=False):
        x = torch.ones(4, 4).exp().sin()
        if other:
            for operator in (torch.cos, torch.tanh, torch.sqrt, torch.abs):
                x = operator(x)
        else:
            for operator in (torch.sinh, torch.cosh, torch.log1p):
                x = operator(x)
        return x

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        run()
    assert diff.parting is None
    with amanda.apply(diff := CausalDiff(tmp_path / "r")):
        run(other=True)
    assert [(row.kind, row.name, row.note) for row in diff.rows()] == [
        ("only in this run", "aten::cos", "and 3 more from here on"),
        ("only in reference", "aten::sinh", "and 2 more from here on"),
    ]
    assert re.fullmatch(
        r"the programs part at aten::cos \(.*test_diff_ports.py:\d+\), where the reference has aten::sinh "
        r"\(.*test_diff_ports.py:\d+\): of 4 operators from there on, none has a counterpart",
        str(diff.parting),
    )
    assert str(dataclasses.replace(diff.parting, counterparts=1)).endswith("from there on, 1 has a counterpart")
    assert str(dataclasses.replace(diff.parting, counterparts=2)).endswith("from there on, 2 have a counterpart")
    assert "the programs part at" in str(diff.table())
    assert diff.answer().startswith(str(diff.parting))


class Original(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8, eps=1e-12), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        hidden = self.norm(x)
        hidden = self.up(hidden)
        hidden = F.gelu(hidden)
        return x + self.down(hidden)


class Port(nn.Module):
    """Other lines, and the same names, or others."""

    def __init__(self, names, eps=1e-12, approximate="none"):
        super().__init__()
        self.names, self.approximate = names, approximate
        for name, layer in zip(names, (nn.LayerNorm(8, eps=eps), nn.Linear(8, 16), nn.Linear(16, 8)), strict=True):
            self.add_module(name, layer)

    def forward(self, given):
        a, b, c = (self.get_submodule(name) for name in self.names)
        return given + c(F.gelu(b(a(given)), approximate=self.approximate))


def computed(kind, *arguments, steps=2, **more):
    torch.manual_seed(0)
    with amanda.disabled():  # memory of new parameters may hold anything
        model = nn.Sequential(*(kind(*arguments, **more) for _ in range(2)))
    for _ in range(steps):
        model(torch.randn(3, 5, 8)).square().sum().backward()


NAMES = [("norm", "up", "down"), ("ln", "fc1", "fc2")]


@pytest.mark.parametrize("names", NAMES, ids=["the same names", "other names"])
def test_a_port_of_other_code_is_compared(tmp_path, names, monkeypatch):
    """Its lines are not those of the original: neither file has the other's."""
    lines = inspect.getsource(Original).splitlines()
    monkeypatch.setattr(matching, "_lines_of", lambda _: {"it has lines"} - {line.strip() for line in lines})
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        computed(Original)

    def changes(**more):
        with amanda.apply(diff := CausalDiff(tmp_path / "r")):
            computed(Port, names, **more)
        forward = [row for row in diff.rows() if not row.backward_op]
        return [(row.name, row.note) for row in forward], [row for row in diff.rows() if row.kind == "operator"], diff

    right, operators, diff = changes()
    assert (right, operators, diff.parting) == ([], [], None)
    eps = ("aten::layer_norm", "eps: 1e-12 -> 1e-05")
    found, operators, diff = changes(eps=1e-5, approximate="tanh")
    assert set(found) == {eps, ("aten::gelu", "approximate: 'none' -> 'tanh'")}
    assert diff.answer().startswith("the largest of 2 changes: ")
    assert all(not row.backward_op for row in operators)


def test_an_operator_in_place_of_another_and_whether_it_moved_a_result(tmp_path):
    """Heads of attention that are repeated in another order, of equal and of other heads."""

    def run(x, repeats):
        y = repeats(x, 2)
        return y.softmax(-1) * 2

    def interleaved(x, times):
        return x.repeat_interleave(times, 0)

    def repeated(x, times):
        return x.repeat(times, 1)

    for x, moves in ((torch.randn(2, 4), True), (torch.randn(1, 4).repeat(2, 1), False)):
        with Recorder(tmp_path / f"{moves}") as recorder, amanda.apply(recorder):
            run(x, interleaved)
        with amanda.apply(diff := CausalDiff(tmp_path / f"{moves}")):
            run(x, repeated)
        assert [row.name.partition(".")[0] for row in diff.rows()] == ["aten::repeat", "aten::repeat_interleave"]
        assert ("went on with the reference's results" in diff.answer()) == moves


def test_an_argument_changes_beside_an_operator_that_only_the_reference_has(tmp_path):
    def run(port=False):
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 4, 3, stride=2, padding=1 if port else 0)
        x = torch.randn(1, 3, 8, 8)
        return layer(x if port else F.pad(x, (0, 1, 0, 1)))

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    with amanda.apply(diff := CausalDiff(tmp_path / "r")):
        run(port=True)
    assert [(row.kind, row.name, row.note) for row in diff.rows()] == [
        ("operator", "aten::conv2d", "padding: [0, 0] -> [1, 1]"),
        ("only in reference", "aten::pad", ""),
    ]
