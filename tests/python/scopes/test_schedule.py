"""Scopes with a schedule: which steps they are open in, by PyTorch's own schedule; what they are when they are closed."""

import itertools
import logging
import threading

import amanda
import pytest
import torch
from amanda.core import scope
from amanda.driver import registry
from amanda.drivers.torch import port
from amanda.tools.statistics import OpStatistics
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerAction

X = torch.tensor([-1.0, 2.0])
TORCHS = {
    ProfilerAction.NONE: "wait",
    ProfilerAction.WARMUP: "warmup",
    ProfilerAction.RECORD: "active",
    ProfilerAction.RECORD_AND_SAVE: "active",
}


class Steps(amanda.StepTool):
    """Writes down all that it is told, and each run of relu."""

    def __init__(self, fails_at=None):
        super().__init__("steps")
        self.events, self.fails_at = [], fails_at
        self.add_inst_for_op(self.analyze, ops="relu")

    def analyze(self, context):
        self.events.append("analysis")
        context.insert_before_op(self.run, inputs=[])

    def run(self):
        self.events.append("relu")

    def on_step_begin(self, step):
        torch.relu(X)  # not observed
        self.events.append(f"begin {step}")
        if step == self.fails_at:
            raise OSError("no room")

    def on_step_end(self, step):
        torch.relu(X)
        self.events.append(f"end {step}")

    def on_schedule_end(self, error):
        self.events.append(f"left {error!r}")


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_phases_are_those_of_torchs_schedule():
    for skip, wait, warmup, active, repeat in itertools.product((0, 2), (0, 1, 3), (0, 2), (1, 3), (0, 1, 2)):
        words = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip}
        ours, torchs = amanda.Schedule(**words), torch.profiler.schedule(**words)
        assert [ours(step) for step in range(40)] == [TORCHS[torchs(step)] for step in range(40)], words


def test_every_is_the_length_of_a_cycle():
    def active(**words):
        schedule = amanda.Schedule(**words)
        return [step for step in range(200) if schedule(step) == "active"]

    assert active() == list(range(200))
    assert active(every=50) == [0, 50, 100, 150]
    assert active(wait=10, active=2, every=100) == [10, 11, 110, 111]
    assert active(every=50, skip_first=7, repeat=2) == [7, 57]
    assert active(skip_first=5, wait=1, warmup=1, active=3, repeat=2) == [7, 8, 9, 12, 13, 14]


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"active": 0}, ValueError, "active= is a number of steps, 1 or more, got 0"),
        ({"wait": -1}, ValueError, "wait= is a number of steps, 0 or more, got -1"),
        ({"repeat": "2"}, TypeError, "repeat= is a number of cycles, 0 or more, got '2'"),
        ({"every": 1.5}, TypeError, "every= is a number of steps, 1 or more, got 1.5"),
        (
            {"wait": 2, "active": 2, "every": 3},
            ValueError,
            "every= is the length of a cycle, here 4 steps (wait + warmup + active) or more, got 3",
        ),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(says, words, error, text):
    with says(error, f"[schedule] {text}"):
        amanda.Schedule(**words)


def test_the_order_of_events():
    tool = Steps()
    with amanda.scheduled(tool, schedule=amanda.Schedule(wait=1, active=2)) as run:
        for _ in range(5):
            torch.relu(X)
            run.step()
    assert " ".join(tool.events).replace("begin", ">").replace("end", "<") == (
        "> 1 analysis relu < 1 > 2 relu < 2 > 4 relu < 4 > 5 left None"
    )


def test_in_a_step_that_is_off_nothing_is_open():
    """What a scope costs, it costs by these: keys of the dispatcher, the engine that runs backward passes, its entry."""

    def installed():
        keys = torch._C._dispatch_tls_local_include_set()
        on = any(keys.has(torch._C._parse_dispatch_key(key)) for key in amanda._torch.dispatch_keys())
        return on, port.Variable._execution_engine is not port.engine, bool(scope._open), bool(scope._here.entries)

    def optimizers():
        return len(optimizer._optimizer_step_post_hooks)

    parameter = torch.nn.Parameter(X.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    assert registry.registered()
    found = []
    with amanda.scheduled(OpStatistics(), schedule=amanda.Schedule(every=3), steps=optimizer) as run:
        for _ in range(4):
            found.append((run.phase, installed()))
            parameter.square().sum().backward()
            optimizer.step()
        assert optimizers() == 1
        assert repr(run).startswith("<amanda.Scope of OpStatistics; not entered; ")
    assert optimizers() == 0
    on, off = ("active", (True,) * 4), ("wait", (False,) * 4)
    assert found == [on, off, off, on]


@pytest.mark.parametrize("of_all", [False, True], ids=["of one optimizer", "of all"])
def test_operators_have_the_ids_that_they_have_in_a_plain_scope(recorder, of_all):
    """Also those of the optimizer, in whose hook the scope is opened."""
    parameter = torch.nn.Parameter(X.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    steps = register_optimizer_step_post_hook if of_all else optimizer
    seen = []
    for scheduled in (False, True):
        ids = set()
        tool = amanda.Tool("ids")
        tool.add_inst_for_op(lambda context, ids=ids: ids.add(context.op_id))
        plan = {"schedule": amanda.Schedule(wait=2, active=3), "steps": steps}
        with amanda.scheduled(tool, **plan) if scheduled else amanda.apply(tool):
            for _ in range(5):
                (parameter * 2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        seen.append(ids)
    plain, after = seen
    assert len(plain) > 4
    assert after <= plain  # without those of the optimizer's first step
    assert len(plain - after) <= 2


def test_warm_up_is_forgotten_and_only_in_the_first_cycle():
    statistics = OpStatistics()
    phases, warm = [], []
    with amanda.scheduled(statistics, schedule=amanda.Schedule(wait=1, warmup=2, active=3, repeat=2)) as run:
        for step in range(14):
            phases.append(run.phase[0])
            warm += [step] * (run.phase == "warmup")
            torch.relu(X)
            run.step()
    active = {3, 4, 5, 9, 10, 11}
    assert phases == ["a" if step in active else "w" for step in range(14)]
    assert warm == [1, 2]
    (row,) = statistics.rows()
    assert row.calls == 6
    assert run.cache_info().misses == 2, "the tool's own, and that of the tool it depends on"


def test_compiled_code_runs_compiled_in_steps_that_are_off(caplog):
    compiled = []

    def backend(graph, inputs):
        return lambda *inputs: (compiled.append(run.step_number), graph(*inputs))[1]

    function, tool = torch.compile(lambda x: torch.relu(x) + 1, backend=backend), Steps()
    with amanda.scheduled(tool, schedule=amanda.Schedule(every=2), compiled="eager") as run:
        for _ in range(5):
            function(X)
            run.step()
    assert compiled == [1, 3]
    assert tool.events.count("relu") == 3


def test_a_tool_that_works_by_steps_needs_a_schedule(says):
    text = (
        "[scope] 'steps' works step by step: use `with amanda.scheduled(tool) as run:`, "
        "and call run.step() after each step"
    )
    with says(ValueError, text):
        amanda.apply(Steps())


def test_misuse_is_told(says):
    with says(TypeError, f"[scope] scheduled takes tools, got {Steps!r}; did you mean Steps()?"):
        amanda.scheduled(Steps)
    with says(TypeError, "[schedule] schedule= is an amanda.Schedule, got 10"):
        amanda.scheduled(Steps(), schedule=10)
    with says(
        TypeError,
        "[schedule] steps= is an optimizer, or a function that registers a hook, such as "
        "register_optimizer_step_post_hook of torch.optim.optimizer; got 'optimizer'",
    ):
        amanda.scheduled(Steps(), steps="optimizer")
    with says(ValueError, "[schedule] first_step= is a number of steps, 0 or more, got -1"):
        amanda.scheduled(Steps(), first_step=-1)
    run = amanda.scheduled(Steps())
    with says(amanda.Error, "[schedule] this scope is not entered; write: with amanda.scheduled(...) as run:"):
        run.step()
    with run:
        with says(amanda.Error, "[schedule] this scope is entered already; leave it first, or make another one"):
            run.__enter__()
        failures = []

        def elsewhere():
            try:
                run.step()
            except amanda.Error as error:
                failures.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert failures == ["[schedule] this scope was entered on another thread; call step() there"]


def test_an_exception_leaves_it_and_it_can_be_entered_again():
    tool = Steps()
    run = amanda.scheduled(tool, schedule=amanda.Schedule(every=2), first_step=10)

    def fails():
        with run:
            run.step()
            run.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert tool.events == ["begin 10", "end 10", "begin 12", "left ZeroDivisionError()"]
    with run:
        torch.relu(X)
        assert (run.step_number, run.phase) == (12, "active")
    assert tool.events[4:] == ["begin 12", "analysis", "relu", "left None"]


def test_a_failure_of_a_tool_reaches_the_program_and_steps_go_on(caplog):
    tool = Steps(fails_at=1)
    with amanda.scheduled(tool) as run:
        with pytest.raises(OSError, match="no room"):
            run.step()
        run.step()
        assert run.step_number == 2
    assert tool.events == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "left None"]
    stopped = Steps(fails_at=1)
    with caplog.at_level(logging.WARNING, "amanda"), amanda.scheduled(stopped, on_error="disable") as run:
        for _ in range(3):
            run.step()
    assert stopped.events == ["begin 0", "end 0", "begin 1"]
    assert caplog.messages == ["[schedule] steps: on_step_begin failed, and gets no more steps: OSError: no room"]


class FailsTwice(Steps):
    def on_step_end(self, step):
        raise ValueError(f"step {step}")


def test_of_two_failures_neither_is_lost():
    with amanda.scheduled(FailsTwice(fails_at=1)) as run, pytest.raises(ValueError, match="step 0") as raised:
        run.step()
    assert str(raised.value.__context__) == "no room"


def test_scopes_inside_and_outside_may_be_left_in_any_order(recorder):
    outer, inner = recorder("outer", ops="relu"), recorder("inner", ops="relu")
    with amanda.apply(outer), amanda.scheduled(inner, schedule=amanda.Schedule(every=2)) as run:
        for _ in range(3):
            with amanda.apply(recorder("innermost", ops="sin")):
                torch.relu(X)
                run.step()
    assert (len(outer.ran), len(inner.ran)) == (3, 2)
