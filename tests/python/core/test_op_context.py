"""OpContext: what an analysis can ask of its operator."""

import contextlib
import os
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F

X = torch.tensor([-1.0, 2.0])


def analysed(call, **options):
    """The context of the first operator that `call` runs, and what `look(context)` returned during its analysis."""
    look = options.pop("look", lambda context: None)
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda context: found.append((context, look(context))), **options)
    scope = amanda.apply(tool)
    with scope:
        call()
    context, answer = found[0]
    return context, answer, scope


@pytest.fixture
def conv():
    return torch.nn.Conv2d(3, 2, 2), torch.randn(1, 3, 4, 4)


def test_inputs_are_the_schemas_with_defaults_filled_in(conv):
    model, x = conv
    _, inputs, _ = analysed(lambda: F.conv2d(x, model.weight), ops="conv2d", look=lambda c: c.get_inputs())
    assert len(inputs) == 7
    assert inputs[2:] == (None, [1, 1], [0, 0], [1, 1], 1)


def test_a_callers_tensor_is_shown_as_the_very_object(conv):
    model, x = conv
    _, inputs, _ = analysed(lambda: model(x), ops="conv2d", look=lambda c: c.inputs)
    assert inputs[0] is x
    assert inputs[1] is model.weight
    assert inputs[2] is model.bias


def test_outputs_are_there_after():
    _, there, _ = analysed(lambda: torch.relu(torch.ones(2)), ops="relu", look=lambda c: c.has_outputs())
    assert there is False
    _, outputs, _ = analysed(
        lambda: torch.max(torch.eye(2), 1),
        ops="max",
        require_outputs=True,
        look=lambda c: [o.tolist() for o in c.outputs],
    )
    assert outputs == [[1.0, 1.0], [0, 1]]


def test_the_operator_has_the_names_that_tutorials_use(conv):
    model, x = conv
    context, op, _ = analysed(lambda: model(x), ops="conv2d", look=lambda c: c.get_op())
    assert (op.__name__, op.name, op.overload) == ("conv2d", "aten::conv2d", "")
    assert op.schema.startswith("aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None")
    assert op.input_names == ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    assert repr(op) == "<amanda.Operator aten::conv2d>"
    assert op == context.op
    assert op != 3
    assert hash(op) == hash(context.op)


def test_the_overload_is_told_apart_from_the_name():
    _, op, _ = analysed(lambda: torch.ones(2) + torch.ones(2), ops="add", look=lambda c: c.op)
    assert (op.__name__, op.name, op.overload) == ("add", "aten::add", "Tensor")
    assert repr(op) == "<amanda.Operator aten::add.Tensor>"


def test_the_operator_can_be_kept_and_called(conv):
    model, x = conv
    _, op, _ = analysed(lambda: model(x), ops="conv2d", look=lambda c: c.op)
    expected = model(x)
    assert torch.equal(op(x, model.weight, model.bias), expected)
    assert torch.equal(op(x, model.weight, model.bias, [1, 1], [0, 0], [1, 1], 1), expected)
    assert torch.equal(op(x, weight=model.weight, bias=model.bias), expected)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("ones_like", lambda x: torch.ones_like(x)),
        ("add", lambda x: torch.add(x, x, alpha=3)),
        ("sum", lambda x: x.sum()),
        ("empty", lambda x: torch.empty(3).zero_()),
        ("mean", lambda x: x.mean(0)),
        ("to", lambda x: x.to(torch.float64)),
    ],
)
def test_all_positions_may_be_given_positionally(name, call):
    _, (op, inputs), _ = analysed(lambda: call(torch.ones(3)), ops=name, look=lambda c: (c.op, c.inputs))
    assert torch.equal(op(*inputs) * 0, call(torch.ones(3)) * 0)


def test_calling_the_operator_is_not_seen(recorder):
    tool = recorder()
    x = torch.ones(2)
    with amanda.apply(tool):
        torch.relu(x)
        tool.contexts[0].op(x)
    assert tool.ran == ["relu"]


def test_the_phase_is_forward():
    _, answers, _ = analysed(lambda: torch.ones(1).relu(), ops="relu", look=lambda c: (c.is_forward(), c.is_backward()))
    assert answers == (True, False)


def test_small_facts():
    _, answers, _ = analysed(
        lambda: torch.ones(1).relu(),
        ops="relu",
        look=lambda c: (c.namespace, c.is_recompute, c.is_symbolic, c.depth, c.tool.name),
    )
    minor = ".".join(torch.__version__.split(".")[:2])
    assert answers == (f"pytorch/{minor}/eager", False, False, 0, "tool")


def test_the_module_path_is_the_modules_name_in_its_model():
    paths = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: paths.append(c.module_path), ops=["linear", "sin"])
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    with amanda.apply(tool):
        model(torch.ones(1, 2))
        torch.sin(torch.ones(1))
    assert paths == ["0", "1.1", ""]


def test_the_source_is_the_users_line():
    _, source, _ = analysed(lambda: torch.nn.Linear(2, 2)(torch.ones(1, 2)), ops="linear", look=lambda c: c.source)
    file, line = source.rsplit(":", 1)
    assert file == __file__
    assert int(line) == test_the_source_is_the_users_line.__code__.co_firstlineno + 1


def test_one_place_has_one_id_in_every_iteration():
    ids = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: ids.append(c.op_id), ops=["relu", "sin"])
    with amanda.apply(tool), amanda.cache_disabled():
        for _ in range(2):
            torch.sin(torch.ones(1))
            torch.relu(torch.ones(1))
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]
    assert 0 < ids[0] < 2**64


def test_two_places_on_one_line_have_two_ids(recorder):
    tool, x = recorder(ops="relu"), torch.ones(1)
    with amanda.apply(tool):
        torch.relu(x), torch.relu(x)
    assert len(tool.analysed) == 2


def test_a_loop_over_parameters_keeps_them_apart():
    seen = []
    tool = amanda.Tool()

    def analyse(context):
        own = context.inputs[0][0].item()
        context.insert_before_op(lambda w, own: seen.append(w[0].item() == own), inputs=[0], own=own)

    tool.add_inst_for_op(analyse, ops="mul")
    weights = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(3)]
    with amanda.apply(tool):
        for _ in range(2):
            for weight in weights:
                weight * 2
    assert seen == [True] * 6


# ---- a dict ----------------------------------------------------------------------------------------------------------


def test_keys_are_seen_by_the_tools_that_run_after():
    seen = []
    a, b = amanda.Tool("a"), amanda.Tool("b")
    a.add_inst_for_op(lambda c: c.update(number=1, anything=X), ops="relu")
    b.add_inst_for_op(lambda c: seen.append(dict(c)), ops="relu")
    X = object()
    with amanda.apply(a, b):
        torch.relu(torch.ones(1))
    assert seen == [{"number": 1, "anything": X}]


def test_keys_are_seen_by_the_later_analysis_of_the_same_operator():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.update(k=[1.5]), ops="relu")
    tool.add_inst_for_op(lambda c: seen.append(c["k"]), ops="relu", require_outputs=True)
    with amanda.apply(tool):
        torch.relu(torch.ones(1))
    assert seen == [[1.5]]


def test_an_inner_scopes_context_starts_with_a_copy_of_the_outers_keys():
    seen = []

    def inner_analysis(context):
        seen.append(dict(context))
        context["inner"] = 2

    outer, inner = amanda.Tool(), amanda.Tool()
    contexts = []
    outer.add_inst_for_op(lambda c: (contexts.append(c), c.update(outer=1)), ops="relu")
    inner.add_inst_for_op(inner_analysis, ops="relu")
    with amanda.apply(outer), amanda.apply(inner):
        torch.relu(torch.ones(1))
    assert seen == [{"outer": 1}]
    assert contexts[0] == {"outer": 1}


def test_a_context_lasts_under_a_disabled_cache():
    counts = []

    def analyse(context):
        context["n"] = context.get("n", 0) + 1
        counts.append(context["n"])

    tool = amanda.Tool()
    tool.add_inst_for_op(analyse, ops="relu")
    with amanda.apply(tool), amanda.cache_disabled():
        for _ in range(3):
            torch.relu(torch.ones(1))
    assert counts == [1, 2, 3]


def test_a_context_keeps_no_tensor_alive():
    x = torch.ones(1)
    dead = weakref.ref(x)
    _, _, scope = analysed(lambda: torch.relu(x), ops="relu", look=lambda c: len(c.inputs))
    x = None
    assert dead() is None
    assert scope.cache_info().currsize == 1


# ---- misuse ----------------------------------------------------------------------------------------------------------

LATE = (
    "[context] {} works only while the analysis routine runs; take what you need there, and hand it to the routine as "
    "a keyword"
)


@pytest.mark.parametrize(
    "what", ["inputs", "outputs", "source", "module_path", "is_recompute", "is_symbolic", "depth", "tool"]
)
def test_operands_are_gone_after_the_analysis(what, says):
    context, _, _scope = analysed(lambda: torch.ones(1).relu(), ops="relu")
    with says(amanda.Error, LATE.format(what)):
        getattr(context, what)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("may_mutate", ()),
        ("insert_before_op", (print,)),
        ("insert_after_op", (print,)),
        ("replace_op", (print,)),
    ],
)
def test_nothing_can_be_scheduled_after_the_analysis(method, arguments, says):
    context, _, _scope = analysed(lambda: torch.ones(1).relu(), ops="relu")
    with says(amanda.Error, LATE.format(method)):
        getattr(context, method)(*arguments)


def test_operator_id_and_namespace_outlast_the_analysis():
    context, op_id, _scope = analysed(lambda: torch.ones(1).relu(), ops="relu", look=lambda c: c.op_id)
    assert (context.op.__name__, context.op_id, context.namespace[:8]) == ("relu", op_id, "pytorch/")


def test_after_the_scopes_results_are_gone_only_the_keys_remain(says):
    context, _, scope = analysed(lambda: torch.ones(1).relu(), ops="relu", look=lambda c: c.update(k=1))
    scope.cache_clear()
    assert context == {"k": 1}
    text = "[context] the scope of this context is gone; keep what you need from it as a key of your own"
    with says(amanda.Error, text):
        context.get_op()


def test_an_operator_refuses_wrong_arguments():
    _, op, _ = analysed(lambda: torch.ones(1).relu(), ops="relu", look=lambda c: c.op)
    with pytest.raises(
        RuntimeError, match="Expected a value of type 'Tensor' for argument 'self' but instead found type 'int'"
    ):
        op(3)


def test_an_operator_that_was_deregistered_says_so(says):
    library = torch.library.Library("amanda_test_gone", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    _, op, _ = analysed(lambda: torch.ops.amanda_test_gone.double(torch.ones(1)), ops="double", look=lambda c: c.op)
    assert op(torch.ones(1)).item() == 2
    library._destroy()
    with says(amanda.Error, "[torch] amanda_test_gone::double(Tensor x) -> Tensor is no longer registered"):
        op(torch.ones(1))


def test_the_tool_is_the_one_whose_analysis_runs():
    class Mine(amanda.Tool):
        def __init__(self, depended=None):
            super().__init__()
            if depended is not None:
                self.depends_on(depended)
            self.seen = None
            self.add_inst_for_op(self.analyze, ops="relu")

        def analyze(self, context):
            self.seen = context.tool

    first = Mine()
    second = Mine(first)
    with amanda.apply(second):
        torch.relu(torch.ones(1))
    assert (first.seen, second.seen) == (first, second)


SURROGATE = os.fsdecode(b"caf\xe9")  # no UTF-8 holds it


@pytest.mark.parametrize("value", [SURROGATE, [SURROGATE], ["plain", SURROGATE], {SURROGATE: SURROGATE}])
@pytest.mark.parametrize("fails", [False, True])
def test_keys_and_values_that_utf8_cannot_hold(value, fails):
    seen = []

    def write(context):
        context.update({SURROGATE: value, "key": value, "plain": "text"})
        if fails:
            raise ValueError("after all")

    writer, reader = amanda.Tool("writer"), amanda.Tool("reader")
    writer.add_inst_for_op(write, ops="relu")
    reader.add_inst_for_op(lambda context: seen.append(dict(context)), ops="relu")
    raises = pytest.raises(ValueError, match="after all") if fails else contextlib.nullcontext()
    with amanda.apply(writer, reader), raises:
        torch.relu(X)
    assert seen == ([] if fails else [{SURROGATE: value, "key": value, "plain": "text"}])


def test_a_shared_key_whose_value_becomes_one_that_utf8_cannot_hold():
    seen = []
    tool = amanda.Tool()
    for value in ("text", SURROGATE, "again"):
        tool.add_inst_for_op(lambda context, value=value: context.update(key=value), ops="relu")
        tool.add_inst_for_op(lambda context: seen.append(context["key"]), ops="relu")
    with amanda.apply(tool):
        torch.relu(X)
    assert seen == ["text", SURROGATE, "again"]


def test_names_that_utf8_cannot_hold(log, placeless):
    def routine(value):
        raise ValueError("after all")

    routine.__name__ = SURROGATE
    tool = amanda.Tool(SURROGATE)
    tool.add_inst_for_op(lambda context: context.insert_before_op(routine), ops=["relu", f"{SURROGATE}::op"])
    with amanda.apply(tool), pytest.raises(ValueError, match="after all") as caught:
        torch.relu(X)
    assert list(map(placeless, caught.value.__notes__)) == [
        "[amanda] in tool 'caf\\udce9': caf\\udce9 before aten::relu"
    ]
    with amanda.apply(tool, on_error="disable"):
        torch.relu(X)
    assert "caf\\udce9" in log()[-1]
    other = amanda.Tool("other")
    other.add_inst_for_op(lambda context: context.insert_before_op(print, inputs=[SURROGATE]), ops="relu")
    with amanda.apply(other), pytest.raises(ValueError, match="caf"):
        torch.relu(X)
