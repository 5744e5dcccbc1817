"""Profile with backward=True: backward time belongs to the line, the module and the operator that created it."""

import json
import time

import amanda
import profile_runs
import pytest
import torch
from amanda.tools.profile import Profile
from profile_runs import NAP, STEPS, Nap, by_line, profiled
from torch.utils.checkpoint import checkpoint

FIELDS = ("calls", "total_ns", "forward_ns", "backward_ns", "backward_calls", "output_bytes", "backward_bytes")


def line_of(text):
    return profile_runs.line_of(__file__, text)


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))

    def step():
        hidden = Nap.apply(model(torch.randn(32, 64)))
        began = time.perf_counter_ns()
        hidden.square().mean().backward()
        took.append(time.perf_counter_ns() - began)

    took = []
    made = profiled(step)
    made.took = sum(took)
    return made


def test_backward_time_belongs_to_what_created_the_operator(trained):
    rows = by_line(trained)
    napped = rows[line_of("hidden = Nap.apply(")]
    loss = rows[line_of("hidden.square().mean()")]
    naps = STEPS * NAP * 1e9
    assert naps <= napped.backward_ns < trained.took - loss.backward_ns, "the sleep, and the layers' gradients"
    assert 0 < loss.backward_ns < trained.took - naps
    modules = {row.name: row for row in trained.rows("module")}
    # AddmmBackward0, TBackward0 and the AccumulateGrad of the weight and of the bias
    assert [modules[name].backward_calls for name in ("0", "1", "2")] == [STEPS * 4, STEPS, STEPS * 4]
    assert [modules[name].calls for name in ("0", "1", "2")] == [STEPS] * 3
    gelu = next(row for row in trained.rows("op") if row.name == "aten::gelu")
    assert (gelu.output_bytes, gelu.backward_bytes) == (STEPS * 32 * 64 * 4, STEPS * 32 * 64 * 4)


def test_all_groupings_have_the_same_sums(trained):
    sums = {
        by: [sum(getattr(row, field) for row in trained.rows(by)) for field in FIELDS]
        for by in ("op", "module", "line", "user_line", "id")
    }
    assert all(found == sums["op"] for found in sums.values())
    assert sum(row.share for row in trained.rows("line")) == pytest.approx(1)
    total = sums["line"]
    assert total[1] == total[2] + total[3] > 0


def test_the_trace_has_backward_operators_by_their_own_names(trained, tmp_path):
    trained.export_chrome_trace(tmp_path / "trace.json")
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    (gelu, *_) = [event for event in events if event["name"] == "GeluBackward0"]
    assert (gelu["cat"], gelu["args"]["op"], gelu["args"]["module_path"]) == ("backward operator", "aten::gelu", "1")
    naps = [event["dur"] for event in events if event["name"] == "NapBackward"]
    assert len(naps) == STEPS
    assert min(naps) >= NAP * 1e6
    assert sum(event["dur"] for event in events) * 1000 == pytest.approx(sum(row.total_ns for row in trained.rows()))


# ---- checkpoints, autocast, compiled functions ----------------------------------------------------------------------


def test_what_a_reentrant_checkpoint_computes_again_counts_once_and_for_its_line():
    layer, x = torch.nn.Linear(256, 256), torch.randn(256, 256)
    took = []

    def step():
        again = checkpoint(torch.nn.Sequential(layer, torch.nn.Tanh()), x.requires_grad_(), use_reentrant=True)
        napped = checkpoint(lambda y: Nap.apply(y), again, use_reentrant=True)
        loss = napped.sum()
        began = time.perf_counter_ns()
        loss.backward()
        took.append(time.perf_counter_ns() - began)

    profile = Profile(backward=True)
    with amanda.apply(profile):
        step()  # what is recomputed in it is analyzed inside the checkpoint's backward operator
        profile.reset()
        took.clear()
        for _ in range(STEPS):
            step()
    rows, ids = by_line(profile), profile.rows("id")
    layers, naps = rows[line_of("again = checkpoint(")], rows[line_of("napped = checkpoint(")]
    assert layers.calls >= 2 * 2 * STEPS, "linear and tanh, and both again"
    assert naps.backward_ns >= STEPS * NAP * 1e9, "the line of the checkpoint, not that of loss.backward()"
    outer = [row for row in ids if row.name == "autograd::CheckpointFunction"]
    assert sum(row.backward_calls for row in outer) > 0
    assert sum(row.backward_ns for row in outer) < sum(took) - STEPS * NAP * 1e9, (
        "the nap inside it belongs to another operator"
    )
    assert sum(row.backward_ns for row in ids) <= sum(took)
    started = rows[line_of("  loss.backward()")]
    assert started.backward_ns + layers.backward_ns <= sum(took) - STEPS * NAP * 1e9, "neither has the nap"


def test_a_checkpoint_that_is_not_reentrant_has_the_backward_operators_of_plain_code():
    layer, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), torch.ones(2, 8)

    def plain():
        layer(x).sum().backward()

    def checkpointed():
        checkpoint(layer, x, use_reentrant=False).sum().backward()

    def backward_calls(profile):
        return {row.name: row.backward_calls for row in profile.rows("module")}

    assert backward_calls(profiled(checkpointed)) == backward_calls(profiled(plain))


def test_the_casts_of_autocast_count_for_the_line_that_needs_them():
    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        y.float().sum().backward()

    rows = by_line(profiled(step))
    plain = rows[line_of("    y = layer(x)")]
    # as without autocast, and ToCopyBackward0 of weight and bias
    assert (plain.calls, plain.backward_calls) == (STEPS, STEPS * (4 + 2))


@pytest.mark.parametrize("compiled", ["graph", "eager"])
def test_compiled_functions_are_measured_backward(compiled):
    function = torch.compile(lambda a: (a @ a).relu().sum(), backend="aot_eager")
    profile = Profile(backward=True)
    with amanda.apply(profile, compiled=compiled):
        for _ in range(2):
            function(torch.ones(64, 64, requires_grad=True)).backward()
    rows = {row.name: row for row in profile.rows()}
    assert all(rows[name].backward_ns > 0 for name in ("aten::matmul", "aten::relu"))
    assert rows["aten::relu"].calls == 2
    line = by_line(profile)[line_of("torch.compile(lambda a")]
    assert line.backward_ns >= rows["aten::matmul"].backward_ns + rows["aten::relu"].backward_ns


# ---- nothing else changes -------------------------------------------------------------------------------------------


def test_gradients_are_the_same_and_without_the_option_backward_operators_have_no_routine():
    def gradients(*tools):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.5))
        with amanda.apply(*tools) as scope:
            for _ in range(2):
                model(torch.randn(8, 4)).square().sum().backward()
        backward = {row.backward_operator for row in scope.describe().rows()} - {""}
        return [parameter.grad for parameter in model.parameters()], backward

    only_forward, both = Profile(), Profile(backward=True)
    plain, _ = gradients(amanda.Tool("nothing"))
    for tool, expected in ((only_forward, False), (both, True)):
        found, backward = gradients(tool)
        assert all(map(torch.equal, found, plain))
        assert ("ReluBackward0" in backward) == expected, backward
    assert {row.name: row.calls for row in only_forward.rows()} == {row.name: row.calls for row in both.rows()}
    assert "backward ms" not in str(only_forward.table())
    assert "backward ms" in str(both.table())
    assert {"forward_ns", "backward_ns", "backward_calls"} < set(both.to_pandas("line").columns)
    both.reset()
    assert both.rows() == []


def test_first_executions_are_left_out_backward_too():
    x = torch.ones(3, requires_grad=True)
    profile = profiled(lambda: x.sin().sum().backward(), steps=5, skip=2)
    (row,) = (row for row in profile.rows() if row.name == "aten::sin")
    assert (row.calls, row.backward_calls) == (3, 2 * 3)  # SinBackward0 and AccumulateGrad
