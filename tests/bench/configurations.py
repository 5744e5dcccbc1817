"""Amanda's rows: what is active while a workload runs, from nothing to a tool that measures every operator.

Each is opened again for every measurement, and yields a `Session`. Routines count their calls, so that a row that
measured nothing is detected.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any


class Missing(Exception):
    """Why a row has no number here, in two words."""


@dataclasses.dataclass
class Session:
    run: Callable[[int], None]
    seen: Callable[[], int] | None = None  # the number of calls of the observer, or None if it is not to be called
    scope: Any = None


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    open: Callable[[Any, Any], contextlib.AbstractContextManager[Session]]  # open(workload, body)
    is_peer: bool = False
    leaves_kernels: bool = False  # in the process, for those after it: to be measured last


BASELINE = "imported, no scope"  # the baseline of all ratios; it is compared with a process without Amanda
CONFIGURATIONS: list[Configuration] = []


def row(name, **options):
    def register(function):
        opened = contextlib.contextmanager(function)
        CONFIGURATIONS.append(Configuration(name, opened, **options))
        return opened

    return register


def phases(rows):
    """The rows, and after them those that would affect the others."""
    return [[row for row in rows if not row.leaves_kernels], [row for row in rows if row.leaves_kernels]]


def selected(name, parts):
    """True if one of these parts of names selects the row. The full name of a row selects that row alone."""
    full = {row.name for row in CONFIGURATIONS}
    return not parts or any(part == name if part in full else part in name for part in parts)


def counter(ops=None, *, forward=True, backward=False, inputs=(0,)):
    """A tool with a Python routine before each operator: it gets the first operand, or all with inputs=None, and counts."""
    import amanda

    class Counter(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.count = 0
            if forward:
                self.add_inst_for_op(self.analyze, ops=ops)
            if backward:
                self.add_inst_for_op(self.analyze_backward, ops=ops, backward=True)

        def analyze(self, context):
            context.insert_before_op(self.tick, inputs=inputs and list(inputs)[: len(context.inputs)])

        def analyze_backward(self, context):
            context.insert_before_backward_op(self.tick, grad_outputs=[0])

        def tick(self, *operands):
            self.count += 1

    return Counter()


@contextlib.contextmanager
def applied(body, *tools, seen=None) -> Iterator[Session]:
    import amanda

    scope = amanda.apply(*tools)
    with scope:
        yield Session(body.run, seen, scope)


@row("scope open, nobody asks")
def nobody_asks(workload, body):
    with applied(body, counter(ops="amanda_bench::no_such_operator")) as session:
        yield session


@row("filter on another operator")
def another_operator(workload, body):
    with applied(body, counter(ops=workload.other_op)) as session:
        yield session


@row("the id alone (seen, nothing scheduled)")
def id_alone(workload, body):
    import amanda

    analysed = []
    tool = amanda.Tool("id")
    tool.add_inst_for_op(lambda context: analysed.append(context.op_id))
    with applied(body, tool, seen=lambda: len(analysed)) as session:
        yield session


@row("C++ routine, forward")
def cpp_forward(workload, body):
    with applied(body, native_tool(backward=False)) as session:
        session.seen = lambda: session.scope.cache_info().hits
        yield session


@row("C++ routine, forward and backward")
def cpp_backward(workload, body):
    with applied(body, native_tool(backward=True)) as session:
        session.seen = lambda: session.scope.cache_info().hits
        yield session


@row("C++ routine that calls no operator, forward")
def cpp_forward_without_operators(workload, body):
    with applied(body, native_tool(backward=False, looks=True)) as session:
        session.seen = lambda: session.scope.cache_info().hits
        yield session


@row("C++ routine that calls no operator, forward and backward")
def cpp_backward_without_operators(workload, body):
    with applied(body, native_tool(backward=True, looks=True)) as session:
        session.seen = lambda: session.scope.cache_info().hits
        yield session


@row("Python routine, forward")
def python_forward(workload, body):
    tool = counter()
    with applied(body, tool, seen=lambda: tool.count) as session:
        yield session


@row("Python routine, forward, every operand")
def python_every_operand(workload, body):
    tool = counter(inputs=None)
    with applied(body, tool, seen=lambda: tool.count) as session:
        yield session


@row("Python routine, forward and backward")
def python_backward(workload, body):
    tool = counter(backward=True)
    with applied(body, tool, seen=lambda: tool.count) as session:
        yield session


@row("nested scopes, a Python routine each")
def nested(workload, body):
    outer, inner = counter(), counter()
    with applied(body, outer), applied(body, inner, seen=lambda: min(outer.count, inner.count)) as session:
        yield session


@row("tools.profile")
def profile(workload, body):
    from amanda.tools.profile import Profile

    tool = Profile()
    with applied(body, tool, seen=lambda: len(tool.rows())) as session:
        yield session


# Tools that ship: a line each, and one in targets.py.
SHIPPED = {
    "tools.nonfinite": "amanda.tools.nonfinite.NaNSentinel",
    "tools.cuts": "amanda.tools.cuts.GradientCuts",
    "tools.check": "amanda.tools.check.Check",
    "tools.inplace": "amanda.tools.inplace.InplaceErrors",
    "tools.inplace, only what writes": "amanda.tools.inplace.write_recorder.WriteRecorder",
}


def shipped_row(name, tool):
    """A tool that is made without arguments."""
    module, _, kind = tool.rpartition(".")

    @row(name)
    def opened(workload, body):
        made = getattr(importlib.import_module(module), kind)()
        with applied(body, made) as session:
            session.seen = lambda: session.scope.cache_info().hits
            yield session


for name, tool in SHIPPED.items():
    shipped_row(name, tool)


@row("tools.trace, a constant at each linear")
def trace(workload, body):
    if workload.own_op != "linear":
        raise Missing("no linear")
    import amanda

    tool = amanda.trace("linear: 0", by="op")
    with applied(body, tool, seen=lambda: sum(row.count for row in tool.rows())) as session:
        yield session


@row("two tools, different filters, one occurs", leaves_kernels=True)
def two_filters(workload, body):
    here, elsewhere = counter(ops=workload.own_op), counter(ops=workload.other_op)
    with applied(body, here, elsewhere, seen=lambda: here.count) as session:
        yield session


@row("nobody asks, after a filter that occurs", leaves_kernels=True)
def nobody_asks_any_more(workload, body):
    with applied(body, counter(ops=workload.own_op)):
        body.run(1)
    with nobody_asks(workload, body) as session:
        yield session


def native_tool(backward, looks=False):
    """An empty C++ routine before every operator. It does not count: the scope does.

    With `looks` it promises to edit nothing and to call no operator.
    """
    from amanda import _tools
    from amanda.tool import NativeTool

    return NativeTool(_tools.counting_tool(backward=backward, looks=looks))
