"""Scopes that are left, and switches that are turned, from anywhere: routines, analyses, hooks, custom operators."""

import contextlib
import gc
import threading
import weakref

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])
W = torch.tensor([-1.0, 2.0], requires_grad=True)


@pytest.fixture(scope="module")
def library():
    with torch.library._scoped_library("leaving", "FRAGMENT") as library:
        yield library


class Backward(amanda.Tool):
    """Asks for forward and backward operators, and looks."""

    def __init__(self, ops="relu"):
        super().__init__()
        self.seen = []
        self.add_inst_for_op(lambda c: self.seen.append(c.op.__name__), ops=ops)
        self.add_inst_for_op(lambda c: self.seen.append(c.backward_op.__name__), ops=ops, backward=True)


def leave_scope(scope):
    scope.__exit__(None, None, None)


def in_routine(point):
    def scheduled(act):
        def analyse(context):
            {
                "before": lambda: context.insert_before_op(lambda v: act()),
                "after": lambda: context.insert_after_op(lambda y: act()),
                "replace": lambda: context.replace_op(lambda v, op: (act(), op(v))[1], op=context.op),
            }[point]()

        tool = amanda.Tool("leaver")
        tool.add_inst_for_op(analyse, ops="relu")
        return tool, lambda x: torch.relu(x)

    return scheduled


def in_analysis(require_outputs):
    def scheduled(act):
        tool = amanda.Tool("leaver")
        tool.add_inst_for_op(lambda context: act(), ops="relu", require_outputs=require_outputs)
        return tool, lambda x: torch.relu(x)

    return scheduled


def in_saved_tensors_hook(act):
    def pack(tensor):
        act()
        return tensor

    def run(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return torch.relu(x)

    return amanda.Tool("idle"), run


PLACES = {
    "before": in_routine("before"),
    "after": in_routine("after"),
    "replace": in_routine("replace"),
    "analysis": in_analysis(False),
    "analysis of outputs": in_analysis(True),
    "saved-tensors hook": in_saved_tensors_hook,
}


@pytest.mark.parametrize("how", ["leave", "disable"])
@pytest.mark.parametrize("place", PLACES)
def test_a_scope_is_left_or_switched_off_while_an_operator_runs(place, how):
    todo = []

    def act():
        if todo:
            todo.pop()()

    tool, run = PLACES[place](act)
    watch = Backward()
    scope = amanda.apply(watch, tool)
    scope.__enter__()
    off = amanda.disabled()
    todo.append((lambda: leave_scope(scope)) if how == "leave" else off.__enter__)
    y = run(W)
    assert not todo
    (gradient,) = torch.autograd.grad(y.sum(), W)
    if how == "disable":
        off.__exit__()
        leave_scope(scope)
    assert (y.tolist(), gradient.tolist()) == ([0.0, 2.0], [0.0, 1.0])
    assert "ReluBackward0" not in watch.seen
    torch.relu(W)
    assert watch.seen.count("relu") <= 1


@pytest.mark.parametrize("how", ["leave", "disable"])
def test_a_custom_operator_leaves_the_scope(library, how):
    name = f"leaving::op_{how}"
    todo = []

    @torch.library.custom_op(name, mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        if todo:
            todo.pop()()
        return x * 2

    op.register_autograd(lambda ctx, gradient: gradient * 2)
    watch = Backward(ops=None)
    scope, off = amanda.apply(watch), amanda.disabled()
    scope.__enter__()
    todo.append((lambda: leave_scope(scope)) if how == "leave" else off.__enter__)
    y = op(W)
    (gradient,) = torch.autograd.grad(y.sum(), W)
    if how == "disable":
        off.__exit__()
        leave_scope(scope)
    assert (y.tolist(), gradient.tolist()) == ([-2.0, 4.0], [2.0, 2.0])
    assert f"op_{how}" in watch.seen


def test_a_scope_is_left_by_a_backward_hook():
    watch = Backward()
    scope = amanda.apply(watch)
    scope.__enter__()
    y = torch.relu(W)
    y.register_hook(lambda gradient: leave_scope(scope))
    (gradient,) = torch.autograd.grad((y * 1).sum(), W)
    assert gradient.tolist() == [0.0, 1.0]


def test_a_scope_is_left_inside_a_function_s_forward():
    scope = amanda.apply(Backward(ops=None))

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            leave_scope(scope)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    scope.__enter__()
    (gradient,) = torch.autograd.grad(Function.apply(W).sum(), W)
    assert gradient.tolist() == [2.0, 2.0]


# ---- the last references go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["analysis", "analysis of outputs", "before", "after", "replace"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_runs_drops_the_last_references_to_scope_and_tool(place, fails):
    held = {}

    def act():
        if "scope" in held:
            leave_scope(held["scope"])
            held.clear()
            gc.collect()
            [bytearray(64 * i) for i in range(1, 64)]  # released memory is reused
            if fails:
                raise ValueError("after all")

    def make():
        tool, run = PLACES[place](act)
        second = Backward()
        tool.depends_on(second)
        held["scope"] = amanda.apply(tool)
        held["scope"].__enter__()
        return run, weakref.ref(tool), weakref.ref(held["scope"])

    run, tool, scope = make()
    with pytest.raises(ValueError, match="after all") if fails else contextlib.nullcontext() as caught:
        assert run(W).tolist() == [0.0, 2.0]
    if fails:
        assert "in tool 'leaver'" in caught.value.__notes__[0]
    del caught
    gc.collect()
    assert tool() is None
    assert scope() is None


def test_a_finalizer_clears_the_cache_while_operands_are_shown():
    class Value:
        def __del__(self):
            scope.cache_clear()

    def look(*operands, note, run):
        assert note == "note"

    def analyse(context):
        context.insert_before_op(look, with_run=True, note="note")
        context.insert_after_op(look, with_run=True, note="note")

    tool = amanda.Tool()
    tool.add_inst_for_op(analyse, ops=["relu", "cat"])
    with amanda.apply(tool) as scope:
        for _ in range(300):
            torch.relu(X)
            cycle = [Value()]
            cycle.append(cycle)
            del cycle
            threshold = gc.get_threshold()
            gc.set_threshold(1)
            try:
                torch.cat([X, X])
                torch.relu(X)
            finally:
                gc.set_threshold(*threshold)


def test_a_finalizer_leaves_the_scope_while_operators_run():
    scopes = [amanda.apply(Backward(ops=None)) for _ in range(50)]

    class Value:
        def __init__(self, scope):
            self.scope = scope

        def __del__(self):
            leave_scope(self.scope)

    threshold = gc.get_threshold()
    for scope in scopes:
        scope.__enter__()
        cycle = [Value(scope)]
        cycle.append(cycle)
        del cycle
        gc.set_threshold(1)
        try:
            torch.relu(W).sum().backward()
        finally:
            gc.set_threshold(*threshold)
    gc.collect()
    W.grad = None


# ---- scopes that are entered inside operators ------------------------------------------------------------------------


@pytest.mark.parametrize("outer_ops", [None, "inside"])
def test_a_scope_entered_inside_an_operator_sees_what_follows(library, recorder, outer_ops):
    inner = recorder("inner")
    name = "inside" if outer_ops else "inside_all"

    @torch.library.custom_op(f"leaving::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        with amanda.apply(inner):
            y = torch.cos(y)
            with amanda.disabled():
                y = torch.tan(y)
            y = torch.relu(y)
        return torch.exp(y)

    outer = recorder("outer", ops=outer_ops and name)
    with amanda.apply(outer):
        for _ in range(2):
            op(X)
        torch.neg(X)
    assert inner.ran == ["cos", "relu"] * 2
    assert outer.ran == [name] * 2 + ([] if outer_ops else ["neg"])


def test_a_scope_entered_inside_an_operator_may_outlive_it(library, recorder):
    inner, outer = recorder("inner"), recorder("outer")
    scope = amanda.apply(inner)

    @torch.library.custom_op("leaving::outlived", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        scope.__enter__()
        return torch.sin(x)

    with amanda.apply(outer):
        op(X)
        torch.cos(X)
        leave_scope(scope)
        torch.exp(X)
    assert inner.ran == ["sin", "cos"]
    assert outer.ran == ["outlived", "cos", "exp"]


def test_a_scope_entered_in_a_routine_does_not_see_the_routine(recorder, before):
    inner = recorder("inner")

    def routine(v):
        with amanda.apply(inner):
            torch.sin(v)

    with amanda.apply(before("relu", routine)):
        torch.relu(X)
    assert inner.ran == []


def test_a_scope_entered_in_a_backward_hook_stays_open(recorder):
    tool = recorder("late")
    scope = amanda.apply(tool)
    y = torch.relu(W)
    y.register_hook(lambda gradient: scope.__enter__() and None)
    with amanda.apply(Backward()):
        torch.autograd.grad(y.sum(), W)
    torch.cos(X)
    leave_scope(scope)
    assert tool.ran == ["cos"]


# ---- threads that end ------------------------------------------------------------------------------------------------


def test_a_thread_that_ends_leaves_its_scopes(recorder):
    class Told(amanda.Tool):
        def on_exit(self, error):
            told.append((threading.get_ident(), error))

    told, engine = [], torch.autograd.variable.Variable._execution_engine

    def work():
        scope = amanda.apply(Told(), coverage=True)
        scope.__enter__()
        amanda.disabled().__enter__()
        idents.append(threading.get_ident())
        scopes.append(weakref.ref(scope))

    idents, scopes = [], []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert told == [(idents[0], None)]
    assert scopes[0]() is None
    assert torch.autograd.variable.Variable._execution_engine is engine
