"""`Scope.describe`, and what actions and contexts print of what is scheduled."""

import gc
import re
import threading

import amanda
import pytest
import torch

X = torch.tensor([[-1.0, 2.0]])


def look(*values):
    pass


def keep(*values):
    pass


class Looks(amanda.Tool):
    """Schedules what `schedule(context)` does, on the operators asked for."""

    def __init__(self, schedule, name="looks", **options):
        super().__init__(name)
        self.add_inst_for_op(schedule, **options)


def schedule_three(context):
    context.insert_after_op(look)
    context.insert_before_op(keep, inputs=["weight", 0])
    context.insert_before_op(look, inputs=[])


MODEL = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())


def described(*tools, run=lambda: MODEL(X)):
    scope = amanda.apply(*tools)
    with scope:
        run()
    return scope.describe()


# ---- describe ----------------------------------------------------------------------------------------------------------


def test_rows_say_where_and_what_in_the_order_in_which_it_runs():
    replaces = Looks(lambda context: context.replace_op(context.op), "replaces", ops="relu")
    rows = described(
        Looks(schedule_three, ops="linear"), Looks(schedule_once, "second", ops=["linear", "relu"]), replaces
    ).rows()
    assert [(row.operator, row.tool, row.routine, row.when, row.operands) for row in rows] == [
        ("aten::linear", "looks", "keep", "before", ("weight", "input")),
        ("aten::linear", "looks", "look", "before", ()),
        ("aten::linear", "second", "look", "before", None),
        ("aten::linear", "looks", "look", "after", None),
        ("aten::relu", "second", "look", "before", None),
        ("aten::relu", "replaces", "relu", "replace", None),
    ]
    assert {row.module_path for row in rows} == {"0", "1"}
    assert all(row.source.rpartition(":")[0] == __file__ for row in rows)
    assert {(row.phase, row.backward_operator, row.backward_op_id) for row in rows} == {("forward", "", None)}


def schedule_once(context):
    context.insert_before_op(look)


def test_ids_are_those_of_contexts():
    ids = []
    tool = Looks(lambda context: (ids.append(context.op_id), context.insert_before_op(look)), ops="linear")
    (row,) = described(tool).rows()
    assert [row.op_id] == ids


def test_backward_routines_are_listed_where_they_were_scheduled():
    def train():
        MODEL(X).sum().backward()

    from_forward = Looks(
        lambda context: context.insert_after_backward_op(look, grad_inputs=[1]), "forward", ops="linear"
    )
    from_backward = Looks(
        lambda context: context.insert_before_backward_op(keep), "backward", ops="relu", backward=True
    )
    scope = described(from_forward, from_backward, run=train)
    assert [
        (row.operator, row.backward_operator, row.phase, row.when, row.operands, row.backward_op_id is None)
        for row in scope.rows()
    ] == [
        ("aten::linear", "", "backward", "after", (1,), True),
        ("aten::relu", "ReluBackward0", "backward", "before", None, False),
    ]
    table = str(scope)
    assert "after each backward operator" in table
    assert "grad_inputs 1" in table
    assert "ReluBackward0 of aten::relu" in table
    assert "all grad_outputs" in table
    with torch.no_grad():
        MODEL[0].weight.grad = MODEL[0].bias.grad = None


def test_it_works_while_the_scope_is_open_and_in_routines_and_on_another_thread():
    seen = []

    def analyze(context):
        context.insert_before_op(routine, inputs=[])
        seen.append(len(scope.describe().rows()))

    def routine():
        seen.append(len(scope.describe().rows()))

    scope = amanda.apply(Looks(analyze, ops="relu"))
    with scope:
        MODEL(X)
        thread = threading.Thread(target=lambda: seen.append(len(scope.describe().rows())))
        thread.start()
        thread.join()
    assert seen == [0, 1, 1]
    assert len(scope.describe().rows()) == 1


def test_what_was_removed_or_forgotten_is_not_listed():
    actions = []
    scope = amanda.apply(Looks(lambda context: actions.append(context.insert_before_op(look)), ops=["linear", "relu"]))
    with scope:
        MODEL(X)
    description = scope.describe()
    actions[0].remove()
    assert [row.operator for row in scope.describe().rows()] == ["aten::relu"]
    scope.cache_clear()
    assert scope.describe().rows() == []
    assert str(scope.describe()) == "nothing is scheduled"
    assert len(description.rows()) == 2  # as it was


def test_a_tool_that_stopped_is_named(caplog):
    def fails(*values):
        raise KeyError("x")

    scope = amanda.apply(
        Looks(lambda context: context.insert_before_op(fails), "fails", ops="relu"),
        Looks(schedule_once, ops="relu"),
        on_error="disable",
    )
    with scope:
        MODEL(X)
    description = scope.describe()
    assert [row.tool for row in description.rows()] == ["looks"]
    assert description.stopped == ("fails",)
    assert str(description).splitlines()[-1] == "stopped after a failure: fails"
    assert "stopped after a failure: fails" in description._repr_html_()


def test_a_native_tool_is_described():
    from amanda.tools.flops import Flops

    rows = described(Flops()).rows()
    assert [(row.operator, row.tool, row.routine, row.when, row.operands) for row in rows] == [
        ("aten::linear", "flops", "a C++ routine", "after", ()),
        ("aten::addmm", "flops.counter", "a C++ routine", "before", ("mat1", "mat2")),
        ("aten::addmm", "flops.counter", "a C++ routine", "after", ()),
        ("aten::relu", "flops", "a C++ routine", "after", ()),
    ]


def test_the_table_names_an_operator_once():
    lines = described(Looks(schedule_three, ops="linear")).table().splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"operator +module +line +when +tool +routine +gets +id", lines[0])
    assert re.fullmatch(
        r"aten::linear +0 +\S+test_describe\.py:\d+ +before +looks +keep +inputs weight, input +0x\w+", lines[1]
    )
    assert re.fullmatch(r" +before +looks +look +none", lines[2])
    assert re.fullmatch(r" +after +looks +look +all outputs", lines[3])


def test_the_table_is_sorted_cut_and_shortened():
    description = described(Looks(schedule_once, "b", ops="linear"), Looks(schedule_once, "a", ops=["linear", "relu"]))
    lines = description.table(sort="tool", top=2).splitlines()
    assert [" a " in line for line in lines[1:3]] == [True, True]
    assert lines[3] == "and 1 more"
    narrow = description.table(width=100).splitlines()
    assert max(map(len, narrow)) <= 100
    assert "…" in narrow[1]
    assert narrow[1].index("test_describe.py:") > narrow[1].index("…")  # from the left
    with pytest.raises(ValueError, match=r'rows are sorted by "order", "operator", "module" or "tool", got \'runs\''):
        description.table(sort="runs")


def test_notebooks_show_a_table():
    page = described(Looks(schedule_three, "<b>", ops="linear"))._repr_html_()
    assert page.count("<table") == 1
    assert "&lt;b&gt;" in page
    assert page.count("<tr") == 4


def test_pandas():
    frame = described(Looks(schedule_three, ops="linear")).to_pandas()
    assert list(frame.when) == ["before", "before", "after"]
    assert frame.op_id.dtype == "uint64"
    assert (
        repr(described(Looks(schedule_three, ops="linear"))) == "<amanda scope description: 3 routines at 1 operators>"
    )


# ---- actions -----------------------------------------------------------------------------------------------------------


def actions_of(schedule, run=lambda: MODEL(X), **options):
    kept, texts = [], []

    def analyze(context):
        kept.append(schedule(context))
        texts.append(repr(kept[-1]))

    scope = amanda.apply(Looks(analyze, **options))
    with scope:
        run()
    return scope, kept, texts


def place(module):
    return rf" in {module} at \S*test_describe\.py:\d+"


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda c: c.insert_before_op(look, inputs=["weight"]), r"look before aten::linear with inputs=\['weight'\]"),
        (
            lambda c: c.insert_before_op(look, inputs=[1, 0]),
            r"look before aten::linear with inputs=\['weight', 'input'\]",
        ),
        (lambda c: c.insert_before_op(look, inputs=[]), r"look before aten::linear with inputs=\[\]"),
        (lambda c: c.insert_after_op(look), "look after aten::linear"),
        (lambda c: c.replace_op(c.op), "linear in place of aten::linear"),
        (
            lambda c: c.insert_before_backward_op(look, grad_outputs=[0]),
            r"look before each backward operator of aten::linear with grad_outputs=\[0\]",
        ),
    ],
)
def test_an_action_prints_what_runs_where(schedule, says):
    scope, (action,), (text,) = actions_of(schedule, ops="linear")
    assert re.fullmatch(f"<amanda\\.Action looks: {says}{place(0)}>", text), text
    assert repr(action) == text
    scope.cache_clear()
    assert repr(action) == text.removesuffix(">") + "; removed>"


def test_an_action_on_a_backward_operator_prints_both():
    _, _, (text,) = actions_of(
        lambda context: context.insert_after_backward_op(look, grad_inputs=[0]),
        run=lambda: torch.autograd.grad(torch.relu(MODEL[0](X)).sum(), list(MODEL.parameters())),
        ops="relu",
        backward=True,
    )
    assert "look after ReluBackward0 of aten::relu with grad_inputs=[0] at " in text


def test_an_action_prints_after_its_scope_and_its_tool_are_gone():
    _, (action,), (text,) = actions_of(lambda context: context.insert_before_op(look), ops="linear")
    _ = None
    gc.collect()
    assert repr(action) == text.removesuffix(">") + "; removed>"


def test_an_overload_is_named():
    _, _, texts = actions_of(lambda context: context.insert_before_op(look), run=lambda: X + 1, ops="add")
    assert texts[0].startswith("<amanda.Action looks: look before aten::add.Tensor at ")


# ---- contexts ----------------------------------------------------------------------------------------------------------


def test_a_context_prints_what_is_scheduled_on_it_by_all_tools():
    texts, contexts = [], []

    def analyze(context):
        schedule_three(context)
        texts.append(repr(context))
        contexts.append(context)

    scope = amanda.apply(Looks(schedule_once, "first", ops="linear"), Looks(analyze, ops="linear"))
    with scope:
        MODEL(X)
    scheduled = (
        "; no keys; scheduled: first: look before, looks: keep before with inputs=['weight', 'input'], "
        "looks: look before with inputs=[], looks: look after>"
    )
    assert texts[0].endswith(scheduled)
    assert repr(contexts[0]) == f"<amanda.OpContext aten::linear{scheduled}"


def test_a_long_list_of_actions_is_cut():
    texts = []

    def analyze(context):
        for _ in range(10):
            context.insert_before_op(look, inputs=[])
        context.replace_op(context.op)
        context.insert_before_backward_op(look)
        texts.append(repr(context))

    with amanda.apply(Looks(analyze, ops="relu")):
        torch.relu(X)
    assert texts[0].count("look before") == 8
    assert texts[0].endswith(" and 4 more>")
