"""Contexts that other threads read while their analyses run, end and are forgotten."""

import contextlib
import inspect
import sys
import threading
import time

import amanda
import pytest
import torch

ELSEWHERE = (
    "[context] {} works only on the thread that runs the analysis routine; take what you need there, and hand it to the "
    "other thread"
)
PROPERTIES = sorted(name for name, value in vars(amanda.OpContext).items() if isinstance(value, property))
METHODS = sorted(
    name
    for name, value in vars(amanda.OpContext).items()
    if inspect.isfunction(value) and not name.startswith("_") and name.startswith(("get_", "has_", "is_"))
)
SCHEDULE = [
    "insert_before_op", "insert_after_op", "replace_op", "insert_before_backward_op", "insert_after_backward_op",
    "replace_backward_op",
]  # fmt: skip


def on_another_thread(function):
    """What it returns there, or the error that it raises."""
    found = []

    def call():
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return found[0]


def analyse(routine, **asked):
    tool = amanda.Tool("t")
    tool.add_inst_for_op(routine, **asked)
    x = torch.ones(3, requires_grad=True)
    with amanda.apply(tool):
        torch.relu(x).sum().backward()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_what_ends_with_the_analysis_is_of_its_thread(backward):
    found = {}

    def look(context):
        for name in ("inputs", "source", "module_path", "is_recompute", "is_symbolic", "depth", "tool"):
            found[name] = on_another_thread(lambda n=name: getattr(context, n))
        found["may_mutate"] = on_another_thread(context.may_mutate)
        schedule = "insert_before_backward_op" if backward else "insert_before_op"
        found[schedule] = on_another_thread(lambda: getattr(context, schedule)(lambda *values: None))
        found["op"] = on_another_thread(lambda: context.op.__name__)
        found["op_id"] = on_another_thread(lambda: context.op_id) == context.op_id
        found["repr"] = on_another_thread(lambda: repr(context))
        assert len(context.inputs) == 1  # here it goes on

    analyse(look, ops="relu", backward=backward)
    assert (found.pop("op"), found.pop("op_id")) == ("relu", True)
    assert "relu" in found.pop("repr")
    assert {name: str(error) for name, error in found.items()} == {name: ELSEWHERE.format(name) for name in found}
    assert len(found) == 9


# ---- fuzzed -----------------------------------------------------------------------------------------------------------


def read(context):
    for name in PROPERTIES:
        try:
            value = getattr(context, name)
            repr(type(value[0]) if isinstance(value, tuple) and value else value)
        except amanda.Error:
            pass
    for name in METHODS:
        with contextlib.suppress(amanda.Error):
            getattr(context, name)()
    for name in SCHEDULE:
        with contextlib.suppress(amanda.Error, ValueError):
            getattr(context, name)(lambda *values, **more: None)
    for side in ("inputs", "outputs", "grad_outputs", "grad_inputs"):
        with contextlib.suppress(amanda.Error):
            context._handle.infos(side)
    repr(context), dict(context)
    context.get("key"), list(context)


def eager():
    x = torch.ones(3, requires_grad=True)
    torch.cat([torch.relu(x) for _ in range(5)]).sum().backward()


def compiled():
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: torch.relu(x).sin().sum(), backend="aot_eager")(x).backward()


@pytest.mark.parametrize("program", [eager, compiled])
@pytest.mark.parametrize("cached", [False, True], ids=["not cached", "cached"])
@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.long)])
def test_other_threads_read_everything_while_analyses_end(program, cached, seconds):
    latest, failed, stop = [None], [], threading.Event()

    def analyze(context):
        context["key"] = 1
        latest[0] = context
        time.sleep(0)  # the others run

    def look():
        try:
            while not stop.is_set():
                if latest[0] is not None:
                    read(latest[0])
        except BaseException as error:
            failed.append(error)

    def tool():
        made = amanda.Tool("t")
        for backward in (False, True):
            for require_outputs in (False, True):
                made.add_inst_for_op(analyze, backward=backward, require_outputs=require_outputs)
        return made

    threads = [threading.Thread(target=look) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not failed:
            with amanda.apply(tool(), compiled="graph"):
                if cached:
                    program()
                else:
                    with amanda.cache_disabled():
                        program()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not failed
