"""CuptiProfiler: on the CPU against torch.profiler; kernels from a library that stands in for CUPTI; on a GPU, if any."""

import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ElementTree

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools._kernel_families import family_of
from amanda.tools.cupti_profiler import OUTSIDE, CuptiProfiler
from amanda.tools.flops import Flops
from torch.utils.checkpoint import checkpoint

ROOT = pathlib.Path(__file__).parents[2]


def profiled(program, **options):
    profiler = CuptiProfiler(**{"gpu": False} | options)
    with amanda.apply(profiler):
        program()
    return profiler


def calls(profiler, by="op"):
    return {(row.name, row.phase): row.calls for row in profiler.rows(by)}


def row(profiler, name, by="op", **fields):
    (found,) = [
        row
        for row in profiler.rows(by)
        if row.name == name and all(getattr(row, field) == value for field, value in fields.items())
    ]
    return found


def cnn():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 13 * 13, 10),
    )
    return model, torch.randn(8, 3, 32, 32)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return torch.nn.Sequential(layer), torch.randn(4, 48, 128)


def train_step(model, x):
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()


# ---- beside torch.profiler, on the CPU --------------------------------------------------------------------------------


ENGINE = "autograd::engine::evaluate_function: "


def _in_backward(event):
    while event is not None and not event.name.startswith(ENGINE):
        event = event.cpu_parent
    return event is not None


def theirs(program):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        program()
    return profile


@pytest.mark.parametrize("make", [cnn, transformer])
def test_bytes_are_those_of_torchs_own_memory_column(make):
    model, x = make()
    train_step(model, x)
    profiler = CuptiProfiler(gpu=False)
    with amanda.apply(profiler):
        train_step(model, x)
    expected = collections.defaultdict(list)
    for event in theirs(lambda: train_step(model, x)).events():
        if event.name.startswith(ENGINE):  # what it does beside the node is to reduce gradients of broadcast operands
            used = event.cpu_memory_usage - event.self_cpu_memory_usage
            expected[event.name.removeprefix(ENGINE), "backward"].append(used)
        elif not _in_backward(event):
            expected[event.name, "forward"].append(event.cpu_memory_usage)
    ours = {(row.name, row.phase): row for row in profiler.rows()}
    both = [key for key in ours.keys() & expected.keys() if ours[key].allocated_bytes]
    assert len(both) > 10
    for key in both:
        used = ours[key].allocated_bytes - ours[key].freed_bytes
        assert used == sum(expected[key]), key
    assert profiler.notes == []


@pytest.mark.parametrize("make", [cnn, transformer])
def test_times_are_near_torchs_own_self_cpu_time(make):
    """Medians of single operators: other processes are at work here, and each profiler adds a few microseconds."""
    model, x = make()
    profiler = CuptiProfiler(gpu=False)
    scope = amanda.apply(profiler)
    with scope:
        train_step(model, x)
    profiler.reset()
    expected = collections.defaultdict(list)
    for _ in range(8):
        with scope:
            train_step(model, x)
        for event in theirs(lambda: train_step(model, x)).events():
            expected[event.name].append(event.self_cpu_time_total * 1000)
    operators, nodes = profiler._profile.operators(), profiler._profile.nodes()
    measured = collections.defaultdict(list)
    for run in profiler._profile.runs():
        measured[operators[nodes[run.node].op].name].append(run.measures.exclusive_ns)
    both = {
        name: (statistics.median(times), statistics.median(expected[name]))
        for name, times in measured.items()
        if len(times) == len(expected[name]) and statistics.median(expected[name]) > 40_000
    }
    assert len(both) >= 3
    ratios = {name: ours / theirs for name, (ours, theirs) in both.items()}
    assert 0.6 < statistics.median(ratios.values()) < 1.7, ratios
    assert all(0.3 < ratio < 3.5 for ratio in ratios.values()), ratios


def test_self_times_add_up_to_the_whole():
    model, x = transformer()
    profiler = profiled(lambda: train_step(model, x))
    for by in ("op", "operator", "phase"):
        assert sum(row.host_self_ns for row in profiler.rows(by)) == row(profiler, "", by="module").host_ns
    linear = row(profiler, "aten::linear")
    assert linear.host_ns >= linear.host_self_ns + row(profiler, "aten::addmm").host_ns * 0.5


def test_while_torchs_profiler_is_on_it_says_that_bytes_are_missing():
    x = torch.ones(8)
    profiler = CuptiProfiler(gpu=False)

    def program():
        with amanda.apply(profiler):
            torch.relu(x)

    profile = theirs(program)
    assert profiler.notes == ["1 operator runs have no bytes: another profiler was told of allocations"]
    (event,) = [event for event in profile.key_averages() if event.key == "aten::relu"]
    assert event.cpu_memory_usage == 32  # which is not disturbed
    assert row(profiler, "aten::relu").host_ns > 0


def test_torchs_profiler_can_start_and_end_inside_the_scope():
    x = torch.ones(8)

    def program():
        torch.relu(x)
        profile = theirs(lambda: torch.relu(x))
        assert {event.key for event in profile.key_averages()} >= {"aten::relu"}
        torch.relu(x)

    profiler = profiled(program)
    assert row(profiler, "aten::relu").allocated_bytes == 64
    assert len(profiler.notes) == 1


def test_an_operator_that_raises_leaves_the_thread_as_it_was():
    def program():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        theirs(lambda: torch.relu(torch.ones(2)))  # could not start, were the thread still ours

    profiler = profiled(program)
    assert row(profiler, "aten::mm").failed == 3
    assert row(profiler, "aten::mm").calls == 0


def test_a_backward_pass_that_raises_leaves_the_thread_as_it_was():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no gradient today")

    def program():
        for _ in range(3):
            with pytest.raises(ValueError, match="no gradient today"):
                Fails.apply(torch.ones(2, requires_grad=True)).relu().sum().backward()
        theirs(lambda: torch.relu(torch.ones(2)))

    profiler = profiled(program)
    assert row(profiler, "ReluBackward0").calls == 3
    with amanda.apply(profiler):
        torch.relu(torch.ones(2))
    operators, nodes = profiler._profile.operators(), profiler._profile.nodes()
    last = nodes[profiler._profile.runs()[-1].node]
    assert operators[last.op].name == "aten::relu" or operators[nodes[last.parent].op].name == "aten::relu"


# ---- phases and places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_the_optimizers_operators_are_told_apart(make):
    model = torch.nn.Linear(4, 2)
    optimizer = make(model.parameters())
    x = torch.ones(3, 4)

    def closure():
        optimizer.zero_grad()
        loss = F.relu(model(x)).sum()
        loss.backward()
        return loss

    profiler = profiled(lambda: optimizer.step(closure))
    phases = {phase for _, phase in calls(profiler)}
    assert phases == {"forward", "backward", "optimizer"}
    assert all(phase == "forward" for name, phase in calls(profiler) if name in ("aten::linear", "aten::relu"))
    assert row(profiler, "optimizer", by="phase").calls > 1


def test_an_optimizer_of_ones_own():
    class Sign(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                _descend(parameter)

    def _descend(parameter):
        parameter.sub_(parameter.grad.sign())

    model = torch.nn.Linear(4, 2)
    model(torch.ones(3, 4)).sum().backward()
    profiler = profiled(Sign(model.parameters()).step)
    assert calls(profiler) == {("aten::sign", "optimizer"): 2, ("aten::sub_", "optimizer"): 2}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_again_is_recomputed(reentrant):
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    x = torch.ones(3, 4, requires_grad=True)
    profiler = profiled(lambda: checkpoint(layers, x, use_reentrant=reentrant).sum().backward())
    assert calls(profiler)["aten::tanh", "forward"] == 1
    assert calls(profiler)["aten::tanh", "recompute"] == 1
    assert row(profiler, "TanhBackward0").phase == "backward"


def test_rows_by_module_hold_the_modules_inside():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 2)))
    profiler = profiled(lambda: model(torch.ones(3, 4)).sum().backward(), nested=False)
    modules = {row.name: row for row in profiler.rows("module")}
    assert set(modules) == {"", "0", "1", "1.0"}
    assert modules["1"].calls == 0  # its own
    assert modules["1"].host_ns == modules["1.0"].host_ns == modules["1.0"].host_self_ns > 0
    assert modules[""].host_ns == sum(row.host_self_ns for row in modules.values())


def test_rows_by_operator_name_the_line_and_the_forward_operator():
    x = torch.ones(3, requires_grad=True)
    profiler = profiled(lambda: torch.tanh(x).sum().backward(), nested=False)
    forward, backward = row(profiler, "aten::tanh", "operator"), row(profiler, "TanhBackward0", "operator")
    assert forward.source == backward.source
    assert pathlib.Path(forward.source.rsplit(":", 1)[0]).name == "test_cupti_profiler.py"
    assert (forward.forward_name, backward.forward_name) == ("", "aten::tanh")


def test_only_the_operators_asked_for():
    model, x = transformer()
    profiler = profiled(lambda: train_step(model, x), ops=["linear", "softmax"], backward=False)
    assert {name for name, _ in calls(profiler)} <= {"aten::linear", "aten::softmax"}
    assert calls(profiled(lambda: torch.relu(x), ops="relu")) == {("aten::relu", "forward"): 1}


def test_it_changes_nothing():
    model, x = transformer()

    def train():
        torch.manual_seed(1)
        train_step(model, x)
        return [parameter.grad for parameter in model.parameters()] + [torch.rand(1)]

    plain = train()
    profiler = CuptiProfiler(gpu=False, operand_bytes=True)
    with amanda.apply(profiler):
        watched = train()
    assert all(map(torch.equal, plain, watched))


# ---- output -----------------------------------------------------------------------------------------------------------


def test_unknown_groupings_and_fields_are_named(says):
    profiler = CuptiProfiler(gpu=False)
    with says(ValueError, '[cupti_profiler] rows are by "op", "operator", "module" or "phase", got \'layer\''):
        profiler.rows("layer")
    with pytest.raises(ValueError, match="there is no field 'speed' to sort by; there are name, phase, "):
        profiler.table(sort="speed")


@pytest.mark.parametrize(
    ("module", "use", "text"),
    [
        ("rich.table", lambda profiler: profiler.table(), "tables need rich: pip install 'amanda[profile]'"),
        ("pandas", lambda profiler: profiler.to_pandas(), "to_pandas needs pandas: pip install 'amanda[statistics]'"),
        (
            "matplotlib.pyplot",
            lambda profiler: profiler.plot_kernel_families(),
            "plots need matplotlib: pip install 'amanda[plot]'",
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
    for by in ("op", "operator", "module", "phase"):
        assert profiler.table(by).row_count == len(profiler.rows(by)) == len(profiler.to_pandas(by))
    assert profiler.table("kernel").row_count == len(profiler.to_pandas("kernel")) == 0
    assert profiler.table("op", top=2).row_count == 3  # and a line for the others
    (first, *_) = profiler.table("op", sort="calls").columns[0].cells
    assert str(first) == max(profiler.rows(), key=lambda row: row.calls).name


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


def test_runs_beyond_the_maximum_are_counted_and_told():
    profiler = profiled(lambda: [torch.relu(torch.ones(1)) for _ in range(10)], max_events=5, nested=False)
    assert row(profiler, "aten::relu").calls == 10
    assert profiler.notes == ["15 later operator runs are in no trace; tables count them"]


def test_reset_starts_from_zero():
    profiler = profiled(lambda: torch.relu(torch.ones(1)))
    profiler.reset()
    assert profiler.rows() == []
    with amanda.apply(profiler):
        torch.relu(torch.ones(1))
    assert row(profiler, "aten::relu").calls == 1


def test_without_a_gpu_it_says_so_in_one_sentence(log):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    profiler = profiled(lambda: torch.relu(torch.ones(1)), gpu=True)
    assert profiler.gpu_status.startswith("no GPU kernels are collected, operators are timed on the host: [cupti] ")
    assert row(profiler, "aten::relu").calls == 1
    assert profiler.table().caption.plain == profiler.gpu_status


def test_the_example_profiles_the_encoder():
    example = ROOT / "examples" / "python" / "profile_kernels.py"
    printed = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True).stdout
    assert all(phase in printed for phase in ("forward", "backward", "optimizer"))
    assert "encoder.layer." in printed  # which of the six is slow enough for the table is chance
    trace = json.loads((ROOT / "build" / "profile" / "encoder.trace.json").read_text())
    modules = {event["args"]["module_path"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert "encoder.layer.5.output.dense" in modules


def test_the_picture_shows_a_trace(tmp_path):
    picture = tmp_path / "trace.svg"
    subprocess.run([sys.executable, ROOT / "scripts" / "trace_picture.py", picture], check=True)
    texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {"rank 0: host, MainThread", "backward", "conv2d"} <= texts


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


# ---- kernel families --------------------------------------------------------------------------------------------------

KERNELS = {
    "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, true, true>(int, int)": "implicit GEMM",
    "volta_scudnn_128x64_relu_interior_nn_v1": "implicit GEMM",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16": "implicit GEMM",
    "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4>(T1::Params)": "implicit GEMM",
    "sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc": "implicit GEMM",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::WinogradDataParams)": "Winograd",
    "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*)": "FFT",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)": "flash attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1": "flash attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)": "efficient attention",
    "ampere_sgemm_128x64_tn": "matrix product",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT": "matrix product",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)": "matrix product",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)": "pointwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(ReduceOp)": "reduction",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*)": "softmax",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": "normalization",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)": "normalization",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int, float const*)": "pooling",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>(T)": "optimizer",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4>(float*)": "copy",
    "void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(T)": "indexing",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "collective",
    "triton_poi_fused_add_relu_0": "Triton",
    "my_kernel": "other",
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_family_of_a_kernel(name):
    assert family_of(name) == KERNELS[name]


# ---- kernels, from the library that stands in for CUPTI ---------------------------------------------------------------

BUILDS = [ROOT / "build" / build / "tests" / "cupti" / "libcupti_stand_in.so" for build in ("release", "dev")]
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
def with_stand_in():
    """Runs code in a process where `library` stands in for CUPTI; what its last expression `result` is, comes back."""
    if STAND_IN is None:
        pytest.skip("the library that stands in for CUPTI was not built: no cupti.h, or no C++ tests")

    def run(code, **environment):
        program = PRELUDE + textwrap.dedent(code) + "\nprint(json.dumps(result))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"AMANDA_CUPTI": str(STAND_IN), "OMP_NUM_THREADS": "1"} | environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

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


def test_a_library_that_is_not_there_is_named(fresh_python):
    printed = fresh_python("""
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


# ---- on a GPU ---------------------------------------------------------------------------------------------------------

gpu = pytest.mark.gpu


@pytest.fixture(params=["resnet-50", "transformer"])
def gpu_step(request):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    torch.manual_seed(0)
    if request.param == "resnet-50":
        import transformers

        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)).cuda()
        x = torch.randn(8, 3, 224, 224, device="cuda")
        labels = torch.zeros(8, dtype=torch.long, device="cuda")

        def loss():
            return F.cross_entropy(model(x).logits, labels)
    else:
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
        x = torch.randn(8, 128, 512, device="cuda")

        def loss():
            return model(x).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    for _ in range(10):  # cuDNN chooses its algorithms
        step()
    torch.cuda.synchronize()
    return step


def _their_kernels(steps, step):
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    times, counts = collections.Counter(), collections.Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            times[event.name] += event.self_device_time_total * 1000
            counts[event.name] += 1
    return times, counts


@gpu
def test_kernel_times_are_torch_profilers(gpu_step):
    profiler = CuptiProfiler()
    scope = amanda.apply(profiler)
    times, counts = collections.Counter(), collections.Counter()
    for _ in range(10):  # in turn
        with scope:
            for _ in range(10):
                gpu_step()
        more = _their_kernels(10, gpu_step)
        times.update(more[0])
        counts.update(more[1])
    assert profiler.gpu_status == ""
    rows = profiler.kernel_rows()
    ours = {row.name: row.count for row in rows if row.kind == "kernel"}
    assert ours == {name: count for name, count in counts.items() if not name.startswith(("Memcpy", "Memset"))}
    assert sum(row.total_ns for row in rows) == pytest.approx(times.total(), rel=0.03)


@gpu
def test_every_kernel_is_attributed(gpu_step):
    profiler = CuptiProfiler()
    with amanda.apply(profiler):
        for _ in range(20):
            gpu_step()
    everything = sum(row.total_ns for row in profiler.kernel_rows())
    outside = sum(row.device_ns for row in profiler.rows() if row.name == OUTSIDE)
    assert outside <= 0.01 * everything
    phases = {row.name: row.device_ns for row in profiler.rows("phase")}
    assert phases["backward"] > 0  # from autograd's device thread
    assert phases["forward"] > 0
    assert phases["optimizer"] > 0


@gpu
def test_nothing_is_lost_in_a_thousand_steps(gpu_step):
    profiler = CuptiProfiler(max_events=1000)
    scope = amanda.apply(profiler)
    with scope:
        gpu_step()
    once = {row.name: row.count for row in profiler.kernel_rows() if row.kind == "kernel"}
    profiler.reset()
    with scope:
        for _ in range(1000):
            gpu_step()
    assert {row.name: row.count for row in profiler.kernel_rows() if row.kind == "kernel"} == {
        name: 1000 * count for name, count in once.items()
    }
    assert not [note for note in profiler.notes if "dropped" in note or "could not be read" in note or "lost" in note]


@gpu
def test_what_it_costs_beside_torchs_profiler(gpu_step):
    """Prints ratios to the step without a profiler, for docs/performance.md."""

    def seconds(steps=20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            gpu_step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    outermost, nested = amanda.apply(CuptiProfiler(nested=False)), amanda.apply(CuptiProfiler())
    ratios = collections.defaultdict(list)
    for _ in range(5):
        for name, make in (
            ("outermost", lambda: outermost),
            ("nested", lambda: nested),
            ("torch.profiler", lambda: torch.profiler.profile(activities=kinds)),
        ):
            plain = seconds()
            with make():
                ratios[name].append(seconds() / plain)
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    print(torch.cuda.get_device_name(), torch.__version__, {name: f"{ratio:.3f}" for name, ratio in medians.items()})
    assert medians["outermost"] < 2 * medians["torch.profiler"]
