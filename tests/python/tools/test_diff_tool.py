"""CausalDiff: planted faults are found, each exactly, and nothing that follows from them. Records survive what happens."""

import json
import math
import re

import amanda
import pytest
import torch
from amanda.tools.diff import CausalDiff, Recorder, record_writer
from amanda.tools.diff import record as records
from diff_runs import causes, train
from torch import nn


@pytest.fixture
def reference(tmp_path):
    """A record of `train()`."""
    with Recorder(tmp_path / "reference") as recorder, amanda.apply(recorder):
        train()
    return tmp_path / "reference"


def test_recording_changes_nothing_and_equal_runs_do_not_differ(tmp_path):
    alone = train()
    with Recorder(tmp_path / "reference") as recorder, amanda.apply(recorder):
        recorded = train()
    diff = CausalDiff(tmp_path / "reference")
    with amanda.apply(diff):
        compared = train()
    assert all(map(torch.equal, alone, recorded))
    assert all(map(torch.equal, alone, compared))
    assert not diff.differs, diff.rows()


def flip(model):
    model[3].weight.detach().view(torch.int32)[1, 2] ^= 1 << 20


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"eps": 1e-3}, [("operator", "aten::layer_norm", "", "1", "eps: 1e-05 -> 0.001")]),
        ({"seed": 1}, [("operator", "aten::dropout", "", "2", "")]),
        ({"change": flip}, [("input", "aten::linear", "", "3", "weight (3.weight)")]),
        ({"scale": 2.0}, [("operator", "aten::mul.Tensor", "", "", "other: 1.0 -> 2.0")]),
        (
            {"beta": 0.9},
            [
                ("operator", "aten::addcmul_", "", "", "value: 0.0010000000000000009 -> 0.09999999999999998"),
                ("operator", "aten::div.Tensor", "", "", "other: 0.031622776601683805 -> 0.3162277660168379"),
                ("operator", "aten::mul_.Tensor", "", "", "other: 0.999 -> 0.9"),
            ],
        ),
    ],
    ids=["eps", "seed", "weight", "scale", "beta"],
)
def test_a_planted_fault_is_found_and_nothing_else(reference, changed, expected):
    assert causes(reference, **changed) == expected


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_an_optimizer_that_works_on_lists(tmp_path, kind):
    def run(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), **{kind: True}, **options)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 4).cumsum(0)).square().sum().backward()
            optimizer.step()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    found = causes(tmp_path / "r", run, betas=(0.8, 0.999))
    name = "_foreach_lerp_.Scalar" if kind == "foreach" else "_fused_adamw_"
    argument = "weight: 0.09999999999999998 -> 0.19999999999999996" if kind == "foreach" else "beta1: 0.9 -> 0.8"
    assert ("operator", f"aten::{name}", "", "", argument) in found
    assert all(kind == "operator" for kind, *_ in found), found
    assert causes(tmp_path / "r", run) == []
    assert len(found) == (1 if kind == "fused" else 2), "and the foreach one's step size"


def test_running_statistics_belong_to_their_operator(tmp_path):
    def run(momentum=0.1):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4, momentum=momentum)
        for _ in range(2):
            norm(torch.randn(5, 4)).square().sum().backward()
        norm.eval()(torch.randn(5, 4))
        return norm.running_var.clone()

    alone = run()
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        healed = run(0.2)
    assert [(row.name, row.note, row.runs) for row in diff.rows()] == [("aten::batch_norm", "momentum: 0.1 -> 0.2", 2)]
    assert torch.equal(healed, alone)


def test_a_view_of_something_else(tmp_path):
    def run(row=0, start=0, transposed=False):
        x = torch.arange(16.0).reshape(4, 4).requires_grad_()
        x = x.t() if transposed else x
        (x[row] * x[:, start : start + 2].sum()).exp().sum().backward()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    assert causes(tmp_path / "r", run) == []
    assert causes(tmp_path / "r", run, row=1) == [("operator", "aten::select.int", "", "", "index: 0 -> 1")]
    assert causes(tmp_path / "r", run, start=1) == [
        ("operator", "aten::slice.Tensor", "", "", "start: 0 -> 1, end: 2 -> 3")
    ]
    assert [row[:2] for row in causes(tmp_path / "r", run, transposed=True)] == [("only in this run", "aten::t")]


def test_what_follows_from_an_operator_that_one_run_has_is_not_listed(tmp_path):
    def run(extra=False, dropped=False, half=False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            x = torch.linspace(1, 2, 12).reshape(3, 4)
            hidden = model[0](x)
            hidden = hidden + (hidden.sinh() if extra else 0)  # a sum of gradients
            if not dropped:
                hidden = hidden.relu()
            loss = model[2](model[1](hidden) + hidden).float().square().sum()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    assert [(kind, name, note) for kind, name, _, _, note in causes(tmp_path / "r", run, extra=True)] == [
        ("operator", "aten::add.Tensor", "other: 0 -> tensor float32[3, 4]"),
        ("only in this run", "aten::sinh", ""),
    ]
    assert [row[:2] for row in causes(tmp_path / "r", run, dropped=True)] == [("only in reference", "aten::relu")]
    found = causes(tmp_path / "r", run, half=True, tolerances={"rtol": 0.1, "atol": 0.1})
    assert [(kind, backward_op, note) for kind, _, backward_op, _, note in found] == [
        ("only in this run", "ToCopyBackward0", "casts at 5 places")
    ]


def test_which_run_is_closer_to_float64(tmp_path):
    def run():
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 64)
        torch.nn.functional.dropout(x.exp())
        return x.clone().exp_()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    coarse = amanda.Tool("coarse")
    for name in ("exp", "exp_", "dropout"):
        coarse.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y.bfloat16().float()), ops=name)
    diff = CausalDiff(tmp_path / "r", float64=True)
    with amanda.apply(coarse, diff):
        state = run(), torch.get_rng_state()
    x = torch.linspace(-1, 1, 64)
    exact = x.double().exp()
    ulp = torch.finfo(torch.float32).eps * 2.0 ** exact.log2().floor()
    errors = [((result.double() - exact).abs() / ulp).max().item() for result in (x.exp(), x.exp().bfloat16().float())]
    assert [(row.name, row.reference_ulps, row.ulps) for row in diff.rows()] == [
        ("aten::exp", *errors),
        ("aten::dropout", None, None),
        ("aten::exp_", *errors),
    ]
    assert errors[0] < 2 < 1000 < errors[1]
    assert " ulp off, reference 0." in diff.table()._repr_html_()
    run()
    assert torch.equal(state[1], torch.get_rng_state()), "random numbers are drawn as ever"


def test_eager_against_compiled(tmp_path):
    def run(compiled=True, eps=1e-5):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps), nn.Tanh(), nn.Linear(8, 3))
        forward = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            forward(torch.linspace(-1, 1, 12).reshape(3, 4)).square().mean().backward()
            optimizer.step()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run(compiled=False)
    for eps, expected in [(1e-5, []), (1e-2, ["eps: 1e-05 -> 0.01"])]:
        diff = CausalDiff(tmp_path / "r", close=True)
        with amanda.apply(diff, compiled="graph"):
            run(eps=eps)
        assert [row.note for row in diff.rows()] == expected, diff.rows()


def test_an_operator_that_was_left_out(reference):
    """AdamW has no multiplication for a decay of zero. That shifts the ids of others on the same line of the program."""
    found = causes(reference, weight_decay=0.0)
    assert found == [("only in reference", "aten::mul_.Tensor", "", "", "6 places")], "and not what they feed"


def test_an_operator_that_was_put_between_others_of_its_type(tmp_path):
    def run(nesterov=False):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov, foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    found = causes(tmp_path / "r", run, nesterov=True)
    assert {row[:2] for row in found} == {("only in this run", "aten::_foreach_add_.List")}, found


def test_another_dtype_is_compared_within_its_precision(tmp_path):
    def run(dtype=torch.float32, factor=1.0):
        x = torch.linspace(1, 2, 12).reshape(3, 4).to(dtype)
        return (x * factor).exp().sum(1)

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    assert causes(tmp_path / "r", run, dtype=torch.float64) == []
    assert [row[:2] for row in causes(tmp_path / "r", run, dtype=torch.float64, factor=1.01)] == [
        ("operator", "aten::mul.Tensor")
    ]
    half = causes(tmp_path / "r", run, dtype=torch.bfloat16)
    assert all(kind == "operator" and note == "bfloat16 instead of float32" for kind, *_, note in half), half


def test_tolerances_and_what_differs_is_told(tmp_path):
    def run(noise=0.0):
        return (torch.ones(2, 3) * (1 + noise)).sum()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        result = run(0.25)
    assert result == 6, "it is the reference's"
    (row,) = diff.rows()
    assert (row.elements, row.max_abs, row.max_rel, row.shape, row.dtype) == (6, 0.25, 0.25, (2, 3), "float32")
    assert causes(tmp_path / "r", run, {"rtol": 0.3}, noise=0.25) == []


def test_operators_of_one_run_only_and_other_counts(reference):
    longer = causes(reference, steps=4)
    assert {row[0] for row in longer} == {"other count"}, "and not the copies of the last weights"
    assert "ran 4 times, in the reference 3 times" in {note for *_, note in longer}
    (extra,) = [row for row in causes(reference, lambda: [train(), torch.ones(2).sinh()]) if "sinh" in row[1]]
    assert extra[:2] == ("only in this run", "aten::sinh")
    missing = causes(reference, lambda: None)
    assert {row[0] for row in missing} == {"only in reference"}


def test_the_record_of_an_interrupted_run_is_readable(tmp_path, monkeypatch):
    monkeypatch.setattr(record_writer, "BATCH_BYTES", 1)
    recorder = Recorder(tmp_path / "r")
    with amanda.apply(recorder):  # and it is never closed, as in a process that is killed
        torch.ones(3).exp().sum()
    with open(tmp_path / "r" / "index.jsonl", "a") as index:
        index.write('["0f1e2d3c", ["run", 0, [')  # the line that was being written
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        torch.ones(3).exp().sum()
    assert not diff.rows(), "operators of another line with the same text are matched"
    assert [station.operator for station in records.Record(tmp_path / "r").stations] == [
        "aten::ones",
        "aten::exp",
        "aten::sum",
    ]
    assert "what comes after the end of the record" in str(diff.table())
    assert diff.not_compared == ["what comes after the end of the record, whose program failed or was stopped"]
    recorder._writer._index.close()


FULL_DISK = """
import resource, sys, torch, amanda
from amanda.tools.diff import Recorder, record_writer
record_writer.BATCH_BYTES = 1
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # of each file
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(sys.argv[1])
try:
    with amanda.apply(recorder):
        torch.ones(30).exp().repeat(10_000)
except OSError as error:
    print(error)
recorder.close()
"""


def test_a_full_disk_is_an_error_of_the_system_and_keeps_what_was_written(forked_python, tmp_path):
    printed = forked_python(FULL_DISK, tmp_path / "r")
    assert re.match(
        r"\[diff\] can't write '.*/3.safetensors': .*File too large.*; what was written before can be read",
        printed,
    )
    record = records.Record(tmp_path / "r")
    assert not record.is_complete
    assert [station.operator for station in record.stations] == ["aten::ones", "aten::exp"]
    assert torch.equal(record.result(record.runs(1)[0], 0), torch.ones(30).exp())


def test_signs_of_zero_and_infinities_differ(tmp_path):
    def run(factor=0.0):
        return torch.ones(3) * factor

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        run(-0.0)
    assert [(row.name, row.elements, row.max_abs) for row in diff.rows()] == [("aten::mul.Tensor", 3, 0.0)]
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        run(math.inf)
    assert [row.max_abs for row in diff.rows()] == [math.inf]


def test_what_cannot_be_stored_is_compared_by_its_hash_and_what_cannot_be_read_is_told(tmp_path):
    def run(factor=2.0):
        torch.eye(3).to_sparse() * factor
        return (torch.ones(3, dtype=torch.complex128) * factor).exp().abs()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        run(3.0)
    (row,) = diff.rows()
    assert (row.name, row.elements, row.note) == ("aten::mul.Tensor", None, "other: 2.0 -> 3.0")
    assert diff.not_compared == ["2 results that could not be read (2: a sparse tensor)"]
    assert f"not compared: {diff.not_compared[0]}" in " ".join(str(diff.table()).split())


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\[diff\] '.*' is no record: it has no index.jsonl; make one with"):
        CausalDiff(tmp_path)
    (tmp_path / "index.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"is no record: its index.jsonl is something else"):
        CausalDiff(tmp_path)
    (tmp_path / "index.jsonl").write_text(json.dumps(["amanda diff record", 99]))
    with pytest.raises(ValueError, match="is a record of version 99, and this Amanda reads version 4; record it again"):
        CausalDiff(tmp_path)
    with pytest.raises(FileExistsError, match="is not empty; a record is written into a folder of its own"):
        Recorder(tmp_path)
    with pytest.raises(ValueError, match=r"\[diff\] rtol= is a tolerance, 0 or more, got -1"):
        CausalDiff(tmp_path, rtol=-1)


def test_the_example_finds_its_three_faults(run_example):
    printed = run_example("compare_runs.py")
    first, *rows = printed.splitlines()
    assert first.endswith("with it, 0")
    assert [" ".join(row.split()) for row in rows] == [
        "input aten::linear encoder.layer.1.output.dense weight (encoder.layer.1.output.dense.weight)",
        "operator aten::layer_norm encoder.layer.2.attention.output.LayerNorm eps: 1e-12 -> 0.001",
        "operator aten::gelu encoder.layer.4.intermediate.intermediate_act_fn approximate: 'none' -> 'tanh'",
    ]
