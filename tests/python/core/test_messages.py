"""Mistakes of a first hour: each gets an answer that says who speaks, what was found, and what would work."""

import copy
import gc
import pickle
import re
import sys

import amanda
import pytest
import torch
from amanda import _tools
from torch import nn
from torch.nn import functional as F

X = torch.tensor([[-1.0, 2.0]])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Module()
        self.body.act = Act()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(self.body.act(x))


class Act(nn.Module):
    def forward(self, x):
        return torch.relu(x)


RELU_LINE = f"{__file__}:{Act.forward.__code__.co_firstlineno + 1}"
FORWARD = f"aten::relu in body.act (forward, {RELU_LINE})"
BACKWARD = f"ReluBackward0 of aten::relu in body.act (backward of {RELU_LINE})"


def relu():
    return torch.relu(X.clone().requires_grad_()).sum().backward()


def analyzing(analysis, name="tool", **options):
    tool = amanda.Tool(name)
    tool.add_inst_for_op(analysis, **({"ops": "relu"} | options))
    return tool


def run(tool, program=relu):
    with amanda.apply(tool):
        return program()


def net(x=None):
    model = Net()
    return lambda: model((X if x is None else x).clone().requires_grad_()).sum().backward()


# ---- every error names tool, routine, operator, module and line, forward or backward ----------------------------------


def divides(*operands):
    1 / 0  # noqa: B018


ACTIONS = {
    "insert_before_op": ("divides before", FORWARD),
    "insert_after_op": ("divides after", FORWARD),
    "replace_op": ("divides replacing", FORWARD),
    "insert_before_backward_op": ("divides before", BACKWARD),
    "insert_after_backward_op": ("divides after", BACKWARD),
    "replace_backward_op": ("divides replacing", BACKWARD),
}


@pytest.mark.parametrize("method", ACTIONS)
def test_a_routines_error(method, log):
    what, where = ACTIONS[method]
    tool = analyzing(lambda c: getattr(c, method)(divides))
    with pytest.raises(ZeroDivisionError) as caught:
        run(tool, net())
    assert caught.value.__notes__ == [f"[amanda] in tool 'tool': {what} {where}"]
    with amanda.apply(tool, on_error="disable"):
        net()()
    (line,) = log()
    assert line.startswith(f"[amanda] tool: {what} {where} failed: division by zero")


@pytest.mark.parametrize("method", ACTIONS)
def test_what_a_routine_returns(method):
    what, where = ACTIONS[method]
    tool = analyzing(lambda c: getattr(c, method)(lambda *operands: "text"))
    with pytest.raises(amanda.Error) as caught:
        run(tool, net())
    start = f"[action] tool: {what.replace('divides', '<lambda>')} {where}: "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(("backward", "where"), [(False, FORWARD), (True, BACKWARD)], ids=["forward", "backward"])
def test_an_analysis_error(backward, where, log):
    tool = analyzing(lambda c: 1 / 0, backward=backward)
    with pytest.raises(ZeroDivisionError) as caught:
        run(tool, net())
    assert caught.value.__notes__ == [f"[amanda] in tool 'tool': analysis of {where}"]
    with amanda.apply(tool, on_error="disable"):
        net()()
    assert log()[0].startswith(f"[amanda] tool: the analysis of {where} failed: division by zero")


def test_the_operands_a_routine_was_given_where_it_selects():
    for positions, given in ((["weight"], "input 1 (weight)"), ([0, "bias"], "input 0 (input), input 2 (bias)")):
        tool = analyzing(lambda c, which=positions: c.insert_before_op(divides, which), ops="linear")
        with pytest.raises(ZeroDivisionError) as caught:
            run(tool, net())
        assert caught.value.__notes__[0].endswith(f", given {given}")
    tool = analyzing(lambda c: c.insert_after_backward_op(divides, [0]), ops="linear")
    with pytest.raises(ZeroDivisionError) as caught:
        run(tool, net())
    assert re.search(r"after AddmmBackward0 of aten::linear in fc .*, given grad_input 0$", caught.value.__notes__[0])


def test_outside_modules_the_line_stays():
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ZeroDivisionError) as caught:
        run(analyzing(lambda c: c.insert_before_op(divides)), lambda: torch.relu(X))
    note = f"[amanda] in tool 'tool': divides before aten::relu (forward, {__file__}:{line})"
    assert caught.value.__notes__ == [note]


def test_a_position_that_is_not_there(net_error):
    tool = analyzing(lambda c: c.insert_before_op(print, ["weight"]))
    assert net_error(ValueError, tool) == (
        f"[context] tool: insert_before_op on {FORWARD}: there is no 'weight'; it has 0 (self)"
    )


def test_two_tools_that_replace_one_operator():
    first, second = (analyzing(lambda c: c.replace_op(torch.relu), name) for name in "ab")
    with pytest.raises(amanda.Error) as caught, amanda.apply(first, second):
        net()()
    assert (
        str(caught.value) == f"[plan] 'a' and 'b' both replace {FORWARD}; let one depend on the other: b.depends_on(a)"
    )


@pytest.fixture
def net_error():
    def error(kind, tool):
        with pytest.raises(kind) as caught:
            run(tool, net())
        return str(caught.value)

    return error


# ---- changed in place ------------------------------------------------------------------------------------------------

RATHER = "return a new tensor instead, or call context.may_mutate() at analysis"


def test_a_changed_input_is_named():
    def spoils(x, weight, bias):
        weight.zero_()

    model = nn.Linear(2, 2)
    with pytest.raises(amanda.Error) as caught:
        run(analyzing(lambda c: c.insert_before_op(spoils), ops="linear"), lambda: model(X))
    assert re.sub(r" \(forward, .*?\)", "", str(caught.value)) == (
        f"[action] tool: spoils before aten::linear: it changed input 1 (weight) in place, and that stays changed; {RATHER}"
    )
    assert model.weight.count_nonzero() == 0


@pytest.mark.parametrize("times", [1, 3, 200])
@pytest.mark.parametrize("position", range(3))
def test_one_changed_input_is_told_from_the_others(position, times):
    def spoils(*inputs):
        for _ in range(times):
            inputs[position].mul_(1)

    with pytest.raises(amanda.Error, match=rf"it changed input {position} \(\w+\) in place"):
        run(analyzing(lambda c: c.insert_before_op(spoils), ops="linear"), lambda: F.linear(X, torch.eye(2), X[0] * 1))


def test_two_changed_inputs():
    def spoils(x, weight, bias):
        x.zero_(), bias.zero_().zero_()

    with pytest.raises(amanda.Error, match=r"it changed input 0 \(input\) and input 2 \(bias\) in place"):
        run(
            analyzing(lambda c: c.insert_before_op(spoils), ops="linear"),
            lambda: F.linear(X * 1, X.new_ones(2, 2), X[0] * 1),
        )


@pytest.mark.parametrize(("method", "changed"), [
    ("insert_after_op", "output 0"), ("replace_op", r"input 0 \(self\)"),
    ("insert_before_backward_op", "grad_output 0"), ("insert_after_backward_op", "grad_input 0"),
])  # fmt: skip
def test_what_else_is_changed_in_place(method, changed):
    tool = analyzing(lambda c: getattr(c, method)(lambda *values: values[0].add_(1)), ops="sigmoid")
    with pytest.raises(amanda.Error, match=f"it changed {changed} in place"):
        run(tool, lambda: torch.sigmoid(X.clone().requires_grad_() * 1).backward(torch.ones(1, 2)))


@pytest.mark.parametrize("options", [{}, {"require_outputs": True}, {"backward": True}])
def test_an_analysis_that_changes_what_it_looks_at(options):
    def look(context):
        values = context.grad_outputs if options.get("backward") else context.inputs
        with torch.no_grad():
            values[0].zero_()

    operand = "grad_output 0" if options.get("backward") else r"input 0 \(self\)"
    text = (
        rf"\[analysis\] tool: the analysis of .*: it changed {operand} in place, and that stays changed; change a copy"
    )
    x = X.clone().requires_grad_()
    with pytest.raises(amanda.Error, match=text):
        run(analyzing(look, ops="sin", **options), lambda: torch.sin(x * 1).backward(torch.ones(1, 2)))


def test_an_analysis_that_changes_an_output():
    tool = analyzing(lambda c: c.outputs[0].zero_(), require_outputs=True)
    with pytest.raises(amanda.Error, match="it changed output 0 in place"):
        run(tool, lambda: torch.relu(X))


def test_an_analysis_that_may_change():
    def look(context):
        context.may_mutate()
        context.inputs[0].zero_()

    x = X.clone()
    run(analyzing(look), lambda: torch.relu(x))
    assert x.tolist() == [[0.0, 0.0]]


def test_writes_through_data_show_nowhere():
    """As docs/limitations.md says: `.data` has a version counter of its own."""
    x = X.clone()
    run(analyzing(lambda c: c.insert_before_op(lambda v: v.data.zero_() * 0)), lambda: torch.relu(x))
    assert x.tolist() == [[0.0, 0.0]]


# ---- operands that are not there yet ---------------------------------------------------------------------------------

IN_FORWARD = "in a forward analysis; register an analysis with backward=True"
BEFORE = "before it has run; register the analysis with"
NOT_YET = {
    "outputs": ({}, f"aten::relu has no outputs {BEFORE} require_outputs=True"),
    "backward_op": ({}, f"aten::relu has no backward_op {IN_FORWARD}"),
    "backward_op_id": ({}, f"aten::relu has no backward_op_id {IN_FORWARD}"),
    "grad_outputs": ({}, f"aten::relu has no grad_outputs {IN_FORWARD}"),
    "grad_inputs": ({}, f"aten::relu has no grad_inputs {IN_FORWARD}, require_outputs=True"),
    "grad_inputs ": (
        {"backward": True},
        f"ReluBackward0 of aten::relu has no grad_inputs {BEFORE} backward=True, require_outputs=True",
    ),
}


@pytest.mark.parametrize("name", NOT_YET)
def test_what_a_context_does_not_have_yet(name, says):
    options, text = NOT_YET[name]
    with says(amanda.Error, f"[context] {text}"):
        run(analyzing(lambda c: getattr(c, name.strip()), **options))
    if "backward_op" not in name:
        with says(amanda.Error, f"[context] {text}"):
            run(analyzing(lambda c: getattr(c, "get_" + name.strip())(), **options))


def test_whether_a_context_has_them():
    found = []
    tool = analyzing(lambda c: found.append((c.has_outputs(), c.has_grad_inputs())))
    for options in ({"require_outputs": True}, {"backward": True}, {"backward": True, "require_outputs": True}):
        tool.add_inst_for_op(lambda c: found.append((c.has_outputs(), c.has_grad_inputs())), ops="relu", **options)
    x = X.clone().requires_grad_() * 1
    run(tool, lambda: torch.relu(x).sum().backward())
    assert found == [(False, False), (True, False), (True, False), (True, True)]


def test_the_original_amandas_question_is_answered():
    found = []
    run(analyzing(lambda c: found.append((c.get_backward_op(), c.get_backward_op_id()))))
    assert found == [(None, None)]


# ---- contexts --------------------------------------------------------------------------------------------------------


def sets(name):
    return lambda context: setattr(context, name, 1)


ATTRIBUTES = {
    "mask =": (sets("mask"), '[context] a context keeps values under keys: context["mask"] = ...'),
    "inputs =": (
        sets("inputs"),
        "[context] inputs of a context cannot be set; routines change operands: return the new values from a routine of "
        "insert_before_op, insert_after_op or replace_op",
    ),
    "mask": (lambda c: c.mask, "[context] a context has no attribute 'mask'; keys are read with context[\"mask\"]"),
    "key": (lambda c: (c.update(key=1), c.key), "[context] a context has no attribute 'key'; write context[\"key\"]"),
    "input": (lambda c: c.input, "[context] a context has no attribute 'input'; did you mean context.inputs?"),
    "name": (lambda c: c.name, "[context] a context has no attribute 'name'; did you mean context.op.__name__?"),
}


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_attributes_of_a_context(what, says):
    analysis, text = ATTRIBUTES[what]
    with says(AttributeError, text):
        run(analyzing(analysis))


def test_looking_for_attributes_of_a_context():
    found = []
    run(analyzing(lambda c: found.extend((hasattr(c, "mask"), getattr(c, "mask", 3), hasattr(c, "op")))))
    assert found == [False, 3, True]


def reads(context):
    return context["k"]


def leaves(context):
    context["k"] = 1


def dependent(*dependencies, **options):
    tool = analyzing(reads, "reader", **options)
    tool.depends_on(*dependencies)
    return tool


KEYS = {
    "filter": (
        lambda: dependent(analyzing(leaves, "leaver", ops="conv2d")),
        "'leaver', which reader depends on, did not see this operator: it asks for conv2d. Keys here: none",
    ),
    "far": (
        lambda: dependent(analyzing(leaves, "leaver", ops="conv2d"), analyzing(lambda c: c.update(a=1, b=2), "other")),
        "'leaver', which reader depends on, did not see this operator: it asks for conv2d; "
        "'other', which reader depends on, left none. Keys here: 'a', 'b'",
    ),
    "later": (
        lambda: dependent(analyzing(leaves, "leaver", require_outputs=True)),
        "'leaver', which reader depends on, is analyzed after the operator (require_outputs=True), and this analysis runs "
        "before it. Keys here: none",
    ),
    "backward": (
        lambda: dependent(analyzing(leaves, "leaver", backward=True)),
        "'leaver', which reader depends on, has analyses of backward operators only. Keys here: none",
    ),
    "none": (
        lambda: analyzing(reads, "reader"),
        "'reader' depends on no tool; one that leaves keys for it must run first: depends_on(...). Keys here: none",
    ),
}


@pytest.mark.parametrize("what", KEYS)
def test_a_key_that_no_tool_left(what):
    make, text = KEYS[what]
    with pytest.raises(KeyError) as caught:
        run(make())
    assert caught.value.args == ("k",)
    assert caught.value.__notes__[0] == f"[amanda] no key 'k' on aten::relu: {text}"


def test_a_key_that_is_asked_for_after_the_analysis():
    contexts = []
    with amanda.apply(analyzing(contexts.append)):
        relu()
        with pytest.raises(KeyError) as caught:
            contexts[0]["k"]
    assert not hasattr(caught.value, "__notes__")
    assert contexts[0].get("k") is None


# ---- tools -----------------------------------------------------------------------------------------------------------


class Named(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.name = "mine"


def test_a_tools_name(says):
    with says(AttributeError, "[tool] the name of a tool is set when it is created: super().__init__('mine') in "
                              "Named.__init__"):  # fmt: skip
        Named()


def test_what_is_no_tool():
    tool = amanda.Tool("one")
    for call, where in ((amanda.apply, "[scope] apply"), (tool.depends_on, "[tool] one.depends_on")):
        name = where.rpartition(".")[2].split()[-1]
        for given, meant in (
            ([tool], f"; give them one by one: {name}(*tools)"),
            (amanda.Tool, "; did you mean Tool()?"),
            (
                _tools.make_flops(False, False)[0],
                f"; a tool in C++ is wrapped: {name}(amanda.tool.NativeTool(capsule))",
            ),
            (3, "; a tool is an object of a class in amanda.tools, or of your own, which derives from amanda.Tool"),
        ):
            with pytest.raises(TypeError) as caught:
                call(given)
            assert str(caught.value) == f"{where} takes tools, got {given!r}{meant}"


def test_a_tool_is_no_scope(says):
    with says(TypeError, "[tool] Tool is a tool, not a scope; write: with amanda.apply(tool):"), amanda.Tool():
        pass


def test_an_analysis_that_would_not_run(says):
    def analyze(context):
        yield context

    async def analyze_later(context):
        pass

    why = "is a generator or a coroutine function, and calling it would run nothing; write it without yield and async"
    for routine in (analyze, analyze_later):
        with says(TypeError, f"[tool] tool.add_inst_for_op: {routine.__name__} {why}"):
            analyzing(routine)


def copies():
    kept = []
    scope = amanda.apply(analyzing(lambda c: kept.extend((c, c.insert_before_op(print, [])))))
    with scope:
        torch.relu(X)
    return {"tool": amanda.Tool(), "scope": scope, "context": kept[0], "action": kept[1]}


COPIED = {
    "tool": "[tool] Tool cannot be copied or pickled: a tool belongs to its process; create another one, and pass on what "
    "it found as plain data",
    "scope": "[scope] a scope cannot be copied or pickled: it belongs to its process; call amanda.apply where it is used",
    "context": "[context] a context belongs to its scope, and cannot be copied or pickled; take dict(context), or the "
    "values that you need",
}


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("what", COPIED)
def test_copies(what, how, says, capsys):
    kept = copies()
    with says(TypeError, COPIED[what]):
        how(kept[what])
    assert dict(kept["context"]) == {}


# ---- scopes ----------------------------------------------------------------------------------------------------------


def test_a_scope_that_is_never_entered():
    line = sys._getframe().f_lineno + 2
    with pytest.warns(UserWarning, match="was never entered") as caught:
        amanda.apply(amanda.Tool("one"), amanda.Tool("two"))
    (warning,) = caught
    assert str(warning.message) == (
        "[scope] the scope of one, two was never entered, so nothing was instrumented; write: with amanda.apply(...):"
    )
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_a_scope_that_is_used(recwarn):
    with amanda.apply(amanda.Tool()):
        pass

    @amanda.apply(amanda.Tool())
    def decorated():
        pass

    del decorated
    gc.collect()
    assert list(recwarn) == []


def test_a_scope_that_is_not_entered_by_the_end_of_the_program(forked_python):
    code = """
        import sys, warnings, amanda
        sys.stderr = sys.stdout
        scope = amanda.apply(amanda.Tool("late"))
        print("end")
    """
    end, _, warning = forked_python(code).partition("\n")
    assert end == "end"
    assert "<string>:4: UserWarning: [scope] the scope of late was never entered" in warning


def test_a_scope_decorates_no_class(says):
    with says(TypeError, "[scope] a scope decorates functions, got <class 'torch.nn.modules.linear.Linear'>"):
        amanda.apply(amanda.Tool())(nn.Linear)


@pytest.mark.parametrize("op_id", [-1, 1 << 70, True, 1.0, "relu"])
def test_cache_clear_takes_an_id(op_id, says):
    text = f"[scope] cache_clear takes an operator's id, such as context.op_id, got {op_id!r}"
    with says(TypeError, text):
        amanda.apply(amanda.Tool()).cache_clear(op_id)


# ---- scheduling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["with_run", "differentiable", "allow_view"])
@pytest.mark.parametrize("value", ["yes", None, []])
def test_flags(flag, value, says):
    with says(TypeError, f"[context] {flag}= is True or False, got {value!r}"):
        run(analyzing(lambda c: c.insert_before_op(print, **{flag: value})))


def test_a_position_beyond_all_integers(says):
    with says(ValueError, f"[context] inputs= has no position {1 << 70}"):
        run(analyzing(lambda c: c.insert_before_op(print, [1 << 70])))


def test_run_is_the_routines_dict(says):
    text = "[context] tool: insert_before_op on aten::relu: run= is what with_run=True passes to <lambda>; give yours " \
           "another name"  # fmt: skip
    with says(TypeError, text):
        run(analyzing(lambda c: c.insert_before_op(lambda x, run: None, with_run=True, run=3)))


def test_an_operator_is_no_string(says):
    text = "[context] an operator is never equal to a text; compare its name: context.op.__name__ == 'relu'"
    with says(TypeError, text):
        run(analyzing(lambda c: c.op == "relu"))
    with says(TypeError, text.replace("'relu'", "'add'")):
        run(analyzing(lambda c: c.op in ("add", "relu")))


# ---- what a replacement returns --------------------------------------------------------------------------------------


def test_a_tuple_of_one_is_the_result():
    tool = analyzing(lambda c: c.replace_op(lambda x: (x * 10,)))
    assert run(tool, lambda: torch.relu(X)).tolist() == [[-10.0, 20.0]]
    tool = analyzing(lambda c: c.replace_backward_op(lambda g: (g * 10,)))
    x = X.clone().requires_grad_() * 1
    assert torch.autograd.grad(run(tool, lambda: torch.relu(x).sum()), x)[0].tolist() == [[0.0, 1.0]]
    with amanda.apply(tool):
        assert torch.autograd.grad(torch.relu(x).sum(), x)[0].tolist() == [[10.0, 10.0]]


def test_a_tuple_of_one_is_a_list_where_the_result_is_one():
    tool = analyzing(lambda c: c.replace_op(lambda x, *_: (x[0] * 10,), allow_view=True), ops="unbind")
    (result,) = run(tool, lambda: torch.unbind(X))
    assert result.tolist() == [-10.0, 20.0]


def test_a_backward_action_waits_until_gradients_are_recorded():
    """It is no mistake to schedule one under no_grad: the same operator may record later."""
    ran = []
    tool = analyzing(lambda c: c.insert_before_backward_op(lambda g: ran.append(1)))
    model = Act()
    with amanda.apply(tool):
        for x in (X, X.clone().requires_grad_()):
            y = model(x)
            assert ran == []
    y.sum().backward()
    assert ran == []
    with amanda.apply(tool):
        model(x).sum().backward()
    assert ran == [1]
