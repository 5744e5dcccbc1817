"""Functions compiled with torch.compile, in scopes of either policy."""

import threading

import amanda
import pytest
import torch
from amanda.drivers.torch.compiled import functions_run_eagerly
from torch._dynamo import eval_frame

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


class Names(amanda.Tool):
    """The operators that it saw, in order."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.add_inst_for_op(lambda context: context.insert_before_op(self.note, inputs=[], name=context.op.name))

    def note(self, name):
        self.seen.append(name)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    assert eval_frame._callback_from_stance.__module__ == eval_frame.__name__
    assert "enter_exit_hooks" not in vars(eval_frame._TorchDynamoContext)
    torch._dynamo.reset()


def function(x):
    return (torch.relu(x) * 2).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_eager_ones_run_eagerly_and_are_seen(backend):
    compiled = torch.compile(function, backend=backend)
    x = torch.randn(4)
    outside = compiled(x)
    tool = Names()
    with amanda.apply(tool, compiled="eager"):
        inside = compiled(x)
    assert tool.seen == ["aten::relu", "aten::mul", "aten::sum"]
    assert torch.equal(inside, function(x))
    assert torch.equal(compiled(x), outside)


@pytest.mark.parametrize("policy", ["auto", "eager"])
def test_functions_that_insist_on_one_graph_are_seen_too(policy):
    inner = torch.compile(function, backend="eager", fullgraph=True)
    outer = torch.compile(lambda x: inner(x) + 1, backend="eager", fullgraph=True)
    tool, x = Names(), torch.randn(4)
    with amanda.apply(tool, compiled=policy):
        result = outer(x)
    assert torch.equal(result, outer(x))
    assert tool.seen == ["aten::relu", "aten::mul", "aten::sum", "aten::add"]


def test_a_function_compiled_in_the_scope_is_seen_too():
    tool, x = Names(), torch.randn(4)
    with amanda.apply(tool):
        torch.compile(function, backend="eager")(x)
    assert tool.seen == ["aten::relu", "aten::mul", "aten::sum"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_opaque_ones_run_compiled_and_unseen(backend):
    compiles = []

    def counting(graph, inputs):
        compiles.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(function, backend=counting)
    x, leaf = torch.randn(4), torch.randn(4, requires_grad=True)
    expected = compiled(x)
    compiled(leaf).backward()
    expected_gradient, leaf.grad = leaf.grad, None
    tool, backward = Names(), []
    tool.add_inst_for_op(lambda context: backward.append(context.op.name), backward=True)
    with amanda.apply(tool, compiled="opaque"):
        result = compiled(x)
        compiled(leaf).backward()
        assert tool.seen == ["aten::ones_like"]  # backward() itself: the first gradient
        assert backward == []
        x.neg()
    assert tool.seen[1:] == ["aten::neg"]
    assert torch.equal(result, expected)
    assert torch.equal(leaf.grad, expected_gradient)
    assert compiles


def test_what_runs_after_a_compiled_function_that_failed_is_seen():
    @torch.compile(backend="eager")
    def failing(x):
        return torch.relu(x) + torch.ones(3)

    tool = Names()
    with amanda.apply(tool, compiled="opaque"):
        with pytest.raises(Exception, match="size"):
            failing(torch.randn(4))
        torch.ones(2).neg()
    assert tool.seen[-1] == "aten::neg"
    assert "aten::relu" not in tool.seen


def test_a_compiled_module():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(1, 2)
    vanilla = compiled(x)
    eager, opaque = Names(), Names()
    with amanda.apply(eager, compiled="eager"):
        compiled(x)
    with amanda.apply(opaque, compiled="opaque"):
        result = compiled(x)
    assert torch.equal(result, vanilla)
    assert eager.seen == ["aten::linear", "aten::relu"]
    assert opaque.seen == []


def test_of_overlapping_scopes_the_last_one_left_ends_it():
    compiled, x = torch.compile(function, backend="eager"), torch.randn(4)
    first, second = Names(), Names()
    inner = amanda.apply(second)
    with amanda.apply(first):
        inner.__enter__()
        compiled(x)
    compiled(x)
    inner.__exit__(None, None, None)
    compiled(x)
    assert first.seen == ["aten::relu", "aten::mul", "aten::sum"]
    assert second.seen == ["aten::relu", "aten::mul", "aten::sum"] * 2


def test_another_thread_s_functions_run_compiled():
    graphs_run = []

    def counting(graph, inputs):
        return lambda *args: graphs_run.append(1) or graph(*args)

    compiled, x = torch.compile(function, backend=counting), torch.randn(4)
    with amanda.apply(Names(), compiled="eager"):
        compiled(x)
        assert graphs_run == []
        thread = threading.Thread(target=compiled, args=(x,))
        thread.start()
        thread.join()
        assert graphs_run == [1]


@pytest.mark.parametrize("policy", ["eager", "opaque"])
def test_cond_compiles_its_branches_all_the_same(policy):
    x = torch.tensor([0.3, 0.7], requires_grad=True)

    def program():
        x.grad = None
        torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,)).sum().backward()
        return x.grad

    expected = program()
    with amanda.apply(Names(), compiled=policy):
        gradients = [program() for _ in range(2)]
    assert all(torch.equal(gradient, expected) for gradient in gradients)


def test_opaque_inside_eager_runs_eagerly_and_both_see():
    compiled = torch.compile(function, backend="eager")
    outer, inner, x = Names(), Names(), torch.randn(4)
    with amanda.apply(outer, compiled="eager"), amanda.apply(inner, compiled="opaque"):
        compiled(x)
    assert outer.seen == inner.seen == ["aten::relu", "aten::mul", "aten::sum"]


class Compiled(torch.nn.Module):
    def forward(self, x):
        return x.sin()


def test_each_function_that_runs_eagerly_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.torch.compiled._run_eagerly", {})
    compiled = torch.compile(function, backend="eager")
    modules = torch.compile(Compiled(), backend="eager"), Compiled()
    modules[1].compile(backend="eager")
    with amanda.apply(Names(), compiled="eager"):
        assert caplog.messages == []  # nothing was compiled yet
        for _ in range(2):
            compiled(torch.ones(4))
            torch.compile(function, backend="eager")(torch.ones(4))
            for module in modules:
                module(torch.ones(4))
    places = [
        f"{code.__module__}.{code.__qualname__} ({__file__}:{code.__code__.co_firstlineno})"
        for code in (function, Compiled.forward)
    ]
    assert caplog.messages == [
        f"[scope] {place} is compiled with torch.compile, and runs eagerly in this scope. Its results may differ in the "
        "last bits from those of the compiled function, and its random numbers are others. Apply the tools with "
        'compiled="graph" to instrument compiled functions, or with compiled="opaque" to run them as they are, unseen '
        "(said once for each function)"
        for place in places
    ]
    assert functions_run_eagerly() == places


def test_an_unknown_policy():
    with pytest.raises(
        ValueError, match=r"\[scope\] compiled is \"auto\" or \"eager\" or \"graph\" or \"opaque\", got 'inductor'"
    ):
        amanda.apply(Names(), compiled="inductor")


def test_a_scope_entered_inside_a_compiled_function():
    tool = Names()

    @torch.compile(backend="eager")
    def function(x):
        with amanda.apply(tool):
            return torch.relu(x)

    x = torch.randn(2)
    assert torch.equal(function(x), torch.relu(x))
    assert "aten::relu" in tool.seen  # and operators of the compiler, which runs inside


def test_dynamo_is_not_imported_for_us_and_found_when_it_is(forked_python):
    forked_python("""
        import sys, amanda, torch
        seen = []
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda context: context.insert_before_op(lambda: seen.append(1), inputs=[]), ops="relu")
        with amanda.apply(tool):
            torch.relu(torch.ones(2))
            assert "torch._dynamo" not in sys.modules
            torch.compile(torch.relu, backend="eager")(torch.ones(2))
        assert len(seen) == 2, seen
    """)
