"""What the first runs in a scope take beyond later ones: operators are named, and analyzed by the tool's routines."""

import statistics
import time

import process
import workloads
from configurations import counter

FILTERS = ("erfinv", "aten::lgamma", "digamma.out", "polar*", "heavi?ide")  # no workload runs them


def measurement(workload, settings):
    """The median over fresh processes of each figure of `once`."""
    found = process.repeated(settings, once, workload.name, settings.full)
    middle = {figure: statistics.median(each[figure] for each in found) for figure in found[0]}
    return {"workload": workload.name} | middle


def once(name, full):
    """Nanoseconds of the first run and of a usual one, each in the same scope under a Python routine; what the first run
    takes beyond the usual one in other scopes, and that of entering scopes with a filter for the first time."""
    process.prepare()
    import amanda  # noqa: F401 - before the first runs, as programs do

    workload = next(workload for workload in workloads.WORKLOADS if workload.name == name)
    body = workload.make(full)
    body.run(3)
    places, first, usual = in_new_scope(body)
    again = workload.make(full)  # equal models
    again.run(3)
    figures = {"places": places, "usual_ns": usual, "first_ns": first}
    figures["rebuilt_ns"] = added(again)
    figures["later_ns"], figures["same_line_ns"] = (added(again) for _ in range(2))
    return figures | {"filtered_ns": statistics.median(entering(ops) for ops in FILTERS)}


def added(body):
    _, first, usual = in_new_scope(body)
    return first - usual


def in_new_scope(body):
    """How many places it analyzed, and the nanoseconds of its first run and of the best of the next ones."""
    import amanda

    with amanda.apply(counter()) as scope:
        first, *others = process.times(body.run, [1] * 6, [])
    return scope.cache_info().misses, first, min(others)


def entering(ops):
    """Nanoseconds of entering a scope with a filter that the process has not seen."""
    import amanda

    scope = amanda.apply(counter(ops=ops))
    start = time.thread_time_ns()
    scope.__enter__()
    taken = time.thread_time_ns() - start
    scope.__exit__(None, None, None)
    return taken
