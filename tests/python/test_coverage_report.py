"""Coverage reports: their counts against RecordFunction's own, and each reason for which a call is skipped."""

import dataclasses
import itertools
import pathlib
import threading
from collections import Counter

import amanda
import pytest
import torch
from amanda import _torch
from amanda._reasons import REASONS
from amanda.coverage_report import report_of
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

NODE = "autograd::engine::evaluate_function: "


def tool(ops=None, routine=None, **options):
    made = amanda.Tool("tool")
    made.add_inst_for_op(lambda context: routine and context.insert_before_op(routine), ops=ops, **options)
    return made


def everything(routine=None):
    """A tool that asks for all operators, forward and backward."""
    made = tool(routine=routine)
    made.add_inst_for_op(lambda context: None, backward=True)
    return made


def recorded(program):
    """RecordFunction's own count, taken by PyTorch's profiler with no scope open: operators, nodes."""
    with torch.autograd.profiler.profile() as profile:
        program()
    # As recorded: `function_events` has taken out calls that are the only ones inside others of the same name.
    names = [event.name() for event in profile.kineto_results.events() if event.scope() == 0]
    nodes = Counter(
        name.removeprefix(NODE).removeprefix("torch::autograd::") for name in names if name.startswith(NODE)
    )
    return Counter(name for name in names if "::" in name and not name.startswith(NODE)), nodes


def dispatched(report):
    by_phase = Counter(), Counter()
    for row in report.rows:
        backward = row.phase == "backward"
        by_phase[backward][row.operator.removeprefix("autograd::") if backward else row.operator] += row.dispatched
    return by_phase


def covered(program, *tools, **options):
    with amanda.apply(*(tools or [everything()]), coverage=True, **options) as scope:
        program()
    assert _torch.record_callbacks() == 0
    return scope.coverage()


def skipped(report):
    return Counter(report.total("forward").skipped) + Counter(report.total("backward").skipped)


# ---- the counts are RecordFunction's ---------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + checkpoint(self.body, x, use_reentrant=False)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(5, 4), nn.LSTM(4, 4)

    def forward(self, words):
        return self.lstm(self.embedding(words))[0]


def training(model, *inputs):
    model = model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()

    return step


def reentrant():
    weight = torch.ones(3, requires_grad=True)

    def step():
        checkpoint(lambda x: (x * weight).tanh(), weight.exp(), use_reentrant=True).sum().backward()

    return step


def double_backward():
    def step():
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
        torch.autograd.backward([gradient.sum(), x.sum()])

    return step


def scripted():
    @torch.jit.script
    def body(x, n: int):
        for _ in range(n):
            x = torch.nn.functional.linear(x, x).relu()
        return x

    def step():
        body(torch.eye(3, requires_grad=True), 2).sum().backward()

    return step


def functional():
    def step():
        torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(2, 3))
        with torch.inference_mode():
            F.linear(torch.eye(2), torch.eye(2))

    return step


PROGRAMS = {
    "residual": lambda: training(Residual, torch.ones(2, 3, 4, 4)),
    "transformer": lambda: training(lambda: nn.TransformerEncoderLayer(8, 2, 16), torch.ones(3, 2, 8)),
    "words": lambda: training(
        lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)), torch.ones(3, 2).long()
    ),
    "reentrant checkpoint": reentrant,
    "double backward": double_backward,
    "scripted": scripted,
    "functional": functional,
}
TOOLS = {
    "everything": everything,
    "a filter": lambda: tool(["linear", "addmm", "relu_", "mul"]),
    "nested": lambda: tool(["linear", "addmm", "mm"], nested=True),
    "routines": lambda: everything(routine=lambda *inputs: None),
    "no routine": lambda: amanda.Tool("idle"),
}


@pytest.mark.parametrize(("program", "tools"), list(itertools.product(PROGRAMS, TOOLS)))
def test_every_call_that_record_function_counts_was_seen_or_has_a_reason(program, tools):
    step = PROGRAMS[program]()
    for _ in range(3):  # TorchScript has compiled, optimizers have their state
        step()
    operators, nodes = recorded(step)
    report = covered(step, TOOLS[tools]())
    own = Counter({row.operator: row.skipped.get("own", 0) for row in report.rows})
    forward, backward = dispatched(report)
    assert forward - own == operators
    assert backward == nodes
    assert nodes or program == "functional"
    assert "lost" not in skipped(report)
    for row in report.rows:
        assert row.dispatched == row.seen + sum(row.skipped.values())
        assert row.skipped.keys() <= REASONS.keys()


def test_a_tool_that_asks_for_everything_is_shown_all_that_is_not_part_of_something_it_is_shown():
    report = covered(training(Residual, torch.ones(2, 3, 4, 4)), everything(routine=lambda *inputs: None))
    assert skipped(report).keys() <= {"inner", "backward", "noise", "own"}
    assert report.total("backward").skipped == {}


def test_seen_is_what_the_routines_ran_on():
    ran = []
    looking = amanda.Tool("looking")
    looking.add_inst_for_op(lambda c: c.insert_before_op(lambda name: ran.append(name), inputs=[], name=c.op.name))
    looking.add_inst_for_op(
        lambda c: c.insert_before_backward_op(lambda name: ran.append(name), grad_outputs=[], name=c.backward_op.name),
        backward=True,
    )
    report = covered(training(Residual, torch.ones(2, 3, 4, 4)), looking)
    assert {row.operator: row.seen for row in report.rows if row.seen} == Counter(ran)


@pytest.mark.parametrize("program", PROGRAMS)
def test_counting_changes_no_bit(program):
    class Results(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            if "empty" not in str(function):
                made.extend(x.clone() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
            return result

    def outcome(scope):
        torch.manual_seed(0)
        made.clear()
        step = PROGRAMS[program]()
        with scope, Results():
            step()
        return [*made, torch.get_rng_state()]

    made = []

    plain, counted = (outcome(amanda.apply(everything(), coverage=coverage)) for coverage in (False, True))
    assert len(plain) > 5
    for one, other in zip(plain, counted, strict=True):
        assert torch.equal(one, other)


def test_gradients_are_bit_equal_and_a_second_pass_counts_again():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)), torch.randn(5, 3)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    with amanda.apply(everything(), coverage=True) as scope:
        for passes in (1, 2, 3):
            model.zero_grad()
            model(x).sum().backward()
            assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
            row = scope.coverage().row("autograd::AccumulateGrad")  # once analysed, it is still shown
            assert (row.dispatched, row.seen) == (4 * passes, 4 * passes)


# ---- reasons ---------------------------------------------------------------------------------------------------------


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


def test_rehearsals_are_amanda_s_own():
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


def test_reentrant_backward_on_threads_of_the_engine_is_counted():
    """Past 60 levels the engine goes on in another thread."""

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


def test_other_threads_are_not_counted():
    def program():
        thread = threading.Thread(target=lambda: torch.sin(torch.ones(2)))
        thread.start()
        thread.join()
        torch.cos(torch.ones(2))

    report = covered(program)
    assert report.row("aten::cos").seen == 1
    with pytest.raises(KeyError, match="'aten::sin' was not called while the scope was entered"):
        report.row("aten::sin")


def test_a_guard_that_takes_the_keys_off_is_noticed():
    names = _torch.dispatch_keys()
    keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(names[0])) | torch._C.DispatchKeySet(
        torch._C._parse_dispatch_key(names[1])
    )

    def program():
        with torch._C._ExcludeDispatchKeyGuard(keys):
            torch.sin(torch.ones(2))

    assert covered(program).row("aten::sin").skipped == {"lost": 1}


# ---- scopes ----------------------------------------------------------------------------------------------------------


def test_each_scope_counts_what_its_own_tools_are_shown():
    outer, inner = (amanda.apply(made, coverage=True) for made in (everything(), tool("addmm")))
    with outer:
        torch.sin(torch.ones(2))
        with inner:
            F.linear(torch.eye(2), torch.eye(2), torch.ones(2))
        torch.cos(torch.ones(2))
    assert _torch.record_callbacks() == 0
    assert outer.coverage().row("aten::linear").seen == 1
    assert outer.coverage().row("aten::addmm").skipped == {"inner": 1}
    assert inner.coverage().row("aten::linear").skipped == {"unasked": 1}
    assert inner.coverage().row("aten::addmm").seen == 1
    assert {row.operator for row in outer.coverage().rows} >= {"aten::sin", "aten::cos"}
    assert {row.operator for row in inner.coverage().rows}.isdisjoint({"aten::sin", "aten::cos"})


def test_an_outer_scope_that_does_not_count_is_left_alone():
    with amanda.apply(tool()) as outer, amanda.apply(tool("relu"), coverage=True) as inner:
        torch.relu(torch.ones(2))
    assert inner.coverage().row("aten::relu").seen == 1
    with pytest.raises(amanda.Error):
        outer.coverage()


def test_entered_twice_or_again_or_on_two_threads_it_counts_each_call_once():
    scope = amanda.apply(tool(), coverage=True)

    @scope
    def run():
        with scope:
            torch.sin(torch.ones(2))
        assert _torch.record_callbacks() == 1

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert scope.coverage().row("aten::sin").seen == 2
    assert _torch.record_callbacks() == 0


def test_a_report_is_readable_inside_and_does_not_change():
    with amanda.apply(tool(), coverage=True) as scope:
        torch.sin(torch.ones(2))
        report = scope.coverage()
        torch.sin(torch.ones(2))
    assert (report.row("aten::sin").seen, scope.coverage().row("aten::sin").seen) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.rows = ()
    with pytest.raises(TypeError):
        report.rows[0].skipped["inner"] = 1


class Raising(amanda.Tool):
    def __init__(self, name, enter=False, leave=False):
        super().__init__(name)
        self.enter, self.leave = enter, leave

    def on_enter(self):
        if self.enter:
            raise ValueError("at enter")

    def on_exit(self, error):
        if self.leave:
            raise ValueError("at exit")


@pytest.mark.parametrize("when", ["enter", "leave"])
def test_nothing_stays_registered_where_entering_or_leaving_raises(when):
    scope = amanda.apply(tool(), Raising("raising", **{when: True}), coverage=True)
    with pytest.raises(ValueError, match="at e"), scope:
        torch.sin(torch.ones(2))
    assert _torch.record_callbacks() == 0
    torch.cos(torch.ones(2))
    assert all(row.operator != "aten::cos" for row in scope.coverage().rows)


def test_nothing_stays_registered_where_the_program_or_an_operator_raises():
    scope = amanda.apply(everything(), coverage=True)
    with pytest.raises(RuntimeError), scope:
        torch.ones(2) @ torch.ones(3)
    assert _torch.record_callbacks() == 0
    assert scope.coverage().row("aten::matmul").seen == 1
    with scope:
        torch.sin(torch.ones(2))
    assert scope.coverage().row("aten::sin").seen == 1
    assert "lost" not in skipped(scope.coverage())


def test_scopes_left_in_another_order_or_inside_a_hook():
    first, second = (amanda.apply(tool(), coverage=True) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.sin(torch.ones(2))
    second.__exit__(None, None, None)
    assert all(row.operator != "aten::sin" for row in first.coverage().rows)
    assert second.coverage().row("aten::sin").seen == 1

    x = torch.ones(2, requires_grad=True).exp()
    x.register_hook(lambda gradient: first.__exit__(None, None, None))
    first.__enter__()
    x.sum().backward()  # the engine puts the thread's state back
    torch.cos(torch.ones(2))
    assert all(row.operator != "aten::cos" for row in first.coverage().rows)
    with first:
        torch.cos(torch.ones(2))
    assert first.coverage().row("aten::cos").seen == 1
    assert _torch.record_callbacks() == 0


def test_without_the_flag_nothing_is_registered():
    with amanda.apply(everything()):
        assert _torch.record_callbacks() == 0


# ---- words -----------------------------------------------------------------------------------------------------------


def test_errors_say_what_to_do(says, monkeypatch):
    with says(
        amanda.Error,
        "[scope] this scope does not count what its tools see; make it with amanda.apply(..., coverage=True)",
    ):
        amanda.apply(tool()).coverage()
    with says(ValueError, "[scope] coverage is True or False, got 'yes'"):
        amanda.apply(tool(), coverage="yes")
    monkeypatch.setattr(amanda.scope, "_make_census", None)
    with says(
        amanda.Error,
        "[scope] coverage counts what PyTorch is asked for, and PyTorch is not installed, or this build has no driver for "
        "it; apply the tools without coverage=True",
    ):
        amanda.apply(tool(), coverage=True)


def test_the_table():
    report = report_of(
        [("aten::add", False, 3, {"inner": 2, "unasked": 1}), ("aten::mm", False, 0, {"inner": 8}), ("Mm", True, 1, {})]
    )
    assert report.table(1) == "\n".join(
        [
            "forward: 14 dispatched, 3 seen, 11 skipped",
            "  operator   dispatched        seen  skipped",
            "  aten::add           6           3  1 unasked, 2 inner",
            "  and 1 more",
            "backward: 1 dispatched, 1 seen, 0 skipped",
            "  operator  dispatched        seen  skipped",
            "  Mm                 1           1",
            "skipped because",
            f"  unasked            1  {REASONS['unasked']}",
            f"  inner             10  {REASONS['inner']}",
        ]
    )
    assert "  aten::mm            8           0  8 inner\n" in str(report)
    assert report.total("forward").skipped == {"unasked": 1, "inner": 10}
    assert str(report_of([])) == "forward: nothing\nbackward: nothing"


def test_the_driver_s_reasons_have_sentences():
    assert set(_torch.skip_reasons()) == set(REASONS)


def test_the_page_on_limitations_has_the_reasons():
    root = pathlib.Path(__file__).parents[2]
    names = {"__name__": "reasons", "__file__": str(root / "scripts" / "reasons.py")}
    exec((root / "scripts" / "reasons.py").read_text(), names)
    page = (root / "docs" / "limitations.md").read_text()
    assert names["rewritten"](page) == page, "run: python scripts/reasons.py"
