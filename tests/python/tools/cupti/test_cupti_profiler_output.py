"""The outputs of CuptiProfiler: tables, frames, rooflines, traces."""

import collections
import io
import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import amanda
import pytest
import rich.console
import torch
import torch.nn.functional as F
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.flops import Flops
from profiling import cnn, profiled, train_step
from repository import ROOT


def test_unknown_groupings_and_fields_are_named(says):
    profiler = CuptiProfiler(gpu=False)
    known = '"op", "id", "module", "line", "phase", "kernel" or "operator"'
    with says(ValueError, f"[cupti_profiler] by= is {known}, got 'layer'"):
        profiler.rows("layer")
    with pytest.raises(ValueError, match=r'\[cupti_profiler\] sort= by "op" is name, phase, .*; got \'speed\'$'):
        profiler.table(sort="speed")
    with pytest.raises(ValueError, match=r'\[cupti_profiler\] sort= by "kernel" is name, kind, .*; got \'operators\'$'):
        profiler.table("kernel", sort="operators")


def test_a_negative_number_of_events_is_refused(says):
    with says(ValueError, "[cupti_profiler] max_events is how many runs to keep, 0 or more, got -1"):
        CuptiProfiler(gpu=False, max_events=-1)


@pytest.mark.parametrize(
    ("module", "use", "text"),
    [
        ("pandas", lambda profiler: profiler.to_pandas(), "to_pandas needs pandas: pip install 'amanda-nn[files]'"),
        (
            "matplotlib.pyplot",
            lambda profiler: profiler.plot_kernel_families(),
            "plots need matplotlib: pip install 'amanda-nn[plot]'",
        ),
    ],
)
def test_without_a_package_it_says_what_to_install(monkeypatch, module, use, text):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        use(CuptiProfiler(gpu=False))
    assert str(caught.value).startswith(f"[cupti_profiler] {text}")


def test_tables_and_frames_hold_the_rows():
    model, x = cnn()
    profiler = profiled(lambda: train_step(model, x))
    for by in ("op", "id", "operator", "module", "line", "phase"):
        assert profiler.table(by).row_count == len(profiler.rows(by)) == len(profiler.to_pandas(by))
    assert profiler.rows("operator") == profiler.rows("id")
    assert {row.source for row in profiler.rows("line")} == {row.source for row in profiler.rows("id")}
    assert profiler.table("kernel").row_count == len(profiler.to_pandas("kernel")) == 0
    assert profiler.rows("kernel") == profiler.kernel_rows() == []
    assert profiler.table("op", top=2).row_count == 3  # and a line for the others
    (first, *_) = profiler.table("op", sort="calls").columns[0].cells
    assert str(first) == max(profiler.rows(), key=lambda row: row.calls).name


def test_the_table_by_operator_names_module_and_line_even_where_there_is_little_room():
    model, x = cnn()
    profiler = profiled(lambda: train_step(model, x))
    console = rich.console.Console(width=80, record=True, file=io.StringIO())
    console.print(profiler.table("operator"))
    lines = console.export_text().splitlines()
    places = [below.strip() for line, below in itertools.pairwise(lines) if line.startswith(" aten::conv2d ")]
    assert sorted(place.split(":")[0] for place in places) == ["0, profiling.py", "4, profiling.py"]


def test_roofline():
    weight, x = torch.randn(64, 32), torch.randn(16, 32)
    flops, profiler = Flops(), CuptiProfiler(gpu=False, operand_bytes=True)
    with amanda.apply(flops, profiler):
        for _ in range(3):
            F.linear(x, weight)
    (found,) = profiler.roofline(flops)
    assert (found.name, found.calls, found.flops) == ("aten::mm", 3, 3 * 2 * 16 * 32 * 64)
    assert found.bytes == 3 * 4 * (16 * 32 + 64 * 32 + 16 * 64)
    assert found.flops_per_second == pytest.approx(found.flops / found.time_ns * 1e9)
    assert found.bytes_per_second == pytest.approx(found.bytes / found.time_ns * 1e9)
    assert found.intensity == pytest.approx(found.flops / found.bytes)
    assert not found.on_device
    with amanda.apply(flops):
        F.linear(x, weight)
    assert profiler.roofline(flops)[0].flops_per_second is None  # they have not seen the same
    table = profiler.roofline_table(flops)
    assert [column.header for column in table.columns][3:] == ["host ms", "GFLOP/s", "GB/s", "FLOP/byte"]
    assert [next(iter(column.cells)).plain for column in table.columns][4:6] == ["?", "?"]
    unweighed = profiled(lambda: F.linear(x, weight))
    assert unweighed.roofline(flops)[0].bytes is None


def test_the_trace_of_operators(tmp_path):
    model, x = cnn()
    profiler = profiled(lambda: train_step(model, x))
    profiler.export_chrome_trace(tmp_path / "trace.json", rank=3)
    trace = json.loads((tmp_path / "trace.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == sum(row.calls for row in profiler.rows())
    conv = next(event for event in slices if event["name"] == "ConvolutionBackward0")
    assert (conv["cat"], conv["pid"], conv["args"]["module_path"]) == ("backward", os.getpid(), "4")
    assert trace["distributedInfo"]["rank"] == 3
    assert {"name": "rank 3: host"} in [event["args"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert trace["notes"] == []
    _check_nesting(slices)


@pytest.mark.long
def test_the_example_profiles_the_encoder(run_example):
    printed = run_example("profile_kernels.py")
    assert all(phase in printed for phase in ("forward", "backward", "optimizer"))
    assert "encoder.layer." in printed  # which of the six is slow enough for the table is chance
    trace = json.loads((ROOT / "build" / "profile" / "encoder.trace.json").read_text())
    modules = {event["args"]["module_path"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert "encoder.layer.5.output.dense" in modules


def test_the_picture_shows_a_trace(tmp_path):
    picture = tmp_path / "trace.svg"
    subprocess.run([sys.executable, ROOT / "scripts" / "trace_picture.py", picture], check=True)
    drawn, svg = ElementTree.parse(picture), "{http://www.w3.org/2000/svg}"
    assert {"rank 0: host, MainThread", "backward"} <= {text.text for text in drawn.iter(f"{svg}text")}
    tips = [title.text for title in drawn.iter(f"{svg}title")]  # a slice may be too short for its name
    assert any(tip.startswith("aten::conv2d ") for tip in tips)


def _check_nesting(slices):
    """On a track, a slice ends before the one that it began in."""
    tracks = collections.defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for track in tracks.values():
        open_until = []
        for start, negative in sorted(track):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - negative <= open_until[-1]
            open_until.append(start - negative)
