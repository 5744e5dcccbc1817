"""Compiled functions in scopes with compiled="graph": what is compiled when, and what runs under which tools."""

import threading

import amanda
import pytest
import torch
from compiled_tools import Counting, Doubled, Seen
from compiling import Looks, apply, differentiate
from torch._inductor.utils import fresh_cache

X = torch.tensor([[-1.0, 2.0, 3.0]])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x):
    return torch.relu(x) + 1


def test_it_stays_compiled_and_tools_see_and_edit_it():
    backend, seen = Counting(), Seen()
    compiled = torch.compile(function, backend=backend)
    with amanda.apply(seen, Doubled(), compiled="graph"):
        result = compiled(X)
    assert result.tolist() == [[1.0, 5.0, 7.0]]
    assert seen.shown == [("aten::relu", True), ("aten::add", True)]
    assert seen.ran == ["aten::relu", "aten::add"]
    assert backend.count == 1
    assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]


def test_backward_operators_run_under_tools_too():
    tool, seen = amanda.Tool(), []

    def analyze(context):
        context.insert_before_backward_op(lambda grad: grad * 3)
        context.insert_after_backward_op(seen.append)

    tool.add_inst_for_op(analyze, ops="relu", backward=True)
    compiled = torch.compile(lambda x: torch.relu(x * 2).sum(), backend="aot_eager")
    x = X.clone().requires_grad_()
    with amanda.apply(tool, compiled="graph"):
        compiled(x).backward()
    assert x.grad.tolist() == [[0.0, 6.0, 6.0]]
    assert [gradient.tolist() for gradient in seen] == [[[0.0, 3.0, 3.0]]]


@pytest.mark.parametrize("switched_off", [False, True])
def test_a_backward_pass_outside_the_scope_runs_no_routine(switched_off):
    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda context: context.insert_before_backward_op(lambda grad: grad * 3), ops="relu", backward=True
    )
    compiled = torch.compile(lambda x: torch.relu(x * 2).sum(), backend="aot_eager")
    x, scope = X.clone().requires_grad_(), amanda.apply(tool, compiled="graph")
    with scope:
        loss = compiled(x)
        if switched_off:
            with amanda.disabled():
                loss.backward()
    if not switched_off:
        loss.backward()
    assert x.grad.tolist() == [[0.0, 2.0, 2.0]]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_off_and_on_again_compiles_nothing(fullgraph):
    backend, scopes = Counting(), [amanda.apply(Doubled(), compiled="graph"), amanda.apply(Seen(), compiled="graph")]
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    counts = []
    for scope in [None, scopes[0], None, scopes[1], *[None, *scopes] * 2]:
        if scope is None:
            assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]
        else:
            with scope:
                assert compiled(X).tolist() == [[1.0, 5.0, 7.0] if scope is scopes[0] else [1.0, 3.0, 4.0]]
        counts.append(backend.count)
    assert counts == [1, 2, 2, 3] + [3] * 6


def test_a_new_scope_for_each_step_compiles_nothing():
    backend, tool = Counting(), Seen()
    compiled = torch.compile(function, backend=backend)
    for _ in range(20):
        with amanda.apply(tool, compiled="graph"):
            compiled(X)
        assert tool.taken() == ["aten::relu", "aten::add"]
    assert backend.count == 1


def test_more_tool_sets_than_dynamo_s_limit():
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    with torch._dynamo.config.patch(recompile_limit=2):
        for factor in range(6):
            tool = amanda.Tool()
            for _ in range(factor):
                tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y + 1), ops="relu")
            with amanda.apply(tool, compiled="graph"):
                assert compiled(X).tolist() == [[1.0 + factor, 3.0 + factor, 4.0 + factor]]
    assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]


def test_where_dynamo_compiles_no_more_the_eager_driver_takes_over():
    compiled = torch.compile(lambda x, name: torch.relu(x) + len(name), backend="aot_eager")
    seen = Seen()
    with torch._dynamo.config.patch(recompile_limit=1), amanda.apply(seen, compiled="graph"):
        for name in ["a", "bb", "ccc", "dddd"]:
            compiled(X, name)
            assert seen.taken() == ["aten::relu", "aten::add"]
    assert {symbolic for _, symbolic in seen.shown} == {True, False}
    torch._dynamo.reset()


def test_between_graph_breaks_the_eager_driver_takes_over_and_nothing_is_seen_twice():
    @torch.compiler.disable
    def between(x):
        return x.cos()

    compiled, seen = torch.compile(lambda x: between(x.sin()).exp(), backend="aot_eager"), Seen()
    for _ in range(2):
        with amanda.apply(seen, compiled="graph"):
            compiled(X)
        assert seen.taken() == ["aten::sin", "aten::cos", "aten::exp"]
    assert ("aten::cos", False) in seen.shown
    assert ("aten::exp", True) in seen.shown


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it where it resumes
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_code_of_tools_is_not_compiled_where_operators_run_between_graphs(backward, monkeypatch):
    traced, seen = [], []
    compile_frame = torch._dynamo.convert_frame.ConvertFrameAssert.__call__

    def note(self, frame, *args, **options):
        traced.append(frame.f_code.co_name)
        return compile_frame(self, frame, *args, **options)

    def ask_compiler(value):
        return torch.compiler.is_compiling(), value.sum()

    def routine(value):
        seen.append(ask_compiler(value)[0])

    def analysis(context):
        seen.append(ask_compiler(torch.ones(1))[0])
        if backward:
            context.insert_before_backward_op(routine)
        else:
            context.insert_before_op(routine, inputs=[0])

    @torch._dynamo.disable(recursive=False)  # what it calls may be compiled
    def between(x):
        y = x.cos()
        if backward:
            y.sum().backward()
        return y

    def program(x):
        return between(x.sin()).exp()

    tool = amanda.Tool("tool")
    tool.add_inst_for_op(analysis, ops="cos", backward=backward)
    monkeypatch.setattr(torch._dynamo.convert_frame.ConvertFrameAssert, "__call__", note)
    with torch.set_grad_enabled(backward), amanda.apply(tool, compiled="graph"):
        torch.compile(program, backend="aot_eager")(torch.ones(3, requires_grad=backward))
    torch._dynamo.reset()
    assert seen
    assert not any(seen)
    assert "program" in traced
    ours = {"analysis", "routine", "ask_compiler", "insert_before_op", "insert_before_backward_op"}
    assert ours.isdisjoint(traced)


def test_a_frame_that_is_not_to_be_traced_by_itself():
    @torch._dynamo.disable(recursive=False)
    def between(x):
        return x.cos()

    backend, seen = Counting(), Seen()
    compiled = torch.compile(lambda x: between(x.sin()), backend=backend)
    with amanda.apply(seen, compiled="graph"):
        compiled(X)
    assert seen.ran == ["aten::sin", "aten::cos"]
    assert ("aten::cos", False) in seen.shown


def test_dynamic_shapes_also_for_tools_that_come_later():
    backend, tool = Counting(), Doubled()
    compiled = torch.compile(lambda x: torch.relu(x).reshape(-1) + x.shape[0], backend=backend, dynamic=True)
    expected = [torch.relu(x).reshape(-1) * 2 + len(x) for x in map(torch.ones, [3, 5, 7], [2] * 3)]
    with amanda.apply(Seen(), compiled="graph"):
        compiled(torch.ones(3, 2))
    with amanda.apply(Seen(), tool, compiled="graph"):
        results = [compiled(torch.ones(size, 2)) for size in (3, 5, 7)]
    assert all(map(torch.equal, results, expected))
    assert backend.count == 2


def test_scopes_with_other_tools_inside():
    outer, inner = Seen(), Seen()
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    for _ in range(2):
        with amanda.apply(outer, compiled="graph"):
            compiled(X)
            with amanda.apply(inner, compiled="opaque"):
                compiled(X)
            with amanda.disabled():
                compiled(X)
    assert outer.ran == ["aten::relu", "aten::add"] * 4
    assert inner.ran == ["aten::relu", "aten::add"] * 2
    assert backend.count == 2  # with taps, and without: what a tap runs is no part of the graph


def test_another_thread_s_functions_run_without_tools():
    compiled, doubled = torch.compile(function, backend="aot_eager"), Doubled()
    results = []

    def run(scope):
        with scope:
            for _ in range(20):
                results.append((type(scope), compiled(X).tolist()))

    with amanda.apply(doubled, compiled="graph"):
        compiled(X)
    threads = [
        threading.Thread(target=run, args=(scope,))
        for scope in (amanda.disabled(), amanda.apply(doubled, compiled="graph"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    for kind, result in results:
        assert result == ([[1.0, 5.0, 7.0]] if kind is amanda.Scope else [[1.0, 3.0, 4.0]])


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "eager_then_compile", "fail_on_recompile"])
def test_stances(stance):
    compiled, seen = torch.compile(function, backend="aot_eager"), Seen()
    scope = amanda.apply(seen, compiled="graph")
    with scope:  # all recompilation is behind us
        compiled(X)
    seen.taken()
    with scope, torch.compiler.set_stance(stance):
        for _ in range(3):
            compiled(X)
            assert seen.taken() == ["aten::relu", "aten::add"]


def test_a_backend_that_a_stance_forces():
    backend, seen = Counting(), Seen()
    compiled = torch.compile(function, backend="aot_eager")
    with torch.compiler.set_stance(force_backend=backend), amanda.apply(seen, compiled="graph"):
        for _ in range(2):
            compiled(X)
            assert seen.taken() == ["aten::relu", "aten::add"]
    assert backend.count == 1


def test_a_scope_entered_inside_a_compiled_function():
    doubled = Doubled()

    @torch.compile(backend="aot_eager")
    def compiled(x):
        with amanda.apply(doubled, compiled="graph"):
            x = torch.relu(x)
        return x + 1

    assert compiled(X).tolist() == [[1.0, 5.0, 7.0]]


def test_programs_that_are_exported_have_nothing_of_ours():
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    with amanda.apply(Doubled(), compiled="graph"):
        programs = [torch.export.export(Model(), (X,), strict=strict) for strict in (True, False)]
    for program in programs:
        assert [str(node.target) for node in program.graph.nodes] == [
            "x",
            "aten.relu.default",
            "aten.add.Tensor",
            "output",
        ]


def test_what_is_in_force_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.torch.compiled._said", set())
    compiled = torch.compile(function, backend="aot_eager")
    with caplog.at_level("INFO", "amanda"):
        for policy in ("graph", "opaque") * 2:
            with amanda.apply(Seen(), compiled=policy):
                compiled(X)
    assert caplog.messages == [
        "[scope] functions compiled with torch.compile: they run compiled, with taps where tools ask for their operators",
        "[scope] functions compiled with torch.compile: they run as they are, and tools see none of their operators "
        '(compiled="opaque"); compiled="graph" instruments them',
    ]


@pytest.mark.slow
def test_what_the_compiler_itself_runs_is_not_seen():
    looks, x = Looks(), torch.ones(4, requires_grad=True)
    with fresh_cache(), apply(looks):
        differentiate(torch.compile(lambda x: x.sin().cos())(x))
    assert looks.forward == looks.backward == {"sin": 1, "cos": 1}
    assert all(each.endswith("/compile") for each in looks.namespaces)


BEFORE_THE_FIRST_SCOPE = """
    import amanda
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            x = self.layer(x)
            {registers}
            return x

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graphs, counts, x = [], [], torch.ones(3, 2)
    compiled = torch.compile(Model(), backend=backend)
    tool = amanda.Tool("looks")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda output: None))
    scopes = [amanda.apply(tool, compiled="graph") for _ in range(2)]
    for scope in [None, scopes[0], None, scopes[0], None, scopes[1], None]:
        if scope is None:
            compiled(x)
        else:
            with scope:
                compiled(x)
        counts.append(len(graphs))
    print(counts)
"""
REGISTERS = {
    "nothing": ("", False),
    "a buffer": ("self.mean = self.mean * 0.9 + x.mean(0)", True),
    "modules": ("x = torch.nn.Sequential(self.layer, self.layer)(x)", True),
    "a module that it deletes": ("self.other = self.layer; x = self.other(x); del self.other", True),
}


@pytest.mark.parametrize("registers", REGISTERS)
def test_a_function_from_before_the_first_scope_is_compiled_again_only_if_it_registers(registers, forked_python):
    line, again = REGISTERS[registers]
    after = 3 if again else 2
    printed = forked_python(BEFORE_THE_FIRST_SCOPE.replace("{registers}", line))
    assert printed.strip() == str([1, 2, *[after] * 5])
