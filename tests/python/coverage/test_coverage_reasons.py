"""Each reason for which a call is shown to no tool, and the words for it."""

import threading
from collections import Counter

import amanda
import torch
from amanda import _torch
from amanda.core.coverage.reasons import REASONS
from coverage_counts import covered, dispatched, everything, recorded, skipped, tool
from process_groups import destroy_group
from repository import ROOT
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def test_unasked_and_inner():
    def program():
        torch.relu(F.linear(torch.eye(2), torch.eye(2), torch.ones(2)))

    report = covered(program, tool("addmm"))
    assert report.row("aten::linear").skipped == {"unasked": 1}
    assert (report.row("aten::addmm").seen, report.row("aten::relu").skipped) == (1, {"unasked": 1})
    report = covered(program, tool(["linear", "addmm"]))
    assert report.row("aten::linear").seen == 1
    assert report.row("aten::addmm").skipped == {"inner": 1}
    assert report.row("aten::t").skipped == {"unasked": 1}
    report = covered(program, tool(["linear", "addmm"], nested=True))
    assert report.row("aten::addmm").seen == 1


def test_backward_parts_and_nodes_nobody_owns():
    x = torch.ones(2, requires_grad=True)
    before = x.exp()
    report = covered(lambda: (before * before.sin()).sum().backward(), everything())
    assert report.row("autograd::ExpBackward0").skipped == {"unowned": 1}  # made before the scope
    assert report.row("autograd::SinBackward0").seen == 1
    assert report.row("aten::cos").skipped == {"backward": 1}
    report = covered(lambda: x.exp().sum().backward(), tool())
    assert report.row("autograd::ExpBackward0").skipped == {"unasked": 1}


def test_what_a_checkpoint_recomputes_is_seen_again():
    x = torch.ones(2, requires_grad=True)
    for reentrant in (False, True):
        report = covered(lambda: checkpoint(torch.tanh, x.exp(), use_reentrant=reentrant).sum().backward())  # noqa: B023
        assert (report.row("aten::tanh").dispatched, report.row("aten::tanh").seen) == (2, 2)
        assert report.row("aten::tanh_backward").skipped == {"backward": 1}


def test_operators_of_routines_and_analyses():
    def routine(*inputs):
        torch.sin(F.linear(torch.eye(2), torch.eye(2)))

    looking = tool("relu", routine)
    looking.add_inst_for_op(lambda context: torch.cos(torch.ones(2)), ops="relu")
    with amanda.apply(looking, coverage=True) as scope:
        torch.relu(torch.ones(2))
        torch.relu(torch.ones(2))
    report = scope.coverage()
    assert report.row("aten::relu").seen == 2
    assert report.row("aten::sin").skipped == {"routine": 2}
    assert set(report.row("aten::linear").skipped) == set(report.row("aten::t").skipped) == {"routine"}
    assert report.row("aten::cos").skipped == {"routine": report.row("aten::cos").dispatched}


def test_trial_runs_are_amanda_s_own():
    def program():
        x = torch.ones(2, requires_grad=True).sin()
        x.mul_(2).sum().backward()

    made = amanda.Tool("after")
    made.add_inst_for_op(lambda context: context.insert_after_op(lambda result: None), ops="mul_")
    report = covered(program, made)
    assert report.row("aten::mul_").dispatched == report.row("aten::mul_").seen == 1
    assert report.row("aten::clone").skipped == {"own": 1}
    operators, _ = recorded(program)
    own = Counter({row.operator: row.skipped.get("own", 0) for row in report.rows})
    assert dispatched(report)[0] - own == operators


def test_compiled_functions():
    def function(x):
        return F.linear(x, x).relu().sum()

    x = torch.eye(3, requires_grad=True)
    compiled = torch.compile(function, backend="aot_eager")
    compiled(x).backward()
    report = covered(lambda: compiled(x).backward(), compiled="eager")
    assert report.row("aten::linear").seen == report.row("aten::relu").seen == 1
    assert "opaque" not in skipped(report)
    report = covered(lambda: (compiled(x) * 2).backward(), compiled="opaque")
    assert report.row("aten::relu").skipped.keys() == {"opaque"}  # several: it is compiled again for the scope
    assert report.row("aten::mm").skipped.keys() == {"opaque", "backward"}
    assert report.row("aten::mm").seen == 0
    assert report.row("autograd::CompiledFunctionBackward").skipped == {"unowned": 1}
    assert report.row("aten::threshold_backward").skipped["backward"] == 1
    assert report.row("aten::mul").seen == 1
    assert "lost" not in skipped(report)
    torch._dynamo.reset()


def test_a_function_is_compiled_inside_the_scope():
    with amanda.apply(everything(), compiled="opaque", coverage=True) as scope:
        torch.compile(lambda x: F.linear(x, x).relu().sum(), backend="aot_eager")(torch.eye(3))
    report = scope.coverage()
    assert "lost" not in skipped(report)
    assert report.total("forward").seen <= 1  # eye
    torch._dynamo.reset()


def test_traced():
    def program():
        make_fx(lambda x: x.sin().cos())(torch.ones(2))
        with FakeTensorMode():
            F.linear(torch.empty(2, 2), torch.empty(2, 2))
        torch.tan(torch.ones(2))

    report = covered(program)
    assert report.row("aten::sin").skipped["traced"] >= 1
    assert report.row("aten::linear").skipped == {"traced": 1}
    assert report.row("aten::linear").seen == report.row("aten::sin").seen == 0
    assert report.row("aten::tan").seen == 1
    assert "lost" not in skipped(report)


def test_switched_off():
    def program():
        with amanda.disabled():
            torch.relu(torch.ones(2))
        torch.relu(torch.ones(2))

    report = covered(program)
    row = report.row("aten::relu")
    assert (row.seen, row.skipped) == (1, {"off": 1})
    assert report.row("aten::clamp_min").skipped == {"off": 1, "inner": 1}


def test_forked_by_torchscript():
    @torch.jit.script
    def child(x):
        return x.sin()

    @torch.jit.script
    def parent(x):
        cosine = x.cos()  # what follows the wait may go on there, too
        future = torch.jit.fork(child, x)
        return torch.jit.wait(future) + cosine

    parent(torch.ones(2))
    report = covered(lambda: parent(torch.ones(2)))
    assert report.row("aten::sin").skipped == {"thread": 1}
    assert report.row("aten::cos").seen == 1


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_threads_that_the_program_starts():
    x = torch.ones(2, requires_grad=True)

    def program():
        x.cos()
        in_thread(lambda: x.sin().sum().backward())

    report = covered(program, everything())
    assert report.row("aten::cos").seen == 1
    assert report.row("aten::sin").skipped == {"thread": 1}
    assert report.row("autograd::SinBackward0").skipped == {"thread": 1}
    assert {reason for row in report.rows for reason in row.skipped} <= {"thread", "inner", "noise"}


def test_threads_count_for_each_scope_that_is_open_and_not_for_those_that_were_left():
    tools = [everything() for _ in range(3)]
    with amanda.apply(tools[0], coverage=True) as left:
        pass
    with amanda.apply(tools[1], coverage=True) as outer, amanda.apply(tools[2], coverage=True) as inner:
        in_thread(lambda: torch.ones(2).sin())
    in_thread(lambda: torch.ones(2).sin())
    for scope in (outer, inner):
        assert scope.coverage().row("aten::sin").skipped == {"thread": 1}
    assert left.coverage().rows == ()


def test_threads_with_a_scope_of_their_own_do_not_count():
    def program():
        with amanda.apply(tool("sin")):
            torch.ones(2).sin()

    with amanda.apply(everything(), coverage=True) as scope:
        in_thread(program)
    assert scope.coverage().rows == ()


def test_a_thread_that_ends_inside_its_scope_stops_counting():
    scope = amanda.apply(everything(), coverage=True)
    in_thread(scope.__enter__)
    in_thread(lambda: torch.ones(2).sin())
    assert scope.coverage().rows == ()


def test_reentrant_backward_on_threads_of_the_engine_is_counted():
    """Beyond 60 levels the engine continues on another thread."""

    def nest(x, depth):
        if depth == 0:
            return x.sin()
        return checkpoint(nest, x, depth - 1, use_reentrant=True)

    def program():
        nest(torch.ones(2, requires_grad=True).exp(), 64).sum().backward()

    operators, nodes = recorded(program)
    report = covered(program)
    assert dispatched(report) == (operators, nodes)


def test_bookkeeping():
    def program():
        with torch.profiler.record_function("mine"):
            torch.relu(torch.ones(2))
        torch.tensor([1.0])

    report = covered(program)
    assert report.row("aten::lift_fresh").skipped == {"noise": 1}
    assert report.row("aten::relu").seen == 1


def test_a_trial_run_is_our_own():
    """The operators inside are seen once, in the trial run or in the real run."""

    def program():
        (torch.ones(2, requires_grad=True) * 1).relu_()

    for nested in (False, True):
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda c: c.insert_after_op(lambda y: None), ops=["relu_", "clamp_min_"], nested=nested)
        with amanda.apply(tool, coverage=True) as scope:
            program()
        row = scope.coverage().row("aten::clamp_min_")
        assert (row.seen, row.skipped) == ((1, {"own": 1}) if nested else (0, {"own": 1, "inner": 1}))


def test_a_guard_that_takes_the_keys_off_is_noticed():
    names = _torch.dispatch_keys()
    keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(names[0])) | torch._C.DispatchKeySet(
        torch._C._parse_dispatch_key(names[1])
    )

    def program():
        with torch._C._ExcludeDispatchKeyGuard(keys):
            torch.sin(torch.ones(2))

    assert covered(program).row("aten::sin").skipped == {"lost": 1}


def test_the_driver_s_reasons_have_sentences():
    assert {*_torch.skip_reasons(), "graph", "compiled"} == set(REASONS)  # those are of drivers of graphs


def test_the_page_on_limitations_has_the_reasons():
    names = {"__name__": "reasons", "__file__": str(ROOT / "scripts" / "reasons.py")}
    exec((ROOT / "scripts" / "reasons.py").read_text(), names)
    page = (ROOT / "docs" / "limitations.md").read_text()
    assert names["rewritten"](page) == page, "run: python scripts/reasons.py"


def test_callbacks_at_the_end_of_a_backward_pass():
    def program():
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.register_hook(lambda _: engine.queue_callback(lambda: torch.sin(torch.ones(2))))
        y.sum().backward()

    engine = torch.autograd.Variable._execution_engine
    report = covered(program)
    assert report.row("aten::sin").skipped == {"callback": 1}
    assert "lost" not in skipped(report)


def test_nothing_of_ddp_is_lost(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        report = covered(lambda: model(torch.ones(1, 2)).sum().backward())
    finally:
        destroy_group()
    assert report.row("aten::copy_").skipped["callback"] > 0
    assert "lost" not in skipped(report)
