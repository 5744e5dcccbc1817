"""Kernels in CuptiProfiler, from a library that stands in for CUPTI."""

import collections
import json
import pathlib
import textwrap

import pytest
from amanda.tools.cupti_profiler import OUTSIDE
from repository import ROOT

BUILDS = [
    ROOT / "build" / build / "tests" / "cupti" / "libcupti_stand_in.so" for build in ("release", "dev", "core-only")
]
STAND_IN = next(filter(pathlib.Path.exists, BUILDS), None)

PRELUDE = """
import ctypes, json, os, sys
import amanda, torch
from amanda.tools.cupti_profiler import CuptiProfiler

library = ctypes.CDLL(os.environ["AMANDA_CUPTI"])

class Launch(amanda.Tool):
    # Each linear layer "launches" a kernel, each backward operator of its product another.
    def __init__(self, profiler):
        super().__init__()
        self.depends_on(profiler)
        self.add_inst_for_op(self.forward, ops="linear")
        self.add_inst_for_op(self.backward, ops="addmm", backward=True, nested=True)

    def forward(self, context):
        context.insert_before_op(self.launch, inputs=[], kernel=b"_Z4gemmIfEvPT_")

    def backward(self, context):
        if context.backward_op.__name__ == "AddmmBackward0":
            context.insert_before_backward_op(self.launch, grad_outputs=[], kernel=b"sgemm_nt")

    def launch(self, kernel):
        library.stand_in_launch(kernel, 7)

profiler = CuptiProfiler()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
x = torch.ones(3, 4)
def train(steps=3):
    with amanda.apply(profiler, Launch(profiler)):
        for _ in range(steps):
            model(x).sum().backward()
"""


@pytest.fixture
def with_stand_in(forked_python):
    """Runs code in a process where `library` replaces CUPTI; returns the value of its `result`."""
    if STAND_IN is None:
        pytest.skip("the library that stands in for CUPTI was not built: no cupti.h, or no C++ tests")

    def run(code, **environment):
        program = PRELUDE + textwrap.dedent(code) + "\nprint(json.dumps(result))"
        return json.loads(forked_python(program, **{"AMANDA_CUPTI": str(STAND_IN)} | environment))

    return run


def test_kernels_belong_to_operators_forward_and_backward(with_stand_in):
    result = with_stand_in("""
        train()
        rows = [[r.name, r.phase, r.kernels, r.device_ns, r.device_self_ns] for r in profiler.rows() if r.kernels]
        modules = {r.name: r.kernels for r in profiler.rows("module") if r.kernels}
        kernels = [[r.name, r.kind, r.family, r.count, r.total_ns, r.operators] for r in profiler.kernel_rows()]
        result = [profiler.gpu_status, profiler.notes, sorted(rows), modules, sorted(kernels)]
    """)
    status, notes, rows, modules, kernels = result
    assert (status, notes) == ("", [])
    assert rows == [
        ["AddmmBackward0", "backward", 6, 30_000, 30_000],
        ["aten::linear", "forward", 6, 30_000, 30_000],
    ]
    assert modules == {"": 12, "0": 6, "2": 6}
    assert kernels == [
        ["sgemm_nt", "kernel", "matrix product", 6, 30_000, {"AddmmBackward0": 30_000}],
        ["void gemm<float>(float*)", "kernel", "matrix product", 6, 30_000, {"aten::linear": 30_000}],
    ]


def test_work_outside_operators_has_a_row_and_a_note(with_stand_in):
    result = with_stand_in("""
        with amanda.apply(profiler):
            library.stand_in_launch(b"mine", 7)
            library.stand_in_copy(1024)
        copy = next(r for r in profiler.kernel_rows() if r.kind == "memcpy")
        result = [[[r.name, r.kernels] for r in profiler.rows()], profiler.notes, copy.bytes, copy.family]
    """)
    assert result == [[[OUTSIDE, 2]], ["2 activities of the device were caused outside operators"], 1024, "memcpy"]


def test_the_trace_leads_from_operator_to_launch_to_kernel(with_stand_in, tmp_path):
    path = str(tmp_path / "trace.json")
    with_stand_in(f"train(1)\nprofiler.export_chrome_trace({path!r})\nresult = None", RANK="5", WORLD_SIZE="8")
    trace = json.loads(pathlib.Path(path).read_text())
    assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (5, 8)
    assert trace["deviceProperties"][0]["id"] == 0
    assert trace["otherData"]["cupti"] == str(STAND_IN)
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    begins = {(event["pid"], event["tid"], event["ts"]): event for event in slices}
    flows = collections.defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            assert event["cat"] == "flow"
            flows[event["id"]].append(event)
    assert len(flows) == 4
    chains = set()
    for steps in flows.values():
        assert [step["ph"] for step in steps] == ["s", "t", "f"]
        assert [step["ts"] for step in steps] == sorted(step["ts"] for step in steps)
        chains.add(tuple(begins[step["pid"], step["tid"], step["ts"]]["name"] for step in steps))
    assert chains == {
        ("aten::linear", "launch", "void gemm<float>(float*)"),
        ("AddmmBackward0", "launch", "sgemm_nt"),
    }
    streams = [event for event in slices if event["cat"] == "kernel"]
    assert {(event["tid"], event["pid"] > 1 << 21) for event in streams} == {(7, True)}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 5: host", "rank 5: GPU 0"}


def test_families_per_operator_and_their_plot(with_stand_in):
    result = with_stand_in("""
        train()
        families = profiler.kernel_families()
        import matplotlib
        matplotlib.use("Agg")
        axes = profiler.plot_kernel_families()
        result = [families, sorted(label.get_text() for label in axes.get_yticklabels())]
    """)
    families, bars = result
    assert families == {"aten::linear": {"matrix product": 30_000}, "AddmmBackward0": {"matrix product": 30_000}}
    assert bars == ["AddmmBackward0", "aten::linear"]


def test_the_roofline_is_the_devices(with_stand_in):
    result = with_stand_in("""
        from amanda.tools.flops import Flops
        flops = Flops()
        with amanda.apply(flops):
            train()
        result = [[r.name, r.on_device, r.time_ns] for r in profiler.roofline(flops) if r.on_device]
    """)
    assert result == [["AddmmBackward0", True, 15_000], ["AddmmBackward0", True, 15_000]]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (
            {"STAND_IN_HOLDER": "CUPTI for Nsight Systems"},
            "[cupti] cuptiSubscribe_v2 failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED; 'CUPTI for Nsight "
            "Systems' holds CUPTI, end it first",
        ),
        (
            {"STAND_IN_FAIL": "cuptiActivityEnable=35"},
            "[cupti] cuptiActivityEnable failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; the driver lets only "
            "administrators profile (NVreg_RestrictProfilingToAdminUsers)",
        ),
    ],
)
def test_what_keeps_kernels_from_being_collected_is_said(with_stand_in, environment, reason):
    result = with_stand_in("train()\nresult = [profiler.gpu_status, len(profiler.rows())]", **environment)
    assert result[0] == f"no GPU kernels are collected, operators are timed on the host: {reason}"
    assert result[1] > 0


def test_torchs_profiler_is_named_when_it_is_on(with_stand_in):
    result = with_stand_in("""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            train()
        result = profiler.gpu_status
        train()
        assert profiler.gpu_status == ""
    """)
    assert result.endswith("[cupti] torch.profiler is on, and only one profiler can collect kernels; end it first")


def test_a_library_that_is_not_there_is_named(forked_python):
    printed = forked_python("""
        import os
        os.environ["AMANDA_CUPTI"] = "/nowhere/libcupti.so"
        import amanda, torch
        from amanda.tools.cupti_profiler import CuptiProfiler
        profiler = CuptiProfiler()
        with amanda.apply(profiler):
            torch.relu(torch.ones(1))
        print(profiler.gpu_status)
    """)
    assert "[cupti] AMANDA_CUPTI names what cannot be opened: /nowhere/libcupti.so: " in printed


def test_lines_have_kernels_forward_and_backward_beside_each_other(with_stand_in, tmp_path):
    script = tmp_path / "training.py"
    script.write_text("def run(model, x):\n    y = model[0](x)\n    y = model[2](y.relu())\n    return y.sum()\n")
    lines, listing, remark, page = with_stand_in(f"""
        names = {{}}
        exec(compile(open({str(script)!r}).read(), {str(script)!r}, "exec"), names)
        with amanda.apply(profiler, Launch(profiler)):
            for _ in range(3):
                names["run"](model, x).backward()
            library.stand_in_launch(b"mine", 7)
        fields = ["calls", "backward_calls", "kernels", "backward_kernels", "device_forward_ns", "device_backward_ns"]
        lines = {{r.name.rpartition("/")[2]: [getattr(r, f) for f in fields] + [r.share] for r in profiler.rows("line")}}
        listing = profiler.annotate("training.py")
        profiler.write_html({str(tmp_path / "page.html")!r})
        page = open({str(tmp_path / "page.html")!r}).read()
        result = [lines, str(listing), profiler.annotate().remark, "y = model[0](x)" in page]
    """)
    # AddmmBackward0, TBackward0, two of AccumulateGrad; and the node of relu, whose operator launches nothing
    assert lines["training.py:2"][:6] == [3, 12, 6, 3, 15_000, 15_000]
    assert lines["training.py:3"][:6] == [6, 15, 6, 3, 15_000, 15_000]
    assert lines["training.py:4"][:6] == [3, 3, 0, 0, 0, 0]
    assert lines[OUTSIDE][2:6] == [1, 0, 5_000, 0]
    assert [lines[name][6] for name in ("training.py:2", OUTSIDE)] == pytest.approx([30 / 65, 5 / 65])
    heading, head, _, second, *_ = listing.splitlines()
    assert f"{script.name}: 0.06 ms on the device (0.03 of them backward), 92.3%, in operators" in heading
    columns = ["line", "calls", "forward", "ms", "backward", "ms", "share", "kernels", "device", "MB"]
    assert head.split("│")[0].split() == columns
    assert second.split("│")[0].split()[:6] == ["2", "3", "0.01", "0.01", "46.2%", "6"]
    assert second.endswith("│     y = model[0](x)")
    assert remark == "not listed: 0.01 ms on the device (0.00 of them backward), 7.7%, outside of lines of Python"
    assert page
