"""CuptiProfiler on the CPU: times and bytes beside torch.profiler's, phases and places."""

import collections
import pathlib

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.cupti_profiler import CuptiProfiler
from profiling import calls, cnn, profiled, row, train_step, transformer
from torch.utils.checkpoint import checkpoint

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
        if event.name.startswith(ENGINE):  # beside the node it only reduces gradients of broadcast operands
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


def within(event):
    """(least, most, inside those inside): microseconds, by torch's profiler inside our measurement and around it."""
    inside, most = event.cpu_children, event.cpu_time_total
    if event.name.startswith(ENGINE):  # the node is one of those inside, and its operators are not observed
        return sum(child.cpu_time_total for child in inside if event.name == ENGINE + child.name), most, 0
    deeper = sum(each.cpu_time_total for child in inside for each in child.cpu_children)
    return sum(child.cpu_time_total for child in inside), most, deeper


@pytest.mark.parametrize("make", [cnn, transformer])
def test_each_run_takes_more_than_what_torchs_profiler_has_inside_and_less_than_the_whole(make):
    """That holds on a machine of any speed, busy or not. Both look at the same runs."""
    model, x = make()
    profiler = CuptiProfiler(gpu=False)
    scope = amanda.apply(profiler)
    with scope:
        train_step(model, x)
    profiler.reset()
    with scope:
        found = theirs(lambda: train_step(model, x)).events()
    expected, measured = collections.defaultdict(list), collections.defaultdict(list)
    for event in sorted(found, key=lambda event: event.time_range.start):
        if event.name.startswith(ENGINE) or not _in_backward(event):
            expected[event.name.removeprefix(ENGINE)].append(within(event))
    operators, nodes = profiler._profile.operators(), profiler._profile.nodes()
    for run in sorted(profiler._profile.runs(), key=lambda run: run.start_ns):
        measured[operators[nodes[run.node].op].name].append(run.measures)
    both = {name for name, runs in measured.items() if len(runs) == len(expected[name])}
    assert len(both) > 10
    assert {name for name in both if name.endswith("Backward0")}
    for name in both:
        for ours, (least, most, deeper) in zip(measured[name], expected[name], strict=True):
            whole, own = ours.inclusive_ns / 1000, ours.exclusive_ns / 1000
            slack = 20 + 0.01 * most  # the two clocks differ
            assert least - slack < whole < most + slack, name
            assert whole - least - slack < own < most - deeper + slack, name


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


# ---- beginning and end ------------------------------------------------------------------------------------------------


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
    assert profiler.table().caption.plain == profiler.table("kernel").caption.plain == profiler.gpu_status


def test_tables_say_it_only_if_kernels_were_asked_for(log, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.delenv("AMANDA_CUPTI", raising=False)
    profiler = profiled(lambda: torch.relu(torch.ones(1)), gpu=None)
    assert profiler.gpu_status.startswith("no GPU kernels are collected")
    assert profiler.table().caption is profiler.table("module").caption is None
    assert profiler.table("kernel").caption.plain == profiler.gpu_status
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert profiler.table().caption.plain == profiler.gpu_status
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("AMANDA_CUPTI", "/nowhere/libcupti.so")
    named = profiled(lambda: torch.relu(torch.ones(1)), gpu=None)
    assert named.table().caption.plain == named.gpu_status != ""
