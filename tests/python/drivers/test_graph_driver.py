"""A graph driver written in Python: the seam's graph half through the bindings."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from typing import Any

import amanda
import pytest
import torch
import toy_graph
from amanda import _core
from toy_graph import BACKEND, Function, Graph

X, W = 2.0, 0.25
VANILLA = (math.sin(0.5), math.cos(0.5) * 2.0)


def tool(analysis: Any, ops: Any = None, backward: bool = False, name: str = "tool") -> amanda.Tool:
    made = amanda.Tool(name)
    made.add_inst_for_op(analysis, ops=ops, backward=backward)
    return made


def toolset_of(*tools: amanda.Tool) -> tuple[amanda.Scope, Any]:
    scope = amanda.apply(*tools)
    with scope:
        return scope, BACKEND.toolset()


def test_without_a_scope_there_is_no_toolset() -> None:
    assert BACKEND.toolset() is None
    assert Function()(X, W) == VANILLA


def test_a_scope_that_was_open_before_another_thread_attached_the_driver() -> None:
    made: list[Any] = []
    with amanda.apply(tool(lambda context: None, "toy::late")):
        thread = threading.Thread(target=lambda: made.append(_core.GraphBackend("toy/late/graph")))
        thread.start()
        thread.join()
        (backend,) = made
        assert backend.toolset() is not None
        assert backend.has_scopes()
        assert [backend.wants(backend.intern("toy", name)) for name in ("late", "other")] == [True, False]
    assert backend.toolset() is None
    assert not backend.has_scopes()


def test_looking_changes_nothing_and_off_and_on_again_builds_nothing() -> None:
    seen: list[str] = []

    def look(context: amanda.OpContext) -> None:
        name = context.op.__name__ if context.is_forward() else context.backward_op.__name__
        assert context.is_symbolic
        if context.is_forward():
            context.insert_before_op(lambda *inputs: seen.append(name))
        else:
            context.insert_before_backward_op(lambda *grads: seen.append(name))

    looking = amanda.Tool("look")
    looking.add_inst_for_op(look)
    looking.add_inst_for_op(look, backward=True)
    function, scope = Function(), amanda.apply(looking)
    for _ in range(3):
        with scope:
            assert function(X, W) == VANILLA
        assert function(X, W) == VANILLA
    assert function.builds == 1
    assert seen == ["mul", "sin", "SinBackward", "MulBackward"] * 3
    assert scope.cache_info().misses == 4


def test_the_analysis_sees_symbols() -> None:
    seen = []
    scope = amanda.apply(tool(lambda c: seen.append((c.module_path, c.inputs, c.namespace)), ops="mul"))
    with scope:
        Function()(X, W)
    assert seen == [("first", ("x", "w"), "toy/1/graph")]


def test_outputs_and_gradients_are_symbols_in_every_analysis() -> None:
    seen: list[Any] = []
    forward = tool(lambda c: seen.append((c.has_outputs(), c.outputs, c.has_grad_inputs())), ops="mul")
    backward = tool(lambda c: seen.append((c.has_grad_inputs(), c.grad_inputs)), ops="mul", backward=True)
    with amanda.apply(forward, backward):
        Function()(X, W)
    assert seen == [(True, ("first",), False), (True, ("dx", "dw"))]


def test_an_edited_input_is_what_backward_sees() -> None:
    with amanda.apply(tool(lambda c: c.insert_before_op(lambda w: w * 2, inputs=["b"]), ops="mul")):
        result, gradient = Function()(X, W)
    assert result == math.sin(1.0)
    assert gradient == math.cos(1.0) * 2.0  # straight through the doubling


def test_gradients_are_edited() -> None:
    halve = tool(lambda c: c.insert_after_backward_op(lambda g: g / 2, grad_inputs=[1]), ops="mul", backward=True)
    with amanda.apply(halve):
        assert Function()(X, W) == (VANILLA[0], VANILLA[1] / 2)


def test_a_replacement_runs_and_may_run_the_original() -> None:
    with amanda.apply(tool(lambda c: c.replace_op(lambda a: 0.0), ops="sin")):
        assert Function()(X, W)[0] == 0.0

    def negate(context: amanda.OpContext) -> None:
        op = context.op
        context.replace_op(lambda a: -op(a))

    with amanda.apply(tool(negate, ops="sin")):
        assert Function()(X, W)[0] == -VANILLA[0]


def test_the_original_can_be_called_only_by_its_replacement() -> None:
    ops = []
    with amanda.apply(tool(lambda c: ops.append(c.op), ops="sin")):
        Function()(X, W)
    with pytest.raises(amanda.Error, match="can be called only by its own replacement, while that runs"):
        ops[0](1.0)


class MineError(Exception):
    pass


@pytest.mark.parametrize("where", ["analysis", "routine"])
def test_what_a_tool_raises_arrives_as_the_same_object(where: str) -> None:
    error = MineError("mine")

    def fail(*_: object) -> None:
        raise error

    failing = tool(fail if where == "analysis" else lambda c: c.insert_before_op(fail), ops="mul", name="failing")
    with amanda.apply(failing), pytest.raises(MineError) as raised:
        Function()(X, W)
    assert raised.value is error
    assert "in tool 'failing'" in error.__notes__[0]
    assert Function()(X, W) == VANILLA


def test_what_the_driver_refuses_is_an_error_at_analysis() -> None:
    _scope, toolset = toolset_of(tool(lambda c: c.replace_op(lambda a: a), ops="sin", name="swap"))
    refusing = Graph(refuse=lambda point, position: f"it is fused ({point})" if point == "replace" else None)
    with pytest.raises(amanda.Error, match=r"swap: replace_op on toy::sin in wave: it is fused \(replace\)"):
        _core.instrument(toolset, BACKEND, refusing)


def test_a_failure_to_lower_is_one_warning_and_no_tools(caplog: pytest.LogCaptureFixture) -> None:
    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(lambda *_: None), ops="sin"))
    artifact = _core.instrument(toolset, BACKEND, Graph(fail=ValueError("no room")))
    assert artifact.lowered is None
    assert artifact.failure == (
        "the driver 'toy/1/graph' could not put taps into a graph, which runs without them: ValueError: no room"
    )
    assert caplog.messages == ["[graph] " + artifact.failure]


def test_an_interrupt_in_lower_passes_as_itself() -> None:
    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(lambda *_: None), ops="sin"))
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as raised:
        _core.instrument(toolset, BACKEND, Graph(fail=error))
    assert raised.value is error


def test_an_error_of_each_op_passes_as_itself() -> None:
    class Broken(Graph):
        def each_op(self, visitor: Any) -> None:
            raise MineError("broken driver")

    _scope, toolset = toolset_of(tool(lambda c: None))
    with pytest.raises(MineError, match="broken driver"):
        _core.instrument(toolset, BACKEND, Broken())


def test_a_backward_operator_before_its_forward_operator_is_an_error() -> None:
    class Reversed(Graph):
        def each_op(self, visitor: Any) -> None:
            super().each_op(type("Nobody", (), {"op": lambda self, site: None})())
            for forward, backward in self.sites:
                visitor.op(backward)
                visitor.op(forward)

    _scope, toolset = toolset_of(tool(lambda c: None))
    with pytest.raises(
        amanda.Error,
        match="the driver 'toy/1/graph' showed a backward operator before its forward operator: toy::mul",
    ):
        _core.instrument(toolset, BACKEND, Reversed())


def test_a_replacement_without_its_original_is_the_drivers_error() -> None:
    def again(context: amanda.OpContext) -> None:
        op = context.op
        context.replace_op(lambda a: op(a))

    _scope, toolset = toolset_of(tool(again, ops="sin"))
    step = _core.instrument(toolset, BACKEND, Graph()).lowered[1]
    with pytest.raises(amanda.Error, match="ran a replacement without the original of sin; pass original="):
        step.taps[0].run(step.site, [1.0])


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(amanda.Error, match=r"the driver 'toy/1/graph' has no operator type 99; intern\(\) gives"):
        _core.OpSite(BACKEND, 99, 1, (), ())


def test_ids_of_a_driver_that_is_not_there() -> None:
    with pytest.raises(amanda.Error, match="cannot have the operator ids of 'nobody': no such driver is attached"):
        _core.GraphBackend("toy/2/graph", same_ids_as="nobody")


def test_an_unknown_kind_of_backward_operators() -> None:
    with pytest.raises(ValueError, match='backward= is "none", "nodes", "operators" or "one", got "some"'):
        _core.GraphBackend("toy/3/graph", backward="some")


def test_a_toolset_keeps_nothing_alive() -> None:
    scope, toolset = toolset_of(tool(lambda c: None))
    assert not toolset.is_over()
    assert toolset == toolset_of_again(scope)
    del scope
    gc.collect()
    assert toolset.is_over()
    assert _core.instrument(toolset, BACKEND, Graph()).lowered is None


def toolset_of_again(scope: amanda.Scope) -> Any:
    with scope:
        return BACKEND.toolset()


def test_a_lowered_graph_that_holds_a_tool_is_collected() -> None:
    alive: list[object] = []

    class Held:
        def __del__(self) -> None:
            alive.append("gone")

    held = Held()
    editing = tool(lambda c: c.insert_before_op(lambda *_: None), ops="sin")
    scope, toolset = toolset_of(editing)
    artifact = _core.instrument(toolset, BACKEND, Graph())
    editing.artifact, editing.held = artifact, held  # type: ignore[attr-defined]  # a cycle: tool, artifact, tap
    del scope, artifact, held, editing, toolset
    gc.collect()
    assert alive == ["gone"]


def test_a_removed_action_falls_silent() -> None:
    seen: list[float] = []
    actions = []
    scope = amanda.apply(tool(lambda c: actions.append(c.insert_before_op(seen.append)), ops="sin"))
    function = Function()
    with scope:
        function(X, W)
        actions[0].remove()
        assert function(X, W) == VANILLA
    assert seen == [0.5]
    assert function.builds == 1


def test_a_routine_that_returns_nothing_observes() -> None:
    def looks(x: object) -> None:
        del x

    def analyze(context: amanda.OpContext) -> None:
        context.insert_before_op(lambda x: x)
        context.insert_after_op(looks)

    _scope, toolset = toolset_of(tool(analyze, ops="sin"))
    taps = _core.instrument(toolset, BACKEND, Graph()).lowered[1].taps
    assert [(tap.point, tap.kind) for tap in taps] == [("before", "unknown"), ("after", "observe")]


def test_taps_are_known_by_number() -> None:
    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(lambda x: x), ops="sin"))
    lowered = _core.instrument(toolset, BACKEND, Graph()).lowered
    number = lowered[1].taps[0].id
    assert 0 < number < 2**63
    assert _core.find_tap(number).point == "before"
    assert lowered[1].taps[0].kind == "unknown"
    del lowered
    assert _core.find_tap(number) is None


def test_a_cache_builds_once_while_threads_wait() -> None:
    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(lambda *_: None), ops="sin"))
    cache, graph = _core.ArtifactCache(), Graph()
    start = threading.Barrier(4)
    made = []

    def get() -> None:
        start.wait()
        made.append(cache.get(toolset, "", BACKEND, graph).lowered)

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graph.lowered == 1
    assert all(one is made[0] for one in made)
    assert (cache.info().hits, cache.info().builds, cache.info().size) == (3, 1, 1)
    cache.clear()
    assert cache.info().size == 0


def test_asking_for_an_artifact_while_building_it_is_an_error() -> None:
    _scope, toolset = toolset_of(tool(lambda c: None))
    cache = _core.ArtifactCache()

    class Selfish(Graph):
        def each_op(self, visitor: Any) -> None:
            cache.get(toolset, "", BACKEND, self)

    with pytest.raises(amanda.Error, match="'toy/1/graph' asked for an artifact while this thread builds it"):
        cache.get(toolset, "", BACKEND, Selfish())
    assert cache.info().size == 0


def test_run_state_is_shared_by_the_routines_of_one_execution() -> None:
    seen = []

    def around(context: amanda.OpContext) -> None:
        context.insert_before_op(lambda a, run: run.update(a=a), with_run=True)
        context.insert_after_op(lambda r, run: seen.append((run["a"], r)), with_run=True)

    _scope, toolset = toolset_of(tool(around, ops="sin"))
    step = _core.instrument(toolset, BACKEND, Graph()).lowered[1]
    before, after = step.taps
    for value in (0.5, 1.0):
        state = _core.RunState()
        before.run(step.site, [value], state=state)
        after.run(step.site, (), [math.sin(value)], state=state)
    assert seen == [(0.5, math.sin(0.5)), (1.0, math.sin(1.0))]


def test_run_state_of_a_backward_operator_leads_to_that_of_its_forward_operator() -> None:
    seen = []
    meets = amanda.Tool("meets")
    meets.add_inst_for_op(lambda c: c.insert_after_op(lambda y, run: run.update(y=y), [0], with_run=True), ops="sin")
    meets.add_inst_for_op(
        lambda c: c.insert_before_backward_op(lambda run: seen.append((run.index, run["y"])), [], with_run=True),
        ops="sin",
        backward=True,
    )
    _scope, toolset = toolset_of(meets)
    step = _core.instrument(toolset, BACKEND, Graph()).lowered[1]
    (after,), (before,) = step.taps, step.backward_taps
    for value in (0.5, 1.0):
        state = _core.RunState()
        after.run(step.site, (), [value], state=state)
        before.run(step.backward_site, [1.0], state=_core.RunState(state))
    assert seen == [(0, 0.5), (1, 1.0)]


def test_without_a_run_state_it_is_not_known_which_execution_runs() -> None:
    runs: list[amanda.Run] = []
    _scope, toolset = toolset_of(
        tool(lambda c: c.insert_before_op(lambda a, run: runs.append(run), with_run=True), "sin")
    )
    step = _core.instrument(toolset, BACKEND, Graph()).lowered[1]
    step.taps[0].run(step.site, [0.5])
    with pytest.raises(amanda.Error, match=r"^\[run\] which execution of toy::sin this is, is not known"):
        _ = runs[0].index


@pytest.mark.parametrize("backward", [False, True])
def test_a_driver_that_shows_results_alone_refuses_inputs_beside_them(backward: bool) -> None:
    def look(context: amanda.OpContext) -> None:
        if backward:
            context.insert_after_backward_op(lambda *g, grad_outputs: None, grad_outputs=[0])
        else:
            context.insert_after_op(lambda y, inputs: None, inputs=["a"])

    _scope, toolset = toolset_of(tool(look, ops="sin", backward=backward, name="look"))
    where, shown, other = (
        ("insert_after_backward_op on SinBackward of toy::sin", "grad_inputs", "grad_outputs")
        if backward
        else ("insert_after_op on toy::sin in wave", "outputs", "inputs")
    )
    with pytest.raises(amanda.Error) as raised:
        _core.instrument(toolset, BACKEND, Graph())
    assert str(raised.value) == (
        f"[context] look: {where}: 'toy/1/graph' shows a routine after the operator its {shown} alone; keep what you "
        f"need of the {other} in a routine before it, with run"
    )


def test_a_program_that_a_routine_runs_is_not_instrumented() -> None:
    function, seen = Function(), []
    busy = tool(lambda c: c.insert_before_op(lambda *_: seen.append(function(X, W))), ops="sin")
    with amanda.apply(busy):
        function(X, W)
    assert seen == [VANILLA]


def test_a_driver_is_told_when_this_threads_tools_change() -> None:
    told: list[bool] = []
    BACKEND.on_switch(lambda: told.append(BACKEND.toolset() is not None))
    try:
        with amanda.apply(tool(lambda c: None)), amanda.disabled():
            pass
    finally:
        BACKEND.on_switch(None)
    assert told == [True, False, True, False]


def test_four_threads_run_one_graph() -> None:
    counts = {"runs": 0}
    lock = threading.Lock()

    def count(*_: object) -> None:
        with lock:
            counts["runs"] += 1

    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(count), ops=["mul", "sin"]))
    lowered = _core.instrument(toolset, BACKEND, Graph()).lowered
    results = []
    threads = [
        threading.Thread(target=lambda: results.extend(toy_graph.execute(lowered, X, W) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [VANILLA] * 200
    assert counts["runs"] == 400


def test_a_visitor_ends_with_each_op() -> None:
    class Keeps(Graph):
        def each_op(self, visitor: Any) -> None:
            super().each_op(visitor)
            self.visitor = visitor

    _scope, toolset = toolset_of(tool(lambda c: None))
    graph = Keeps()
    _core.instrument(toolset, BACKEND, graph)
    for late in (lambda: graph.visitor.op(graph.sites[0][0]), lambda: graph.visitor.unseen("loop", "late")):
        with pytest.raises(amanda.Error, match=r"each_op\(\) has returned, and its visitor takes no more operators"):
            late()


class Marked:
    """Something that says when it is gone."""

    def __init__(self, gone: list[str], name: str) -> None:
        weakref.finalize(self, gone.append, name)


def test_operators_that_know_their_graph_are_collected() -> None:
    gone: list[str] = []

    def build() -> None:
        owner: Any = Marked(gone, "operands")
        site = _core.OpSite(BACKEND, toy_graph.SIN, 1, (owner,), (), refuse=lambda *_: owner and None)
        owner.site = _core.OpSite(BACKEND, toy_graph.SIN_BACKWARD, 2, (), (owner,), forward=site)

    build()
    gc.collect()
    assert gone == ["operands"]


def test_a_model_that_holds_its_artifacts_is_collected() -> None:
    gone: list[str] = []
    _scope, toolset = toolset_of(tool(lambda c: c.insert_before_op(lambda *_: None), ops="sin"))

    def build() -> None:
        model: Any = Marked(gone, "model")

        class Lowers(Graph):
            def lower(self, sites: list[tuple[int, list[Any]]]) -> Any:
                return model

        model.cache = _core.ArtifactCache()
        assert model.cache.get(toolset, "", BACKEND, Lowers()).lowered is model
        model.artifact = _core.instrument(toolset, BACKEND, Lowers())

    build()
    gc.collect()
    assert gone == ["model"]


def test_a_backend_of_the_same_name_is_the_same() -> None:
    again = _core.GraphBackend("toy/1/graph", backward="one")
    assert again.intern("toy", "sin") == toy_graph.SIN
    with pytest.raises(amanda.Error, match=r"there is a driver 'pytorch/.*/eager' already; choose another name space"):
        _core.GraphBackend(pytorch_name_space()[0])


def pytorch_name_space() -> list[str]:
    seen: list[str] = []
    with amanda.apply(tool(lambda c: seen.append(c.namespace))):
        torch.relu(torch.zeros(1))
    return seen


def test_what_is_no_operator_is_no_forward_operator() -> None:
    with pytest.raises(TypeError, match="forward= takes the OpSite of the forward operator, got 'sin'"):
        _core.OpSite(BACKEND, toy_graph.SIN_BACKWARD, 2, (), (), forward="sin")


class Tensor:
    """A symbol of a graph with shapes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes


def flops_of_a_product(describe: Any) -> int:
    """What a C++ tool counts in a graph of one matrix product, run once."""
    from amanda.tools.flops import Flops

    backend = _core.GraphBackend("toy/shapes/graph")
    mm = backend.intern("aten", "mm", inputs=["self", "mat2"], outputs=["out"])
    backend.describe(describe)
    operands, result = (Tensor(2, 3), Tensor(3, 5)), (Tensor(2, 5),)
    site = _core.OpSite(backend, mm, 1, operands, result)

    class Multiplies:
        def each_op(self, visitor: Any) -> None:
            visitor.op(site)

        def lower(self, sites: list[tuple[int, list[Any]]]) -> list[Any]:
            return sites[0][1]

    flops, state = Flops(), _core.RunState()
    with amanda.apply(flops):
        for tap in _core.instrument(backend.toolset(), backend, Multiplies()).lowered:
            tap.run(site, operands, result, state=state)
    return flops.total


def test_a_tool_in_cpp_reads_shapes_of_a_graph_in_python() -> None:
    assert flops_of_a_product(lambda operand: {"dtype": "float32", "sizes": operand.sizes}) == 2 * 2 * 3 * 5


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"shape": (1,)}, r"describe\(\) gave 'shape'; it gives dtype, sizes, device, bytes and requires_grad"),
        ("a tensor", r"describe\(\) takes an operand and gives a dict or None, got 'a tensor'"),
    ],
)
def test_a_wrong_description_is_named(described: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flops_of_a_product(lambda operand: described)
