"""CausalDiff: faults in backward passes, and gradients of leaves."""

import amanda
import pytest
import torch
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder
from amanda.tools.diff.record import Record
from diff_runs import causes
from torch import nn


def test_a_fault_in_a_backward_pass_of_an_operator_that_was_a_cause_in_another_run(tmp_path):
    def run(fault=False):
        for step in range(3):
            x = torch.linspace(1, 2, 3).requires_grad_()
            y = x * (2.0 if fault and step == 0 else 1.0)
            if fault and step == 2:
                y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
            y.exp().sum().backward()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    found = causes(tmp_path / "r", run, fault=True)
    assert [row[:3] for row in found] == [
        ("operator", "aten::mul.Tensor", ""),
        ("input", "aten::mul.Tensor", "MulBackward0"),
    ]


def test_a_fault_in_a_backward_pass_only(tmp_path):
    class Twice(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * Twice.factor

    def run():
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        Twice.apply(layer(torch.ones(2, 4))).exp().sum().backward()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    Twice.factor = 2.5
    found = causes(tmp_path / "r", run)
    assert [(kind, backward_op) for kind, _, backward_op, _, _ in found] == [("operator", "TwiceBackward")]


LEAVES = {
    "hook": [("input", "aten::linear", "AccumulateGrad", "", "gradient (0.weight)")],
    "sum": [("operator", "aten::linear", "AccumulateGrad", "", "grad: tensor float32[4] -> None")],
    "hook behind": [("operator", "aten::linear", "AccumulateGrad", "", "")],
}


@pytest.mark.parametrize("steps", [False, True], ids=["gradients", "optimizer"])
@pytest.mark.parametrize("fault", LEAVES)
def test_a_gradient_that_no_operator_made(tmp_path, fault, steps):
    def double(parameter):
        parameter.grad.mul_(2)

    def run(fault=""):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if fault == "hook":
            model[0].weight.register_hook(lambda gradient: gradient * 2)
        if fault == "hook behind":
            model[0].weight.register_post_accumulate_grad_hook(double)
        for _ in range(2):
            if fault == "sum":
                model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
        if steps:
            optimizer.step()
        return [model[0].weight.grad.clone(), model[0].bias.grad.clone()]

    alone = run()
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        recorded = run()
    assert causes(tmp_path / "r", run) == []
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        healed = run(fault)
    found = [(row.kind, row.name, row.backward_op, row.module_path, row.note) for row in diff.rows()]
    assert [(*row[:3], "", row[4]) for row in found] == LEAVES[fault]
    assert all(map(torch.equal, recorded, alone))
    assert all(map(torch.equal, healed, alone)), "it goes on with the reference's gradients"
    with Recorder(tmp_path / "other") as recorder, amanda.apply(recorder):
        run(fault)
    rows = RecordDiff(tmp_path / "r", tmp_path / "other").rows()
    assert LEAVES[fault][0] in [(row.kind, row.name, row.backward_op, "", row.note) for row in rows]


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_gradients_that_are_part_of_a_graph_are_compared_and_not_written_to(tmp_path):
    def run(scale=1.0):
        weight = torch.full((2,), 3.0, requires_grad=True)
        weight.register_hook(lambda gradient: gradient * scale)
        weight.pow(3).sum().backward(create_graph=True)
        (second,) = torch.autograd.grad(weight.grad.sum(), weight)
        return second

    alone = run()
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        recorded = run()
    assert torch.equal(recorded, alone)
    assert causes(tmp_path / "r", run) == []
    assert causes(tmp_path / "r", run, scale=2.0)[0] == (
        "input",
        "aten::pow.Tensor_Scalar",
        "AccumulateGrad",
        "",
        "gradient",
    )


def test_gradients_of_leaves_are_stored_once(tmp_path):
    weight = torch.ones(1000, requires_grad=True)
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        (weight * 2).sum().backward()
    stored = {
        number
        for _, execution in Record(tmp_path / "r").executions
        for number in execution.results
        if number is not None
    }
    assert recorder.bytes < 3.5 * weight.nbytes, "of mul, of its backward operator, of that of sum"
    assert len(stored) == 5
