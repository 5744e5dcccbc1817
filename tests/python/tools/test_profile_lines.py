"""Profile by line: times and operators of each line are those of PyTorch's profiler and of a clock."""

import collections
import json
import re
import runpy
import time

import amanda
import profile_runs
import pytest
import torch
import transformers
from amanda.tools.profile import Profile
from profile_runs import NAP, STEPS, Nap, by_line, profiled
from repository import ROOT
from torch.profiler import record_function

FIELDS = ("calls", "total_ns", "forward_ns", "backward_ns", "backward_calls", "output_bytes", "backward_bytes")


def line_of(text):
    return profile_runs.line_of(__file__, text)


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
    """By label and operator: of each run the least and the most microseconds that it can have taken.

    What a forward operator calls runs inside it, and inside our measurement, which is inside the operator as PyTorch's
    profiler sees it; a backward operator is inside its evaluation by the engine. So it is, however slow the machine is.
    Sequence numbers link backward operators to forward ones, and so to labels.
    """
    runs, labels = collections.defaultdict(list), {}
    for event in events:
        outer = event.cpu_parent
        while outer is not None and outer.name not in LINES:
            outer = outer.cpu_parent
        if outer is not None and event.sequence_nr >= 0:
            labels[event.sequence_nr] = outer.name
        if outer is not None and event.cpu_parent is outer and event.name.startswith("aten::"):
            inside = sum(child.cpu_time_total for child in event.cpu_children)
            runs[outer.name, event.name].append((inside, event.cpu_time_total))
    for event in events:
        if event.name.endswith("Backward0") and not event.name.startswith("autograd::"):
            runs[labels[event.sequence_nr], event.name].append((event.cpu_time_total, event.cpu_parent.cpu_time_total))
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
    for key, runs in expected.items():
        for ours, (least, most) in zip(found[key], runs, strict=True):
            assert 0.99 * least - 20 < ours < 1.01 * most + 20, key  # the two clocks differ
    for row in by_line(profile).values():
        if label := labels.get(row.source):
            own = [(name, dur) for (of, name), durations in found.items() if of == label for dur in durations]
            forward = sum(dur for name, dur in own if name.startswith("aten::"))
            assert row.forward_ns == pytest.approx(forward * 1000)
            assert row.calls == sum(name.startswith("aten::") for name, _ in own)


DOZE = 0.02


@torch.library.custom_op("test_profile_lines::doze", mutates_args=())
def doze(x: torch.Tensor) -> torch.Tensor:
    time.sleep(DOZE)
    return x.clone()


def test_lines_have_the_times_of_a_clock_around_them():
    """A line with a sleep takes at least as long, and no line more than the program's own clock says, in any run."""
    x, took = torch.ones(64, 64), collections.defaultdict(list)

    def step():
        began = time.perf_counter_ns()
        doze(x)
        between = time.perf_counter_ns()
        torch.mm(x, x)
        took["small"].append(time.perf_counter_ns() - between)
        took["large"].append(between - began)

    profile = profiled(step, steps=9, skip=1, backward=False)
    lines = by_line(profile)
    of_large, of_small = (lines[line_of(text)] for text in ("doze(x)", "torch.mm(x, x)"))
    assert 8 * DOZE * 1e9 <= of_large.total_ns <= sum(took["large"][1:])
    assert 0 < of_small.total_ns <= sum(took["small"][1:])
    assert of_large.share == pytest.approx(of_large.total_ns / (of_large.total_ns + of_small.total_ns))


# ---- lines of the user's code, above those of a library -------------------------------------------------------------


def test_a_planted_fault_and_what_a_library_costs_are_at_the_users_lines():
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 64, (2, 16))
    took = []  # of each step: until it has scores, and the rest

    def step():
        began = time.perf_counter_ns()
        scores = model(ids).logits
        has_scores = time.perf_counter_ns()
        slow = Nap.apply(scores)
        slow.logsumexp(-1).sum().backward()
        took.append((has_scores - began, time.perf_counter_ns() - has_scores))

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
    in_nap = rows[profile_runs.line_of(profile_runs.__file__, "return x.clone()")]
    assert set(rows.values()) == {scores, slow, loss, in_nap}
    totals = [row.total_ns for row in profile.rows("user_line")]
    assert totals == sorted(totals, reverse=True)
    until_scores, rest = map(sum, zip(*took, strict=True))
    assert STEPS * NAP * 1e9 <= slow.backward_ns < rest
    library = [row for row in profile.rows("line") if "transformers" in row.source]
    assert len(library) > 10
    for field in FIELDS:
        assert getattr(scores, field) == sum(getattr(row, field) for row in library), field
    assert 0 < scores.forward_ns < until_scores
    (listed,) = profile.annotate(__file__).files
    assert listed.path == __file__


def test_the_example_has_one_line_with_a_gradient_of_all_pixels(capsys):
    """By count: the gradient of a pixel is as large as all pixels. Which line takes longest is not for a busy machine."""
    example = ROOT / "examples" / "python" / "slow_line.py"
    threads = torch.get_num_threads()
    try:
        names = runpy.run_path(str(example))
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    lines = example.read_text().splitlines()
    number = lines.index("            pixel = x[:, t]") + 1
    of_slow, of_fast = (profile.rows("line") for profile in (names["profile"], names["faster"]))
    pixel = next(row for row in of_slow if row.source.endswith(f":{number}"))
    assert pixel.backward_bytes == 64 * pixel.output_bytes
    assert pixel.backward_bytes > 0.9 * sum(row.backward_bytes for row in of_slow)
    assert sum(row.backward_bytes for row in of_fast) < pixel.backward_bytes / 4
    assert re.search(
        r"^line \d+: [\d]+% of .*, [\d.]+ ms forward and [\d.]+ ms backward per step$", printed, re.MULTILINE
    )
    assert re.search(r"^with unbind: [\d.]+ ms -> [\d.]+ ms$", printed, re.MULTILINE)
    (listed,) = [line for line in printed.splitlines() if line.endswith("│             pixel = x[:, t]")]
    assert listed.split()[:2] == [str(number), str(3 * 64)]
