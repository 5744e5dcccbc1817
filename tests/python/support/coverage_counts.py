"""What the tests of coverage reports share: tools, counted runs, and RecordFunction's own count."""

from collections import Counter

import amanda
import torch
from amanda import _torch

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
