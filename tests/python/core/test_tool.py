"""Tools: what they are called, what they ask for, in which order they run."""

import re

import amanda
import pytest
import torch
from amanda.core.near_names import shown
from amanda.driver import op_names
from amanda.drivers.torch import TorchDriver

X = torch.tensor([-1.0, 2.0])


def test_a_tool_is_named_after_its_class_unless_it_says_otherwise():
    class Counter(amanda.Tool):
        pass

    assert Counter().name == "Counter"
    assert Counter("mine").name == "mine"


def test_an_analysis_runs_once_per_operator_and_its_actions_each_time(recorder):
    tool = recorder(ops="relu")
    with amanda.apply(tool):
        for _ in range(3):
            torch.relu(X)
    assert tool.trace == ["relu?", "relu<", "relu>", "relu<", "relu>", "relu<", "relu>"]


def test_one_tool_may_have_several_analyses():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: seen.append(("a", context.op.__name__)), ops="relu")
    tool.add_inst_for_op(lambda context: seen.append(("b", context.op.__name__)), ops="sin")
    tool.add_inst_for_op(lambda context: seen.append(("c", context.op.__name__)), ops=["relu", "sin"])
    with amanda.apply(tool):
        torch.relu(X)
        torch.sin(X)
    assert seen == [("a", "relu"), ("c", "relu"), ("b", "sin"), ("c", "sin")]


def test_a_require_outputs_analysis_runs_after_the_operator():
    outputs = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: outputs.append(context.has_outputs()), ops="relu")
    tool.add_inst_for_op(lambda context: outputs.append(context.outputs[0].tolist()), ops="relu", require_outputs=True)
    with amanda.apply(tool):
        torch.relu(X)
    assert outputs == [False, [0.0, 2.0]]


def test_an_analysis_may_be_registered_while_its_scope_is_open(recorder):
    tool = recorder(ops="relu")
    with amanda.apply(tool):
        torch.sin(X)
        tool.add_inst_for_op(tool.analyse, ops="sin")
        torch.sin(X)
        tool.add_inst_for_op(tool.analyse)
        torch.cos(X)
    assert tool.ran == ["sin", "cos"]


def test_tools_run_in_the_order_they_are_applied(recorder):
    trace = []
    a, b = recorder("a", ops="relu", trace=trace), recorder("b", ops="relu", trace=trace)
    with amanda.apply(b, a):
        torch.relu(X)
    assert " ".join(trace) == "b:relu? a:relu? b:relu< a:relu< b:relu> a:relu>"


def test_a_dependency_runs_first_on_both_sides_of_the_operator(recorder):
    trace = []
    a, b = recorder("a", ops="relu", trace=trace), recorder("b", ops="relu", trace=trace)
    a.depends_on(b)
    with amanda.apply(a):  # applying a tool applies what it depends on
        torch.relu(X)
    assert " ".join(trace) == "b:relu? a:relu? b:relu< a:relu< b:relu> a:relu>"


def test_dependencies_are_followed_through_several_tools(recorder):
    trace = []
    a, b, c = (recorder(name, ops="relu", trace=trace) for name in "abc")
    a.depends_on(b, c)
    c.depends_on(b)
    with amanda.apply(a, c, b):
        torch.relu(X)
    assert [event for event in trace if event.endswith("<")] == ["b:relu<", "c:relu<", "a:relu<"]


def test_an_on_demand_tool_runs_where_its_dependents_ask():
    seen = []
    namer = amanda.Tool("namer")
    namer.add_inst_for_op(lambda context: context.update(label=context.op.__name__.upper()), ops=amanda.ON_DEMAND)
    reader = amanda.Tool("reader")
    reader.depends_on(namer)
    reader.add_inst_for_op(lambda context: seen.append(context["label"]), ops=["relu", "sin"])
    with amanda.apply(reader):
        torch.relu(X)
        torch.cos(X)
        torch.sin(X)
    assert seen == ["RELU", "SIN"]
    assert repr(amanda.ON_DEMAND) == "amanda.ON_DEMAND"


def test_an_on_demand_tool_alone_sees_nothing():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(seen.append, ops=amanda.ON_DEMAND)
    with amanda.apply(tool):
        torch.relu(X)
    assert seen == []


# ---- misuse ----------------------------------------------------------------------------------------------------------


class Forgetful(amanda.Tool):
    def __init__(self):
        pass


FORGOT = "[tool] Forgetful.__init__ has not called super().__init__(); call it first"


@pytest.mark.parametrize(
    "use",
    [
        lambda: amanda.apply(Forgetful()),
        lambda: Forgetful().add_inst_for_op(print),
        lambda: Forgetful().depends_on(amanda.Tool()),
        lambda: amanda.Tool().depends_on(Forgetful()),
        lambda: Forgetful().name,
    ],
)
def test_a_forgotten_super_init_is_named(use, says):
    with says(amanda.Error, FORGOT):
        use()


def test_names_are_strings(says):
    with says(TypeError, "[tool] a tool's name is a string, got 3"):
        amanda.Tool(3)


def test_a_routine_must_be_callable(says):
    with says(TypeError, "[tool] Tool.add_inst_for_op takes a routine to call, got 3"):
        amanda.Tool().add_inst_for_op(3)


@pytest.mark.parametrize("ops", [3, ["relu", 3], [3]])
def test_ops_are_names(ops, says):
    with says(TypeError, "[tool] Tool.add_inst_for_op: ops= takes operator names, got 3"):
        amanda.Tool().add_inst_for_op(print, ops=ops)


UNKNOWN = {
    "conv2D": "no operator 'conv2D'; did you mean 'conv2d'?",
    "aten::conv2D": "no operator 'aten::conv2D'; did you mean 'aten::conv2d'?",
    "add.tensor": "no operator 'add.tensor'; did you mean 'add.Tensor'?",
    "layernorm": "no operator 'layernorm'; did you mean 'layer_norm'?",
    "(linear|relu)": "no operator '(linear|relu)'; ops= takes names, shell globs, and lists of these",
    "!linear": "no operator '!linear'; ops= takes names, shell globs, and lists of these",
    "encoder.fc1": (
        "no operator 'encoder.fc1'; those of a module are selected with modules='encoder.fc1'; if it is registered later, "
        "give its namespace as well: 'mylib::encoder.fc1'"
    ),
    "AddmmBackward0": (
        "no operator 'AddmmBackward0'; ask for backward operators by the name of the forward operator: "
        "ops='addmm', backward=True"
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_no_operator_has(name, says):
    for ops in (name, ["relu", name]):
        with says(ValueError, f"[tool] prune: {UNKNOWN[name]}"):
            amanda.Tool("prune").add_inst_for_op(print, ops=ops)


@pytest.mark.parametrize("ops", ["conv2D*", "amanda_test_unknown::conv2D", "add.Tensor", "aten::add.Tensor", "relu."])
def test_a_name_that_an_operator_has_or_may_get(ops):
    amanda.Tool().add_inst_for_op(print, ops=ops)


def test_operators_that_are_registered_late_are_known():
    with pytest.raises(ValueError, match="no operator 'amanda_test_late_op'"):
        amanda.Tool().add_inst_for_op(print, ops="amanda_test_late_op")
    seen, tool = [], amanda.Tool()
    tool.add_inst_for_op(lambda context: seen.append("before"), ops="amanda_test_late::amanda_test_late_op")

    @torch.library.custom_op("amanda_test_late::amanda_test_late_op", mutates_args=())
    def late(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    tool.add_inst_for_op(lambda context: seen.append("after"), ops="amanda_test_late_op")
    with amanda.apply(tool):
        late(X)
    assert seen == ["before", "after"]


def test_a_registered_operator_is_found_without_a_list_of_all(monkeypatch):
    def operators(driver):
        raise AssertionError("listed")

    monkeypatch.setattr(op_names, "_known", None)
    monkeypatch.setattr(TorchDriver, "operators", operators)
    amanda.Tool().add_inst_for_op(print, ops=["linear", "aten::linear", "add.Tensor", "aten::add.Tensor"])
    for unknown in ("linea", "aten::linea", "add.tensor"):
        with pytest.raises(AssertionError, match="listed"):
            amanda.Tool().add_inst_for_op(print, ops=unknown)


OBJECTS = [
    (torch.nn.functional.linear, "ops='linear'"),
    (torch.nn.Linear, "ops='linear'"),
    (torch.nn.ReLU(), "ops='relu'"),
    (torch.nn.Sequential(torch.nn.ReLU()), None),
    (torch.relu, "ops='relu'"),
    (torch.ops.aten.linear, "ops='aten::linear'"),
    (torch.ops.aten.add.Tensor, "ops='aten::add.Tensor'"),
]


@pytest.mark.parametrize(("thing", "write"), OBJECTS)
def test_what_has_the_name_of_an_operator_is_not_one(thing, write, says):
    for ops in (thing, ["relu", thing]):
        hint = f"; write {write}" if write else ""
        with says(TypeError, f"[tool] Tool.add_inst_for_op: ops= takes operator names, got {shown(thing)}{hint}"):
            amanda.Tool().add_inst_for_op(print, ops=ops)


def test_names_go_by_keyword(says):
    text = (
        "[tool] Tool.add_inst_for_op: {0}= is True or False, got {1!r}; operators are asked for by keyword: ops={1!r}"
    )
    with says(TypeError, text.format("backward", "relu")):
        amanda.Tool().add_inst_for_op(print, "relu")
    with says(TypeError, text.format("require_outputs", ["relu"])):
        amanda.Tool().add_inst_for_op(print, True, ["relu"])


@pytest.mark.parametrize("ops", ["", ["relu", ""]])
def test_an_empty_name_is_no_operator(ops, says):
    with says(ValueError, '[tool] an operator pattern is empty; give a name such as "conv2d"'):
        amanda.Tool().add_inst_for_op(print, ops=ops)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match=re.escape("has no option op=; did you mean ops=?")):
        amanda.Tool().add_inst_for_op(print, op="relu")


def test_dependencies_are_tools(says):
    with says(
        TypeError,
        "[tool] Tool.depends_on takes tools, got 3; a tool is an object of a class in amanda.tools, "
        "or of your own, which derives from amanda.Tool",
    ):
        amanda.Tool().depends_on(3)


def test_a_class_in_place_of_a_dependency_is_recognised(says):
    text = "[tool] Tool.depends_on takes tools, got <class 'amanda.core.tool.Tool'>; did you mean Tool()?"
    with says(TypeError, text):
        amanda.Tool().depends_on(amanda.Tool)


def test_a_cycle_is_printed(says):
    a, b, c = amanda.Tool("a"), amanda.Tool("b"), amanda.Tool("c")
    a.depends_on(b)
    b.depends_on(c)
    c.depends_on(a)
    with says(amanda.Error, "[resolve] dependency cycle: a -> b -> c -> a; take out one of these depends_on"):
        amanda.apply(a)


def test_a_tool_may_not_depend_on_itself(says):
    a = amanda.Tool("a")
    a.depends_on(a)
    with says(amanda.Error, "[resolve] dependency cycle: a -> a; take out one of these depends_on"):
        amanda.apply(a)
