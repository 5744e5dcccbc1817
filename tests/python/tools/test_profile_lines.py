"""Profile by line with backward=True: backward time belongs to the line, the module and the operator that created it."""

import collections
import json
import linecache
import re
import statistics
import subprocess
import sys
import time

import amanda
import pytest
import torch
import transformers
from amanda.tools.profile import Profile
from repository import ROOT
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

FIELDS = ("calls", "total_ns", "forward_ns", "backward_ns", "backward_calls", "output_bytes", "backward_bytes")
NAP = 0.02
STEPS = 3


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(NAP)
        return grad


def line_of(text):
    """This file's only line of code with this text, as rows name it."""
    lines = enumerate(linecache.getlines(__file__), 1)
    (number,) = [number for number, line in lines if text in line and f'"{text}' not in line]
    return f"{__file__}:{number}"


def by_line(profile):
    return {row.name: row for row in profile.rows("line")}


def profiled(program, steps=STEPS, **options):
    profile = Profile(**{"backward": True} | options)
    with amanda.apply(profile):
        for _ in range(steps):
            program()
    return profile


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))

    def step():
        hidden = Nap.apply(model(torch.randn(32, 64)))
        hidden.square().mean().backward()

    return profiled(step)


# ---- against PyTorch's profiler, and a clock ------------------------------------------------------------------------


def program(x, weight, small):
    """Each line is labeled with a name of its own for PyTorch's profiler."""
    with record_function("product"):
        y = x @ weight
    with record_function("two operators and a lambda"):
        y = (lambda z: z.softmax(-1))(y.tanh())
    for _ in range(4):
        with record_function("in a loop"):
            y = y @ weight
    with record_function("small"):
        y = y[:64, :64] @ small
    with record_function("loss"):
        return y.square().sum()


LINES = {
    "product": "y = x @ weight",
    "two operators and a lambda": "y = (lambda z",
    "in a loop": "    y = y @ weight",
    "small": "@ small",
    "loss": "y.square().sum()",
}


def runs_of_pytorchs_profiler(events):
    """Microseconds by label and operator. Sequence numbers link backward operators to forward ones, and so to labels."""
    runs, labels = collections.defaultdict(list), {}
    for event in events:
        outer = event.cpu_parent
        while outer is not None and outer.name not in LINES:
            outer = outer.cpu_parent
        if outer is not None and event.sequence_nr >= 0:
            labels[event.sequence_nr] = outer.name
        if outer is not None and event.cpu_parent is outer and event.name.startswith("aten::"):
            runs[outer.name, event.name].append(event.cpu_time_total)
    for event in events:
        if event.name.endswith("Backward0") and not event.name.startswith("autograd::"):
            runs[labels[event.sequence_nr], event.name].append(event.cpu_time_total)
    return runs


def test_lines_have_the_operators_and_times_of_pytorchs_profiler_forward_and_backward(tmp_path):
    x, weight, small = torch.randn(384, 384, requires_grad=True), torch.randn(384, 384), torch.randn(64, 64)
    profile, path = Profile(backward=True), tmp_path / "trace.json"
    with amanda.apply(profile):
        program(x, weight, small).backward()  # what analyses take is in their times, not in ours
        profile.reset()
        with torch.profiler.profile() as theirs:
            for _ in range(9):
                program(x, weight, small).backward()
    expected = runs_of_pytorchs_profiler(theirs.events())
    assert expected.keys() > {("product", "MmBackward0"), ("two operators and a lambda", "SoftmaxBackward0")}
    assert len(expected["in a loop", "MmBackward0"]) == 9 * 4

    profile.export_chrome_trace(path)
    labels, found = {line_of(text): label for label, text in LINES.items()}, collections.defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        label = labels.get(event.get("args", {}).get("source"))
        if label and event["name"] != "AccumulateGrad":
            found[label, event["name"]].append(event["dur"])
    assert {key: len(runs) for key, runs in found.items()} == {key: len(runs) for key, runs in expected.items()}
    for (
        key,
        runs,
    ) in expected.items():  # a quarter of the runs: others may be interrupted between the two clocks' readings
        off = sorted(abs(ours - their) / (100 + 0.1 * their) for ours, their in zip(found[key], runs, strict=True))
        assert off[len(off) // 4] < 1, key
    for row in by_line(profile).values():
        if label := labels.get(row.source):
            own = [(name, dur) for (of, name), durations in found.items() if of == label for dur in durations]
            forward = sum(dur for name, dur in own if name.startswith("aten::"))
            assert row.forward_ns == pytest.approx(forward * 1000)
            assert row.calls == sum(name.startswith("aten::") for name, _ in own)


def test_lines_have_the_times_of_a_clock_around_them():
    weight, small = torch.randn(512, 512), torch.randn(64, 64)
    took = collections.defaultdict(list)

    def step():
        began = time.perf_counter_ns()
        torch.mm(weight, weight)
        between = time.perf_counter_ns()
        torch.mm(small, small)
        took["small"].append(time.perf_counter_ns() - between)
        took["large"].append(between - began)

    profile = profiled(step, steps=31, skip=1, backward=False)
    rows = {row.source: row for row in profile.rows("id")}
    large, small = (rows[line_of(f"torch.mm({name}, {name})")].median_ns for name in ("weight", "small"))
    expected = {size: statistics.median(runs[1:]) for size, runs in took.items()}  # the machine may be busy
    assert 0.9 * expected["large"] <= large <= 1.005 * expected["large"]
    assert small <= 1.005 * expected["small"]
    assert by_line(profile)[line_of("torch.mm(weight, weight)")].share > 0.8


def test_backward_time_belongs_to_what_created_the_operator(trained):
    rows = by_line(trained)
    napped = rows[line_of("hidden = Nap.apply(")]
    assert STEPS * NAP <= napped.backward_ns / 1e9 < STEPS * NAP + 0.5, "the sleep, and the layers' gradients"
    loss = rows[line_of("hidden.square().mean()")]
    assert 0 < loss.backward_ns < napped.backward_ns / 2
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
    assert sum(row.backward_ns for row in outer) < STEPS * NAP * 1e9 / 2, (
        "the nap inside it belongs to another operator"
    )
    assert sum(row.backward_ns for row in ids) <= sum(took)
    started = rows[line_of("  loss.backward()")]
    assert started.backward_ns < layers.backward_ns


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


# ---- lines of the user's code, above those of a library -------------------------------------------------------------


def test_a_planted_fault_and_what_a_library_costs_are_at_the_users_lines():
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 64, (2, 16))
    took = []

    def step():
        began = time.perf_counter_ns()
        scores = model(ids).logits
        took.append(time.perf_counter_ns() - began)
        slow = Nap.apply(scores)
        slow.logsumexp(-1).sum().backward()

    profile = Profile(backward=True)
    with amanda.apply(profile):
        step()
        profile.reset()
        took.clear()
        for _ in range(STEPS):
            step()
    rows = {row.name: row for row in profile.rows("user_line")}
    texts = ("scores = model(ids)", "slow = Nap.apply(", "slow.logsumexp(")
    scores, slow, loss = (rows[line_of(text)] for text in texts)
    in_nap = rows[line_of("        return x.clone()")]
    assert set(rows.values()) == {scores, slow, loss, in_nap}
    assert slow.name == profile.rows("user_line")[0].name
    assert STEPS * NAP <= slow.backward_ns / 1e9 < STEPS * NAP + 0.5
    library = [row for row in profile.rows("line") if "transformers" in row.source]
    assert len(library) > 10
    for field in FIELDS:
        assert getattr(scores, field) == sum(getattr(row, field) for row in library), field
    assert 0 < scores.forward_ns < sum(took)
    (listed,) = profile.annotate().files
    assert listed.path == __file__


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


def test_the_example_names_the_line_with_the_expensive_gradient():
    example = ROOT / "examples" / "python" / "slow_line.py"
    printed = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True).stdout
    lines = example.read_text().splitlines()
    number = lines.index("            pixel = x[:, t]") + 1
    assert f"\nline {number}: " in printed
    forward, backward = map(
        float, re.search(r", ([\d.]+) ms forward and ([\d.]+) ms backward per step", printed).groups()
    )
    assert backward > 4 * forward
    assert re.search(r"^with unbind: [\d.]+ ms -> [\d.]+ ms$", printed, re.MULTILINE)
    (listed,) = [line for line in printed.splitlines() if line.endswith("│             pixel = x[:, t]")]
    assert listed.split()[:2] == [str(number), str(3 * 64)]
