"""Routines that are written wrong: each gets one error, which says who, where, what was found, and what would work."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import functools

import amanda
import pytest
import torch

BEFORE, AFTER = "before aten::relu", "after aten::relu"


def generator(*operands):
    yield operands[0]


async def coroutine(*operands):
    return operands[0]


def returns_numpy(x):
    return x.numpy(force=True)


def returns_a_list_of_numpy(x):
    return [x.numpy(force=True)]


def returns_a_string(x):
    return "x"


def returns_a_number(x):
    return 3


def returns_a_dict(x):
    return {"self": x}


def returns_a_set(x):
    return {x}


def returns_a_class(x):
    return torch.Tensor


def returns_three(x):
    return x, x, x


def returns_nothing_in_a_tuple(x):
    return ()


def returns_double(x):
    return x.double()


def returns_meta(x):
    return x.to("meta")


def changes_in_place(x):
    x.mul_(2)


def takes_its_storage(x):
    x.detach().set_()


def changes_through_a_view(x):
    x.view(-1)[0] = 5


def changes_through_detach(x):
    x.detach().zero_()


MUTATED = (
    "it changed {operand} in place, and that stays changed; return a new tensor instead, or call context.may_mutate() at "
    "analysis"
)
ONE = "for 1 selected position; return None to keep them all, or one value for each"
WRONG = {
    generator: "{operand}: got generator where Tensor is needed",
    returns_numpy: "{operand}: got numpy.ndarray where Tensor is needed",
    returns_a_list_of_numpy: "{operand}: got numpy.ndarray where Tensor is needed",
    returns_a_string: "{operand}: got str where Tensor is needed",
    returns_a_number: "{operand}: got int where Tensor is needed",
    returns_a_dict: "{operand}: got dict where Tensor is needed",
    returns_a_set: "{operand}: got set where Tensor is needed",
    returns_a_class: "{operand}: got torch._C._TensorMeta where Tensor is needed",
    returns_three: "it returned 3 values " + ONE,
    returns_nothing_in_a_tuple: "it returned 0 values " + ONE,
    returns_double: "{operand}: a tensor of dtype Double cannot replace one of Float; convert it with .to(dtype)",
    returns_meta: "{operand}: a tensor on meta cannot replace one on cpu; move it",
    changes_in_place: MUTATED,
    changes_through_a_view: MUTATED,
    changes_through_detach: MUTATED,
}


def program(name):
    return getattr(torch, name)(torch.tensor([-1.0, 2.0]))


@pytest.mark.parametrize("op", ["relu", "relu_"])
@pytest.mark.parametrize("routine", WRONG)
def test_before_and_after_a_forward_operator(routine, op, before, after, says):
    for make, side, operand in ((before, "before", "input 0 (self)"), (after, "after", "output 0")):
        what = WRONG[routine].format(operand=operand)
        with amanda.apply(make(op, routine)):
            for _ in range(2):
                with says(amanda.Error, f"[action] tool: {routine.__name__} {side} aten::{op}: {what}"):
                    program(op)
        assert program(op).tolist() == [0.0, 2.0]


REPLACING = {
    generator: "result 0: got generator where Tensor is needed",
    returns_numpy: "result 0: got numpy.ndarray where Tensor is needed",
    returns_a_string: "result 0: got str where Tensor is needed",
    returns_three: "result 0: got tuple where Tensor is needed",
    changes_in_place: "it returned None; a replacement returns the operator's result",
}


@pytest.mark.parametrize("op", ["relu", "relu_"])
@pytest.mark.parametrize("routine", REPLACING)
def test_in_place_of_a_forward_operator(routine, op, replace, says):
    with amanda.apply(replace(op, routine)):
        with says(amanda.Error, f"[action] tool: {routine.__name__} replacing aten::{op}: {REPLACING[routine]}"):
            program(op)


def test_a_replacement_of_an_operator_with_two_results(replace, says):
    where = (
        "[action] tool: {} replacing aten::max: it returned {} where the operator has 2 results; return a tuple of them"
    )
    for routine, found in ((lambda *_: torch.ones(2), "one value"), (lambda *_: (torch.ones(2),) * 3, "3 values")):
        with says(amanda.Error, where.format("<lambda>", found)), amanda.apply(replace("max", routine)):
            torch.max(torch.eye(2), 1)


def test_a_coroutine_function_is_named(before):
    text = r"coroutine before aten::relu \(forward, .*\): input 0 \(self\): got coroutine where Tensor is needed"
    with pytest.warns(RuntimeWarning, match="never awaited"):
        with pytest.raises(amanda.Error, match=text), amanda.apply(before("relu", coroutine)):
            program("relu")


METHODS = {"before": "insert_before_op", "after": "insert_after_op", "replace": "replace_op"}
SIGNATURES = {
    "none": (lambda: None, "takes 0, will get 1: {operand}; select with {option}="),
    "too many": (lambda a, b, c: None, "takes 3, will get 1: {operand}; select with {option}="),
    "optional": (lambda a, b, c=1: None, "takes 2 to 3, will get 1: {operand}; select with {option}="),
    "any": (lambda a, b, *c: None, "takes at least 2, will get 1: {operand}; select with {option}="),
    "keyword": (lambda x, *, key: None, "missing a required argument: 'key'"),
}


@pytest.mark.parametrize("what", SIGNATURES)
@pytest.mark.parametrize("point", METHODS)
def test_what_a_routine_cannot_take_is_refused_when_it_is_scheduled(point, what, request, placeless):
    routine, text = SIGNATURES[what]
    positions, operand, option = ([0], "0", "outputs") if point == "after" else (None, "self", "inputs")
    tool = request.getfixturevalue(point)("relu", routine, positions)
    with pytest.raises(TypeError) as caught, amanda.apply(tool):
        program("relu")
    problem = text.format(operand=operand, option=option)
    said = str(caught.value).replace("keyword-only ", "")  # which some versions of Python say
    assert said == f"[context] tool: {METHODS[point]} on aten::relu: <lambda> {problem}"
    assert list(map(placeless, caught.value.__notes__)) == ["[amanda] in tool 'tool': analysis of aten::relu"]
    assert tool.actions == []


def test_what_a_routine_will_get_is_listed(before, says):
    def mask(x):
        return x

    given = "takes 1, will get 3: input, weight, bias; select with inputs="
    text = f"[context] tool: insert_before_op on aten::linear: mask {given}"
    with says(TypeError, text), amanda.apply(before("linear", mask)):
        torch.nn.functional.linear(torch.eye(2), torch.eye(2))


def test_keywords_are_no_positions(before, says):
    given = "takes 1, will get 3: self, other, alpha; select with inputs="
    text = f"[context] tool: insert_before_op on aten::add: <lambda> {given}"
    with says(TypeError, text), amanda.apply(before("add", lambda x, scale: x, scale=2)):
        torch.add(torch.ones(2), 1)


@pytest.mark.parametrize("point", ["insert_before_backward_op", "insert_after_backward_op", "replace_backward_op"])
def test_a_routine_of_a_backward_operator(point, says):
    tool, option = amanda.Tool("tool"), routine_option(point)
    tool.add_inst_for_op(lambda c: getattr(c, point)(lambda: None, [0]), ops="relu")
    text = f"[context] tool: {point} on aten::relu: <lambda> takes 0, will get 1: 0; select with {option}="
    with says(TypeError, text), amanda.apply(tool):
        program("relu")


def routine_option(point):
    return "grad_inputs" if "after" in point else "grad_outputs"


def decorated(function):
    @functools.wraps(function)
    def with_more(x):
        return function(x, 1, 2)

    return with_more


CALLABLES = {
    "builtin": torch.clone,
    "wrapped": decorated(lambda a, b, c: a),
    "partial": functools.partial(lambda a, x: x, 1),
    "module": torch.nn.Identity(),
    "method": [].append,
    "class": lambda x: None,
    "any": lambda *x, **k: None,
}


@pytest.mark.parametrize("what", CALLABLES)
def test_what_a_routine_may_take_is_accepted(what, before):
    with amanda.apply(before("relu", CALLABLES[what])):
        assert program("relu").tolist() == [0.0, 2.0]


@pytest.mark.parametrize("positions", [iter([0]), (0,), range(1), {"self": 1}])
def test_positions_are_any_iterable(positions, before):
    with amanda.apply(before("relu", lambda x: x + 1, positions)):
        assert program("relu").tolist() == [0.0, 3.0]


def test_an_unknown_keyword_of_the_routine(before, says):
    text = "[context] tool: insert_before_op on aten::relu: <lambda> got an unexpected keyword argument 'scale'"
    with says(TypeError, text), amanda.apply(before("relu", lambda x: x, scale=2)):
        program("relu")


MISSPELT = [
    ("insert_before_op", "input", "did you mean inputs=?"),
    ("insert_before_op", "with_runs", "did you mean with_run=?"),
    ("insert_before_op", "outputs", "its options are inputs, with_run, differentiable, allow_view, traceable"),
    ("insert_after_op", "output", "did you mean outputs=?"),
    ("replace_op", "differentiable", "its options are inputs, with_run, allow_view, traceable"),
    ("insert_before_backward_op", "grad_output", "did you mean grad_outputs=?"),
    ("insert_before_backward_op", "grad_out", "did you mean grad_outputs=?"),
    ("insert_after_backward_op", "grad_input", "did you mean grad_inputs=?"),
    ("insert_after_backward_op", "grad_in", "did you mean grad_inputs=?"),
    ("replace_backward_op", "grad_output", "did you mean grad_outputs=?"),
]


@pytest.mark.parametrize(("method", "keyword", "hint"), MISSPELT)
def test_a_misspelt_option_is_no_keyword_of_the_routine(method, keyword, hint):
    def schedule(routine):
        tool = amanda.Tool("tool")
        tool.add_inst_for_op(lambda c: getattr(c, method)(routine, **{keyword: [0]}), ops="relu")
        with amanda.apply(tool):
            program("relu")

    with pytest.raises(TypeError) as caught:
        schedule(lambda *operands, **options: None)
    start = f"[context] tool: {method} on aten::relu has no option {keyword}=; {hint}"
    rest = "" if "its options" in hint else " A keyword for <lambda> needs a parameter of that name"
    assert str(caught.value) == start + rest
    scope = {}
    exec(f"def takes_it(*operands, {keyword}): return operands[0]", scope)
    schedule(scope["takes_it"])


@pytest.mark.parametrize("positions", [[0, 0], ["weight", "weight"], [1, "weight"], ["weight", 0, 1]])
def test_a_position_is_selected_once(positions, before, says):
    name = "input" if positions == [0, 0] else "weight"
    text = f"[context] tool: insert_before_op on aten::linear: inputs= selects {name!r} twice; give each position once"
    with says(ValueError, text), amanda.apply(before("linear", lambda *_: None, positions)):
        torch.nn.functional.linear(torch.eye(2), torch.eye(2))


def test_an_output_is_selected_once(after, says):
    text = "[context] tool: insert_after_op on aten::relu: outputs= selects '0' twice; give each position once"
    with says(ValueError, text), amanda.apply(after("relu", lambda *_: None, [0, 0])):
        program("relu")


def test_an_analysis_of_wrong_arity(placeless):
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda: None, ops="relu")
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given") as caught, amanda.apply(tool):
        program("relu")
    assert list(map(placeless, caught.value.__notes__)) == ["[amanda] in tool 'tool': analysis of aten::relu"]


def test_what_an_analysis_returns_is_of_no_concern():
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda context: generator(), ops="relu")
    with amanda.apply(tool):
        assert program("relu").tolist() == [0.0, 2.0]


# ---- operands that are gone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inputs", "outputs", "get_inputs", "get_outputs"])
def test_operands_are_asked_for_too_late(name):
    contexts = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(contexts.append, ops="relu")
    with amanda.apply(tool):
        program("relu")
        with pytest.raises(amanda.Error, match="works only while the analysis routine runs"):
            getattr(contexts[0], name)()


def test_operands_are_asked_for_by_a_routine(before):
    contexts = []
    tool = amanda.Tool("tool")

    def analyse(context):
        contexts.append(context)
        context.insert_before_op(lambda: contexts[0].inputs, [])

    tool.add_inst_for_op(analyse, ops="relu")
    with pytest.raises(amanda.Error, match="works only while the analysis routine runs"), amanda.apply(tool):
        program("relu")


def test_actions_are_scheduled_too_late():
    contexts = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(contexts.append, ops="relu")
    with amanda.apply(tool):
        program("relu")
        for schedule in ("insert_before_op", "insert_after_op", "replace_op", "insert_before_backward_op"):
            with pytest.raises(amanda.Error, match="works only while the analysis routine runs"):
                getattr(contexts[0], schedule)(print)


def test_a_tensor_that_a_routine_kept_is_still_one(before):
    kept = []
    with amanda.apply(before("relu", kept.append)):
        program("relu")
    assert kept[0].tolist() == [-1.0, 2.0]


# ---- values of another kind ------------------------------------------------------------------------------------------

LAYOUTS = {
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x]),
    "fake": lambda x: torch._subclasses.FakeTensorMode().from_tensor(x),
}


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse).*")
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("what", LAYOUTS)
def test_a_value_of_another_layout(what, point, request):
    with pytest.raises(amanda.Error, match="cannot replace one"):
        with amanda.apply(request.getfixturevalue(point)("relu", LAYOUTS[what])):
            program("relu")


IN_PLACE_REPLACEMENTS = {
    "device": (returns_meta, "a tensor on meta cannot replace one on cpu"),
    "shape": (lambda x: x[:1].clone(), "the shape of an in-place operator's tensor can't change"),
}


@pytest.mark.parametrize("what", IN_PLACE_REPLACEMENTS)
def test_a_replacement_of_an_in_place_operator_that_does_not_fit(what, replace):
    routine, text = IN_PLACE_REPLACEMENTS[what]
    with pytest.raises(amanda.Error, match=text), amanda.apply(replace("relu_", routine)):
        torch.relu_(torch.ones(2, requires_grad=True) * 1)
