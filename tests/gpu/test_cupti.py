"""CuptiProfiler on a GPU, beside torch.profiler."""

import collections
import statistics
import time

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.cupti_profiler import OUTSIDE, CuptiProfiler


@pytest.fixture(params=["resnet-50", "transformer"])
def gpu_step(request, cuda):
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
