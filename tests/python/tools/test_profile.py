"""Profile: counts and sizes against counts made another way, times against a clock, the trace against its format."""

import collections
import gc
import json
import os
import random
import re
import statistics
import threading
import time
import weakref
from xml.etree import ElementTree

import amanda
import pytest
import torch
from amanda.toolkit.durations import Durations
from amanda.tools.profile import Profile, Row


def test_calls_are_what_torchs_own_profiler_counts():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    x = torch.randn(4, 8)
    with torch.profiler.profile() as theirs:
        for _ in range(3):
            model(x)
    counts = collections.Counter(event.name for event in theirs.events())
    calls = {row.name: row.calls for row in _profiled(lambda: [model(x) for _ in range(3)]).rows()}
    assert calls == {name: counts[name] for name in ("aten::linear", "aten::relu", "aten::softmax")}
    assert calls["aten::linear"] == 6


def test_rows_by_module_are_the_modules_own_operators():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x) * 2 + 1

    model = torch.nn.Sequential(Block(), Block())
    profile = _profiled(lambda: model(torch.ones(1, 2)))
    calls = {row.name: row.calls for row in profile.rows("module")}
    assert calls == {"0": 2, "0.inner": 1, "1": 2, "1.inner": 1, "": 1}


@pytest.mark.parametrize("by", ["op", "module"])
def test_shares_add_up_to_one_and_both_groupings_have_the_same_totals(by):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    profile = _profiled(lambda: model(torch.randn(4, 8)))
    rows = profile.rows(by)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(row.total_ns for row in rows) == sum(row.total_ns for row in profile.rows())
    assert sum(row.calls for row in rows) == 3
    assert rows == sorted(rows, key=lambda row: -row.total_ns)


def test_output_bytes_follow_shapes_that_change_from_run_to_run():
    layer = torch.nn.Linear(4, 6)
    inputs = [torch.randn(n, 4) for n in (1, 7, 3)]
    profile = _profiled(lambda: [layer(x) for x in inputs])
    assert _row(profile, "aten::linear").output_bytes == (1 + 7 + 3) * 6 * 4


def test_output_bytes_count_each_tensor_of_a_result():
    x = torch.randn(4, 6, dtype=torch.float64)
    profile = _profiled(lambda: (x.max(0), x.unbind(0), x.t(), x.sum().item()))
    sizes = {row.name: row.output_bytes for row in profile.rows()}
    assert sizes["aten::max"] == 6 * 8 + 6 * 8  # values, and indices of 64 bits
    assert sizes["aten::unbind"] == 4 * 6 * 8  # a list
    assert sizes["aten::t"] == 4 * 6 * 8  # a view
    assert sizes["aten::item"] == 0  # a number


def test_time_is_that_of_the_operator_and_not_of_the_tools_around_it(nap):
    class Slow(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="nap")

        def analyze(self, context):
            time.sleep(0.3)
            context.insert_before_op(self.dawdle, inputs=[])
            context.insert_after_op(self.dawdle, outputs=[])

        def dawdle(self):
            time.sleep(0.3)

    slow, profile = Slow(), Profile()
    with amanda.apply(slow), amanda.apply(profile):
        start = time.perf_counter_ns()
        nap(torch.ones(1))
        whole = time.perf_counter_ns() - start
    row = _row(profile, "test_profile::nap")
    assert 50e6 <= row.total_ns <= whole - 0.6e9
    assert row.mean_ns == row.total_ns


def test_an_operator_that_raises_is_not_counted():
    def fail():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    assert [row.name for row in _profiled(fail).rows()] == ["aten::ones"]


def test_each_run_counts_once_while_the_cache_is_disabled():
    layer, x, profile = torch.nn.Linear(2, 2), torch.ones(1, 2), Profile()
    with amanda.apply(profile), amanda.cache_disabled():
        for _ in range(5):
            layer(x)
    assert _row(profile, "aten::linear").calls == 5


def test_counts_go_on_from_scope_to_scope():
    profile, x = Profile(), torch.ones(1)
    for _ in range(3):
        with amanda.apply(profile):
            torch.relu(x)
    assert _row(profile, "aten::relu").calls == 3


def test_several_threads_lose_no_count():
    model, x, profile = torch.nn.Linear(4, 4), torch.ones(1, 4), Profile()
    both_run = threading.Barrier(4)

    def work():
        both_run.wait()
        with amanda.apply(profile):
            for _ in range(500):
                model(x)

    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _row(profile, "aten::linear").calls == 2000
    assert _row(profile, "aten::linear").output_bytes == 2000 * 4 * 4


def test_a_training_step_has_the_same_gradients_under_the_profile():
    def gradients():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.5))
        for _ in range(2):
            model(torch.randn(8, 4)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()], torch.get_rng_state()

    expected, state = gradients()
    with amanda.apply(Profile()):
        found, state_found = gradients()
    assert all(map(torch.equal, found, expected))
    assert torch.equal(state, state_found)


def test_a_checkpointed_in_place_operator_runs_under_the_profile():
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
    x = torch.randn(2, 4, requires_grad=True)
    with amanda.apply(Profile()):
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()


def test_vmap_runs_under_the_profile():
    assert _row(_profiled(lambda: torch.vmap(torch.relu)(torch.randn(3, 2))), "aten::relu").calls == 1


def test_the_profile_keeps_no_tensor_alive():
    x, profile = torch.ones(2), Profile()
    with amanda.apply(profile):
        y = torch.relu(x)
        gone = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [ref() for ref in gone] == [None, None]


def test_sizes_of_wrappers_and_other_layouts_are_what_python_says():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

    def program():
        torch.vmap(torch.exp)(torch.ones(3, 4))
        torch.neg(nested)
        torch.eye(2).to_sparse().abs()
        torch.ones(5, device="meta").sin()

    profile = _profiled(program)
    sizes = {row.name: row.output_bytes for row in profile.rows()}
    named = {name: sizes[f"aten::{name}"] for name in ("exp", "neg", "abs", "sin")}
    assert named == {"exp": 4 * 4, "neg": 5 * 4, "abs": 4 * 4, "sin": 5 * 4}
    assert profile.skipped == {}


def test_threads_without_the_interpreter_lock_lose_no_run(tmp_path):
    function, x, profile = torch.jit.script(_many), torch.ones(1), Profile()
    with amanda.apply(profile):
        function(x)

    def work():
        with amanda.apply(profile):
            function(x)

    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = _row(profile, "aten::sin")
    assert row.calls == 5 * 1000
    assert row.output_bytes == 5 * 1000 * 4
    events = _trace(profile, tmp_path)["traceEvents"]
    per_thread = collections.Counter(event["tid"] for event in events if event["name"] == "aten::sin")
    assert list(per_thread.values()) == [1000] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_a_thread_number_of_its_own(tmp_path):
    profile, x, path = Profile(), torch.ones(1), tmp_path / "child.json"
    with amanda.apply(profile):
        torch.sin(x)
        child = os.fork()
        if child == 0:
            with amanda.apply(profile):
                torch.sin(x)
            profile.export_chrome_trace(path)
            os._exit(0)
    os.waitpid(child, 0)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["tid"] for event in events] == [threading.get_native_id(), child]


# ---- trace -----------------------------------------------------------------------------------------------------------


def test_the_trace_is_a_chrome_trace_of_every_run(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    begin = time.perf_counter_ns() / 1000
    profile = _profiled(lambda: [model(torch.randn(4, 8)) for _ in range(3)])
    end = time.perf_counter_ns() / 1000
    trace = _trace(profile, tmp_path)
    runs = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(runs) == sum(row.calls for row in profile.rows()) == 9
    for event in runs:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert 0 <= event["tid"] < 2**32
        assert event["dur"] >= 0
        assert begin <= event["ts"] <= event["ts"] + event["dur"] <= end
        assert event["args"]["op"] == event["name"]
        assert __file__ in event["args"]["source"]
    for row in profile.rows():
        own = [event for event in runs if event["name"] == row.name]
        assert sum(event["dur"] for event in own) * 1000 == pytest.approx(row.total_ns)
        assert sum(event["args"]["output_bytes"] for event in own) == row.output_bytes
    assert {event["args"]["module_path"] for event in runs} == {"", "0", "1"}
    starts = [event["ts"] for event in runs]
    assert starts == sorted(starts)


def test_the_trace_names_its_process_and_threads(tmp_path):
    profile = Profile()

    def work():
        with amanda.apply(profile):
            torch.ones(1)

    work()
    other = threading.Thread(target=work, name="the other one")
    other.start()
    other.join()
    events = _trace(profile, tmp_path)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names.values()) == sorted([threading.current_thread().name, "the other one"])
    assert {event["tid"] for event in events if event["ph"] == "X"} == set(names)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["amanda.tools.profile"]


def test_runs_beyond_max_events_are_dropped_from_the_trace_alone_and_said_so(tmp_path, caplog):
    profile, x = Profile(max_events=4), torch.ones(1)
    with amanda.apply(profile):
        for _ in range(10):
            torch.relu(x)
    assert _row(profile, "aten::relu").calls == 10
    assert profile.dropped_events == 6
    trace = _trace(profile, tmp_path)
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 4
    assert trace["otherData"] == {"dropped_events": 6}
    assert trace["traceEvents"][0]["args"]["name"] == "amanda.tools.profile (6 later runs dropped)"
    assert "has the first 4 runs, and 6 more were dropped; raise Profile(max_events=4)" in caplog.text


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_the_rest_and_one_for_the_total():
    x = torch.ones(250_000)
    text = _text(_profiled(lambda: (x + 1, x * 2, x.relu(), x.relu())).table(top=1))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["op", *["calls", "total", "ms", "mean", "µs", "median", "µs", "share", "output", "MB"]]
    assert lines[2][0].startswith("aten::")
    assert lines[3][:2] == ["(2", "more)"]
    assert lines[4][0] == "total"
    assert lines[4][1] == "4"
    assert lines[4][-2:] == ["100.0%", "4.00"]


def test_an_unused_profile_has_an_empty_table():
    assert Profile().rows() == []
    assert _text(Profile().table()) == "no rows\n"


@pytest.mark.parametrize("columns", ["20", "100"])
def test_print_to_a_pipe_shows_a_row_in_one_line_and_all_columns(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    x = torch.ones(2)
    profile = _profiled(lambda: torch.relu(x))
    lines = str(profile.table("id")).splitlines()
    (row,) = [line for line in lines if "aten::relu" in line]
    assert re.match(r" ?aten::relu, test_profile.py:\d+ +1 +", row)
    assert lines[1].split()[-2:] == ["output", "MB"]
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\x1b" not in str(profile.table())
    assert repr(profile.table()).startswith("<amanda table: op, ")
    assert repr(profile.table()).endswith("; rows: 2>")  # and the total


def test_a_notebook_shows_a_table_in_html():
    x = torch.ones(2)
    profile = _profiled(lambda: [f(x) for f in (torch.relu, torch.sin, torch.cos)])
    table = profile.table(top=2)
    table.caption = "a <caption> & more"
    page = ElementTree.fromstring(table._repr_html_())
    assert page.findtext(".//caption") == "a <caption> & more"
    head, *rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert head == [column.header for column in table.columns]
    assert [row[0] for row in rows] == [*(row.name for row in profile.rows()[:2]), "(1 more)", "total"]
    assert [row.get("style") for row in page.iter("tr")] == [None] * 3 + ["opacity: 0.6", "font-weight: bold"]
    assert [cell.get("style").split(";")[0] for cell in page.find(".//tr")][:2] == [
        "text-align: left",
        "text-align: right",
    ]


# ---- the median, and warm-up -----------------------------------------------------------------------------------------


def test_the_median_is_that_of_the_traced_runs(tmp_path):
    layer, inputs = torch.nn.Linear(64, 64), [torch.randn(n, 64) for n in (1, 2000, 10, 3, 500) * 9]
    profile = _profiled(lambda: [layer(x) for x in inputs])
    runs = [event for event in _trace(profile, tmp_path)["traceEvents"] if event["name"] == "aten::linear"]
    row = _row(profile, "aten::linear")
    assert len(runs) == row.calls == 45
    assert row.median_ns == pytest.approx(statistics.median(event["dur"] for event in runs) * 1000, rel=1 / 256)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1001])
@pytest.mark.parametrize("longest", [200, 10_000, 10**10])
def test_medians_are_right_to_four_in_a_thousand(count, longest):
    draw = random.Random(count)
    drawn = [[int(longest ** draw.random()) for _ in range(count)] for _ in range(3)]
    parts = []
    for times in drawn:
        parts.append(Durations())
        for ns in times:
            parts[-1].add(ns)
    every = [ns for times in drawn for ns in times]
    for durations, times in [(Durations.all_of(parts), every), *zip(parts, drawn, strict=True)]:
        assert (durations.count, durations.total_ns) == (len(times), sum(times))
        assert durations.median_ns() == pytest.approx(statistics.median(times), rel=1 / 256)


def test_durations_up_to_255_ns_are_exact():
    durations = Durations()
    for ns in range(256):
        durations.add(ns)
        assert durations.median_ns() == ns / 2


def test_durations_need_bounded_memory():
    durations = Durations()
    for ns in range(100, 1_000_000, 7):
        durations.add(ns)
    for exponent in range(60, 370):  # up to 100 s
        for ns in range(int(1.0718**exponent * 1000), int(1.0718**exponent * 1000) + 20):
            durations.add(min(ns, 10**11))
    assert len(durations.buckets) < 4000


def test_skip_leaves_out_the_first_executions_of_each_place(tmp_path):
    def step(x):
        for _ in range(3):
            x = torch.relu(x)
        return torch.sin(torch.sin(x))

    profile, x = Profile(skip=2), torch.ones(2)
    with amanda.apply(profile):
        for _ in range(4):
            step(x)
    by_id = {row.name: row.calls for row in profile.rows("id") if row.name == "aten::relu"}
    assert by_id == {"aten::relu": 4 * 3 - 2}  # one place in a loop
    assert [row.calls for row in profile.rows("id") if row.name == "aten::sin"] == [2, 2]  # two places in a line
    assert _row(profile, "aten::sin").calls == 4
    assert _row(profile, "aten::sin").output_bytes == 4 * 8
    runs = [event for event in _trace(profile, tmp_path)["traceEvents"] if event["ph"] == "X"]
    assert len(runs) == 10 + 4
    assert profile.left_out == 3 * 2
    assert profile.table().caption.plain == "left out: the first 2 executions of each operator, 6 in all"


def test_skip_goes_on_over_scopes_and_begins_anew_after_a_reset():
    profile, x = Profile(skip=1), torch.ones(2)

    def run():
        with amanda.apply(profile):
            torch.relu(x)
        return [row.calls for row in profile.rows()]

    assert [run(), run(), run()] == [[], [1], [2]]
    profile.reset()
    assert profile.left_out == 0
    assert [run(), run()] == [[], [1]]


def test_without_skip_nothing_is_left_out():
    profile = _profiled(lambda: torch.relu(torch.ones(1)))
    assert profile.left_out == 0
    assert profile.table().caption is None


@pytest.mark.parametrize(("skip", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_a_skip_that_is_no_number_of_executions_is_refused(says, skip, error):
    with says(error, f"[profile] skip= is how many executions of each operator to leave out, 0 or more, got {skip!r}"):
        Profile(skip=skip)


# ---- plumbing --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nap():
    @torch.library.custom_op("test_profile::nap", mutates_args=())
    def nap(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x.clone()

    return nap


def _many(x: torch.Tensor):
    for _ in range(1000):
        x = torch.sin(x)
    return x


def _profiled(run) -> Profile:
    profile = Profile()
    with amanda.apply(profile):
        run()
    return profile


def _row(profile: Profile, name: str) -> Row:
    (row,) = (row for row in profile.rows() if row.name == name)
    return row


def _trace(profile: Profile, folder) -> dict:
    path = folder / "profile.trace.json"
    profile.export_chrome_trace(path)
    return json.loads(path.read_text())


def _text(table) -> str:
    import rich.console

    console = rich.console.Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
