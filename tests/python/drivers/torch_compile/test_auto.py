"""`compiled="auto"`, the default: compiled where all tools can work on compiled code, else eager."""

import amanda
import pytest
import torch
from amanda.drivers.torch import compiled as policies
from amanda.tools.check import Check
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.checkpoint import checkpoint

X = torch.tensor([1.0, -2.0, 3.0])
NO_VALUE = GuardOnDataDependentSymNode, DataDependentOutputException


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(policies, "_run_eagerly", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Kinds(amanda.Tool):
    """Whether each operator that was analyzed is one of a graph, and the names of those that ran."""

    def __init__(self):
        super().__init__()
        self.symbolic, self.ran = [], []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        self.symbolic.append(context.is_symbolic)
        context.insert_before_op(self.note, inputs=[], name=context.op.name)

    def note(self, name):
        self.ran.append(name)


class ReadsValues(Kinds):
    """Its analysis decides by a value, which an activation has in eager mode only."""

    def analyze(self, context):
        if context.inputs[0].abs().max() < 100:
            super().analyze(context)


class Fails(Kinds):
    def analyze(self, context):
        raise ValueError("not today")


class Unable(Kinds):
    needs_eager = "it says so"


class LeavesOut(Unable):
    leaves_compiled_out = True


def function(x):
    return (torch.relu(x) * 2).sum()


NAMES = ["aten::relu", "aten::mul", "aten::sum"]


def compiled(function=function, graphs=None, **options):
    """Compiled by a backend that notes the graphs that run."""

    def backend(graph, inputs):
        return lambda *inputs: (graphs.append(1) if graphs is not None else None, graph(*inputs))[1]

    return torch.compile(function, backend=backend, **options)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "amanda" and record.levelno >= 30]


def test_it_is_the_default_and_stays_compiled(caplog):
    graphs, tool = [], Kinds()
    run = compiled(graphs=graphs)
    expected = run(X)
    with amanda.apply(tool):
        result = run(X)
    assert torch.equal(result, expected)
    assert (tool.ran, tool.symbolic) == (NAMES, [True] * 3)
    assert len(graphs) == 2
    assert warnings_of(caplog) == []


def test_random_numbers_are_those_of_the_compiled_function():
    run = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5).sin())
    x = torch.ones(64)
    torch.manual_seed(0)
    expected = run(x)
    with amanda.apply(Kinds()):
        torch.manual_seed(0)
        result = run(x)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("make", [Unable, LeavesOut])
def test_a_tool_that_says_it_cannot_runs_eagerly_and_one_sentence_says_why(make, caplog):
    graphs, tool = [], make()
    with amanda.apply(tool):
        compiled(graphs=graphs)(X)
    assert (tool.ran, tool.symbolic, graphs) == (NAMES, [False] * 3, [])
    (text,) = warnings_of(caplog)
    assert f"runs eagerly in this scope: {make.__name__} can't work on compiled code: it says so. Its results" in text
    assert [one.reason for one in tool.evidence().unseen] == ["eager"]


def test_a_tool_that_another_depends_on_counts():
    tool, needed = Kinds(), Unable()
    tool.depends_on(needed)
    with amanda.apply(tool):
        compiled()(X)
    assert tool.symbolic == needed.symbolic == [False] * 3


@pytest.mark.parametrize("outside", [True, False])
def test_one_that_leaves_compiled_code_out_does_not_force_another_scope(outside):
    graphs, able, unable = [], Kinds(), Check()
    scopes = [amanda.apply(able), amanda.apply(unable)]
    with scopes[outside], scopes[not outside]:
        compiled(graphs=graphs)(X)
    assert (able.symbolic, graphs) == ([True] * 3, [1])
    assert unable.skipped.keys() == {"compiled"}


def test_one_that_edits_and_cannot_is_obeyed():
    """Without its edits the program would compute something else than its user believes."""
    graphs, able, unable = [], Kinds(), Unable()
    with amanda.apply(able), amanda.apply(unable):
        compiled(graphs=graphs)(X)
    assert (able.symbolic, unable.symbolic, graphs) == ([False] * 3, [False] * 3, [])


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_analysis_that_turns_out_not_to_work_on_symbols(fullgraph, caplog):
    tool = ReadsValues()
    run = compiled(fullgraph=fullgraph)
    with amanda.apply(tool):
        results = [run(X) for _ in range(3)]
    assert all(torch.equal(result, function(X)) for result in results)
    assert tool.ran == NAMES * 3
    assert not any(tool.symbolic)
    (text,) = warnings_of(caplog)
    assert "it fails on compiled code in tool 'ReadsValues': analysis of aten::relu (forward, " in text
    assert [one.reason for one in tool.evidence().unseen] == ["eager"]


def test_after_a_graph_break():
    tool = ReadsValues()

    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return torch.relu(y).sum()

    run = compiled(broken)
    with amanda.apply(tool):
        results = [run(X) for _ in range(2)]
    assert all(torch.equal(result, broken(X)) for result in results)
    assert tool.ran == ["aten::mul", "aten::relu", "aten::sum"] * 2


def test_an_error_of_the_tool_itself_is_raised_in_either_mode():
    with pytest.raises(ValueError, match="not today"), amanda.apply(Fails()):
        compiled()(X)


def test_a_function_that_has_run_under_another_tool_says_what_to_do():
    run = compiled()
    with amanda.apply(Kinds()):
        run(X)
    with pytest.raises(NO_VALUE) as raised, amanda.apply(ReadsValues()):
        run(X)
    assert raised.value.__notes__[-1] == (
        '[scope] in a function that is compiled with torch.compile; with compiled="eager" it runs eagerly'
    )
    with amanda.apply(ReadsValues(), compiled="eager"):
        run(X)


def test_an_explicit_graph_does_not_fall_back():
    with pytest.raises(NO_VALUE), amanda.apply(ReadsValues(), compiled="graph"):
        compiled()(X)


def test_a_graph_that_takes_no_taps_runs_eagerly_once_it_is_known(monkeypatch, caplog):
    from amanda.drivers.torch_compile.front import compiled_function

    def refuse(*args):
        raise NotImplementedError("no taps here")

    monkeypatch.setattr(compiled_function, "SharedProgram", refuse)
    tool, run = Kinds(), compiled()
    with amanda.apply(tool):
        results = [run(X) for _ in range(2)]
    assert all(torch.equal(result, function(X)) for result in results)
    assert (tool.ran, tool.symbolic) == (NAMES * 2, [False] * 3)
    (text,) = warnings_of(caplog)
    assert "runs eagerly in this scope: no taps can be put into it: NotImplementedError: no taps here. Its" in text


def test_a_build_without_the_driver_runs_functions_eagerly(monkeypatch, caplog):
    monkeypatch.setattr(policies, "_why_no_graphs", lambda: "this build has no driver for compiled functions")
    tool = Kinds()
    with amanda.apply(tool):
        compiled()(X)
    assert (tool.ran, tool.symbolic) == (NAMES, [False] * 3)
    (text,) = warnings_of(caplog)
    assert "runs eagerly in this scope: this build has no driver for compiled functions. Its" in text


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_region_is_recomputed_as_it_ran(use_reentrant):
    x, tool, run = X.clone().requires_grad_(), ReadsValues(), compiled(lambda x: (x.exp() * x).sin())
    expected = torch.autograd.grad((x.exp() * x).sin().sum(), x)[0]
    with amanda.apply(tool):
        checkpoint(run, x, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(x.grad, expected)
