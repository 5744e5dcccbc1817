"""Evidence: what a tool looked at, and what ran in its scopes that it did not look at."""

import threading

import amanda
import pytest
import torch
from amanda.tools.statistics import OpStatistics


class Looks(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.add_inst_for_op(self.look)
        self.add_inst_for_op(self.look, backward=True)

    def look(self, context):
        pass


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def reasons(tool):
    return {one.reason: one.count for one in tool.evidence().unseen}


def test_places_count_once_in_whatever_scope_and_however_often_they_run():
    tool, layer, x = Looks(), torch.nn.Linear(2, 2), torch.ones(1, 2)
    nothing = tool.evidence()
    assert (nothing.operators, nothing.backward_operators, nothing.is_complete) == (0, 0, True)
    for _ in range(2):
        with amanda.apply(tool):
            for _ in range(3):
                layer(x).sum().backward()
    evidence = tool.evidence()
    assert (evidence.operators, evidence.backward_operators) == (3, 5)  # ones_like, too; addmm, t, two leaves
    assert str(evidence) == "3 operators and 5 backward operators"
    assert evidence.is_complete


def step(x):
    return (x.relu() * 2).sum()


@pytest.mark.parametrize(
    ("policy", "reason", "what"),
    [
        ("eager", "eager", "1 compiled function ran eagerly, in place of the compiled code: "),
        ("opaque", "opaque", "1 compiled function ran compiled, and none of its operators was shown: "),
    ],
)
def test_compiled_functions_that_were_not_looked_at_are_named(policy, reason, what, fresh_compiler):
    tool, compiled = Looks(), torch.compile(step, backend="eager")
    with amanda.apply(tool, compiled=policy):
        for _ in range(3):
            compiled(torch.ones(2))
    assert reasons(tool) == {reason: 1}
    assert tool.evidence().not_looked_at.startswith(what + f"{__name__}.step (")
    other = Looks()
    with amanda.apply(other):
        step(torch.ones(2))
    assert other.evidence().is_complete


def test_code_that_stays_compiled_under_taps_was_looked_at(fresh_compiler):
    tool, compiled, x = Looks(), torch.compile(step, backend="aot_eager"), torch.ones(2)
    with amanda.apply(tool, compiled="graph"):
        compiled(x)
    assert tool.evidence().is_complete
    assert tool.evidence().operators == 3


def test_a_backend_that_refuses_taps_leaves_a_function_unseen(fresh_compiler):
    def backend(gm, inputs):
        if any("amanda" in str(node.target) for node in gm.graph.nodes):
            raise RuntimeError("no taps here")
        return gm.forward

    tool, compiled = amanda.Tool(), torch.compile(step, backend=backend)
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda value: None), ops="relu")
    with amanda.apply(tool, compiled="graph"):
        compiled(torch.ones(2))
    assert reasons(tool) == {"refused": 1}


def test_every_tool_of_the_scopes_on_this_thread_is_told_and_no_other(fresh_compiler):
    outer, inner, dependency, elsewhere = Looks(), Looks(), Looks(), Looks()
    inner.depends_on(dependency)
    compiled = torch.compile(step, backend="eager")
    opened, done = threading.Event(), threading.Event()

    def other_thread():
        with amanda.apply(elsewhere, compiled="opaque"):
            opened.set()
            done.wait()

    thread = threading.Thread(target=other_thread)
    thread.start()
    opened.wait()
    with amanda.apply(outer, compiled="opaque"), amanda.apply(inner, compiled="opaque"):
        compiled(torch.ones(2))
    done.set()
    thread.join()
    assert [reasons(tool) for tool in (outer, inner, dependency, elsewhere)] == [{"opaque": 1}] * 3 + [{}]


def test_coverage_adds_the_calls_that_were_not_shown():
    tool = Looks()
    with amanda.apply(tool, coverage=True):
        torch.ones(2).relu()
        with amanda.disabled():
            torch.ones(2).relu()
    assert reasons(tool)["off"] >= 2
    assert "instrumentation is switched off" in tool.evidence().not_looked_at
    clean = Looks()
    with amanda.apply(clean, coverage=True):
        torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    assert clean.evidence().is_complete


def test_a_tool_that_failed_and_was_stopped_says_so(caplog):
    def fails(context):
        raise ValueError("no")

    tool = amanda.Tool("fails")
    tool.add_inst_for_op(fails)
    with amanda.apply(tool, on_error="disable"):
        torch.ones(2)
    assert reasons(tool) == {"stopped": 1}
    assert tool.evidence().not_looked_at == "1 tool failed, and was stopped: fails"


def test_values_that_could_not_be_read_are_counted_and_those_without_elements_are_not():
    statistics = OpStatistics()
    with amanda.apply(statistics):
        torch.ones(2, device="meta").relu()
        torch.eye(2).to_sparse().abs()
    found = reasons(statistics)
    assert set(found) == {"sparse"}
    assert f"{found['sparse']} values: a sparse tensor" in str(statistics.evidence())


def test_a_scope_has_the_evidence_of_its_tools():
    tools = Looks(), Looks()
    scope = amanda.apply(*tools)
    with scope:
        torch.ones(2)
    assert [evidence.operators for evidence in scope.evidence()] == [1, 1]
