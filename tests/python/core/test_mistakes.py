"""Mistakes in which nothing would happen, or something else: an error or a warning says what to write."""

import functools
import gc
import warnings

import amanda
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import FakeQuantization

X = torch.ones(2, requires_grad=True)
MODEL = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))


def tool_with(analyze, **asked):
    tool = amanda.Tool("mine")
    tool.add_inst_for_op(analyze, **asked)
    return tool


def warned(program):
    """The texts of the warnings that it gives, objects that it drops included."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        program()
        gc.collect()
    return [str(one.message) for one in recorded]


# ---- tools and scopes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [amanda.apply, amanda.scheduled])
def test_without_tools(make):
    name = make.__name__

    def program():
        with make():
            torch.relu(X)

    text = f"[scope] {name}() without tools instruments nothing; give it tools: with amanda.{name}(tool): ..."
    assert warned(program) == [text]


def test_without_tools_it_counts():
    def program():
        with amanda.apply(coverage=True) as scope:
            torch.relu(X)
        assert scope.coverage().rows

    assert warned(program) == []


def test_a_model_is_called_inside_the_scope(says):
    with says(
        TypeError,
        "[scope] apply takes tools, got an object of type Sequential; call it inside the scope: with amanda.apply(tool): "
        "model(...)",
    ):
        amanda.apply(MODEL)


def test_no_operator_at_all_would_match_nothing(says):
    text = "ops= has no name, and would match nothing; leave it out to ask for every operator"
    for method, call in (
        ("add_inst_for_op", lambda: tool_with(print, ops=[])),
        ("narrow", lambda: amanda.Tool("mine").narrow(ops=())),
    ):
        with says(ValueError, f"[tool] mine.{method}: {text}"):
            call()


def test_the_results_of_the_one_tool():
    with amanda.apply(Profile()) as profile:
        torch.relu(X)
    assert isinstance(profile, amanda.Scope)
    assert "relu" in str(profile.table())
    assert profile.rows()[0].name == "aten::relu"
    with amanda.scheduled(Profile()) as run:
        torch.relu(X)
        run.step()
    assert "relu" in str(run.table())


def test_names_of_the_scope_are_its_own():
    with amanda.apply(Profile()) as scope:
        torch.relu(X)
    assert [one.tool for one in scope.evidence()] == ["Profile"]
    assert not hasattr(scope, "_skips")


def test_results_of_several_tools_need_a_name(says):
    with amanda.apply(Profile(), amanda.Tool("other")) as scope:
        torch.relu(X)
    with says(
        AttributeError,
        "[scope] this scope has 2 tools, and 'table' is of Profile; give the tool a name: tool = Profile(...); with "
        "amanda.apply(tool, ...): ...; tool.table",
    ):
        scope.table()


def test_attributes_that_there_are_not(says):
    scope = amanda.apply(Profile())
    with scope:
        pass
    with says(AttributeError, "[scope] a scope and its tool Profile have no attribute 'tabel'; did you mean 'table'?"):
        scope.tabel()
    with says(AttributeError, "[tool] Profile has no attribute 'tabel'; did you mean 'table'?"):
        Profile().tabel()
    with says(AttributeError, "[tool] Tool has no attribute 'add_inst'; did you mean 'add_inst_for_op'?"):
        amanda.Tool().add_inst(print)
    with says(AttributeError, "[tool] Tool has no attribute 'quux'"):
        amanda.Tool().quux  # noqa: B018


def test_an_attribute_error_of_a_property_stays():
    class Mine(amanda.Tool):
        @property
        def mean(self):
            return self._totl / 2

    with pytest.raises(AttributeError, match="'Mine' object has no attribute '_totl'"):
        Mine().mean  # noqa: B018
    with pytest.raises(AttributeError, match="'Mine' object has no attribute '_totl'"):
        amanda.apply(Mine()).mean  # noqa: B018


# ---- keywords and names ------------------------------------------------------------------------------------------------

ALL = "callback, backward, require_outputs, ops, modules, nested, optional"
KEYWORDS = {
    "[tool] mine.add_inst_for_op has no option op=; did you mean ops=?": lambda: tool_with(print, op="linear"),
    f"[tool] mine.add_inst_for_op has no option quux=; its options are {ALL}": lambda: tool_with(print, quux=1),
    "[tool] mine.narrow has no option op=; did you mean ops=?": lambda: amanda.Tool("mine").narrow(op="linear"),
    "[tool] flops.narrow has no option module=; did you mean modules=?": (lambda: Flops().narrow(module="0")),
    "[tool] Tool has no option nme=; did you mean name=?": lambda: amanda.Tool(nme="mine"),
    "[tool] Mine has no option speling=; did you mean spelling=?": lambda: Mine(speling=1),
    "[tool] FakeQuantization has no option bits=; its options are inputs, outputs": lambda: FakeQuantization(bits=4),
    "[pruning] MagnitudePruning has no option amount=; its options are sparsity, ops, where": (
        lambda: MagnitudePruning(amount=0.5)
    ),
    "[profile] table has no option sort_by=; did you mean sort=?": lambda: Profile().table(sort_by="cuda_time_total"),
    "[scope] apply has no option compile=; did you mean compiled=?": lambda: amanda.apply(compile="graph"),
    "[scope] scheduled has no option schedul=; did you mean schedule=?": lambda: amanda.scheduled(schedul=3),
}


class Mine(amanda.Tool):
    def __init__(self, spelling=0):
        super().__init__()


class TakesAll(amanda.Tool):
    def __init__(self, **options):
        super().__init__()
        self.options = options


class Base:
    def __new__(cls, given):
        made = super().__new__(cls)
        made.given = given
        return made


class OfTwo(amanda.Tool, Base):
    def __init__(self, given):
        super().__init__()


def test_constructors_that_take_other_arguments():
    assert TakesAll(quux=1).options == {"quux": 1}
    assert OfTwo(given=2).given == OfTwo(2).given == 2


@pytest.mark.parametrize("text", KEYWORDS)
def test_keywords(text, says):
    with says(TypeError, text):
        KEYWORDS[text]()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("F.relu", "relu"),
        ("torch.nn.functional.gelu", "gelu"),
        ("nn.Linear", "linear"),
        ("torch.ops.aten.relu.default", "relu"),
    ],
)
def test_operators_by_the_path_of_a_function(given, meant, says):
    with says(ValueError, f"[tool] mine: no operator {given!r}; did you mean {meant!r}?"):
        tool_with(print, ops=given)


def test_an_overload_is_no_path():
    tool_with(print, ops=["add.Tensor", "aten::add.Scalar"])


# ---- analyses and routines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "option"),
    [
        (lambda context: context.insert_before_backward_op(lambda one, two: None), "grad_outputs"),
        (lambda context: context.insert_after_backward_op(lambda gradient: None), "grad_inputs"),
    ],
)
def test_a_backward_routine_of_wrong_arity(schedule, option):
    weight, bias = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    tool = tool_with(schedule, ops="linear", backward=True)
    with (
        pytest.raises(TypeError, match=r"takes 1 positional argument|missing 1 required") as caught,
        amanda.apply(tool),
    ):
        torch.nn.functional.linear(torch.ones(1, 2), weight, bias).sum().backward()
    note = f"[amanda] the routine gets all {option}; select with {option}=, as {option}=[0], or take *{option}"
    assert caught.value.__notes__[1:] == [note]


def test_a_function_that_a_routine_calls_wrongly():
    def nothing():
        pass

    tool = tool_with(lambda context: context.insert_after_op(lambda output: nothing(output)), ops="relu")
    with pytest.raises(TypeError, match="takes 0 positional arguments") as caught, amanda.apply(tool):
        torch.relu(X)
    assert len(caught.value.__notes__) == 1


def double(output):
    return output * 2


@pytest.mark.parametrize("routine", [double, lambda output: output * 2, functools.partial(double)])
def test_an_analysis_that_returns_its_routine(routine, says):
    name = getattr(routine, "__name__", "partial")
    text = (
        f"[tool] mine: the analysis of aten::relu returned {name} and scheduled nothing, so that {name} will not run; "
        f"schedule it in the analysis: context.insert_after_op({name})"
    )
    with pytest.raises(TypeError) as raised, amanda.apply(tool_with(lambda context: routine, ops="relu")):
        torch.relu(X)
    assert str(raised.value) == text


def test_analyses_that_return_other_things():
    def schedules_and_returns(context):
        context.insert_after_op(double)
        return double

    for analyze in (
        lambda context: context.insert_after_op(double),  # an action
        lambda context: 3,
        lambda context: context.inputs[0],
        schedules_and_returns,
    ):
        with amanda.apply(tool_with(analyze, ops="relu")):
            torch.relu(X)


def test_a_routine_without_parameters():
    text = (
        "[context] mine: insert_after_op on aten::relu: <lambda> takes no argument, and will get all outputs; give it a "
        "parameter for each, or select none with outputs=[]"
    )
    with pytest.raises(TypeError) as raised, amanda.apply(tool_with(lambda c: c.insert_after_op(lambda: None))):
        torch.relu(X)
    assert str(raised.value) == text


def test_routines_that_take_nothing_where_there_is_nothing():
    calls = []
    leaf = torch.ones(2, requires_grad=True)

    def analyze(context):
        if "AccumulateGrad" in context.backward_op.__name__:
            context.insert_after_backward_op(lambda: calls.append("leaf"))

    forward = tool_with(lambda c: c.insert_after_op(lambda: calls.append("relu"), outputs=[]), ops="relu")
    with amanda.apply(forward, tool_with(analyze, backward=True)):
        torch.relu(leaf).sum().backward()
    assert calls == ["relu", "leaf"]


class Scaled(amanda.Tool):
    """A routine of it is one of its methods."""

    def __init__(self, routine, **options):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.adapter = torch.nn.Linear(2, 2)
        self.add_inst_for_op(lambda c: c.insert_after_op(getattr(self, routine), **options), ops="relu")

    def scaled(self, y):
        return y * self.scale

    def adapted(self, y):
        return self.adapter(y)

    def detached(self, y):
        return y * self.scale.detach()

    def masked(self, y):
        return y * (self.scale > 0)

    def looks(self, y):
        print(self.scale * 2)

    def other(self, y):
        return y * 2 if self.adapter.training else y


def relu_of_a_layer(tool):
    with amanda.apply(tool):
        torch.relu(MODEL[0](X)).sum().backward()


@pytest.mark.parametrize(
    ("routine", "name", "remedy"),
    [
        ("scaled", "self.scale", "self.scale.detach()"),
        ("adapted", "self.adapter", "torch.no_grad() in the routine"),
    ],
)
def test_a_parameter_in_a_routine_that_is_not_recorded(routine, name, remedy):
    text = (
        f"[context] Scaled: insert_after_op has a routine, {routine}, that computes with {name!r}, which requires a "
        "gradient and gets none from it: routines are not recorded; write insert_after_op(..., differentiable=True), or "
        f"{remedy} if that is meant"
    )
    assert warned(lambda: relu_of_a_layer(Scaled(routine))) == [text]
    assert warned(lambda: relu_of_a_layer(Scaled(routine))) == []  # once


def test_a_parameter_of_a_closure_and_one_that_is_passed():
    scale = torch.nn.Parameter(torch.ones(2))
    for schedule in (
        lambda c: c.insert_after_op(lambda y: y * scale),
        lambda c: c.insert_after_op(lambda y, factor: y * factor, factor=scale),
    ):
        (text,) = warned(lambda schedule=schedule: relu_of_a_layer(tool_with(schedule, ops="relu")))
        assert "that computes with" in text


@pytest.mark.parametrize("routine", ["detached", "masked", "looks", "other"])
def test_routines_that_need_no_gradient(routine):
    assert warned(lambda: relu_of_a_layer(Scaled(routine))) == []


def test_routines_that_are_recorded_and_programs_that_record_nothing():
    scale = torch.nn.Parameter(torch.ones(2))

    def analyze(context):
        context.insert_after_op(lambda y: y * scale)

    assert warned(lambda: relu_of_a_layer(Scaled("scaled", differentiable=True))) == []
    with torch.no_grad(), amanda.apply(tool_with(analyze, ops="relu")):
        assert warned(lambda: torch.relu(MODEL[0](X))) == []


# ---- backward operators and steps ---------------------------------------------------------------------------------------

IN_VAIN = (
    "[scope] tool 'mine' looks at backward operators only, and saw none: none ran while its scope was entered; call "
    "backward() inside the scope, with the forward pass: with amanda.apply(...): model(x).sum().backward()"
)


def test_backward_after_the_scope():
    def program():
        with amanda.apply(tool_with(print, backward=True)):
            y = torch.relu(X).sum()
        y.backward()

    assert warned(program) == [IN_VAIN]


def test_backward_inside_the_scope():
    def program():
        with amanda.apply(tool_with(lambda context: None, backward=True)):
            torch.relu(X).sum().backward()

    assert warned(program) == []


def test_backward_when_the_scope_is_entered_again():
    def program():
        scope = amanda.apply(tool_with(lambda context: None, backward=True))
        with scope, torch.no_grad():  # an evaluation
            torch.relu(X)
        with scope:
            y = torch.relu(X).sum()
        with scope:
            y.backward()

    assert warned(program) == []


def test_a_tool_that_looks_at_both():
    def program():
        tool = tool_with(lambda context: None, backward=True)
        tool.add_inst_for_op(lambda context: None)
        with amanda.apply(tool):
            torch.relu(X)

    assert warned(program) == []


def test_a_backward_tool_that_another_builds_on():
    def program():
        tool = tool_with(lambda context: None)
        tool.depends_on(tool_with(lambda context: None, backward=True))
        with amanda.apply(tool):
            torch.relu(X)

    assert warned(program) == []


def test_a_backward_tool_that_an_exception_kept_from_its_work():
    def program():
        with pytest.raises(IndexError), amanda.apply(tool_with(print, backward=True)):
            torch.relu(X)[9].sum().backward()

    assert warned(program) == []


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (
            {"wait": 1, "active": 1},
            "[schedule] no step ended: the scope stayed in step 0, 'wait', so its tools have no results: run.step() was "
            "not called; call it after each step, or give steps=optimizer",
        ),
        (
            {"every": 100},
            "[schedule] no step ended: the scope stayed in step 0, 'active', so its tools saw all that ran: run.step() was "
            "not called; call it after each step, or give steps=optimizer",
        ),
    ],
)
def test_a_schedule_whose_steps_never_end(plan, text):
    def program():
        with amanda.scheduled(Profile(), schedule=amanda.Schedule(**plan)):
            for _ in range(3):
                torch.relu(X)

    assert warned(program) == [text]


def test_an_optimizer_that_makes_no_step():
    optimizer = torch.optim.SGD([X], lr=0.1)

    def program():
        with amanda.scheduled(Profile(), schedule=amanda.Schedule(wait=1), steps=optimizer):
            torch.relu(X)

    (text,) = warned(program)
    assert text.endswith("steps= counted none; give the optimizer whose step() the program calls, or call run.step()")


def test_schedules_that_are_right():
    def program():
        with amanda.scheduled(Profile(), schedule=amanda.Schedule(wait=1)) as run:
            torch.relu(X)
            run.step()
        with run:  # again, counted on
            torch.relu(X)
        for always in (amanda.Schedule(), amanda.Schedule(active=5)):
            with amanda.scheduled(Profile(), schedule=always):
                torch.relu(X)
        with pytest.raises(IndexError), amanda.scheduled(Profile(), schedule=amanda.Schedule(wait=1)):
            torch.relu(X)[9]

    assert warned(program) == []


# ---- other shapes ------------------------------------------------------------------------------------------------------


def test_a_replacement_of_another_shape_is_named_where_the_program_fails():
    with (
        pytest.raises(RuntimeError) as raised,
        amanda.apply(tool_with(lambda c: c.replace_op(lambda o: o[:1], allow_view=True), ops="relu")),
    ):
        MODEL[0](torch.relu(X))
    (note,) = raised.value.__notes__
    assert note.startswith(
        "[amanda] if the shape is not the model's: in this scope, <lambda> of tool 'mine' replaces aten::relu ("
    )
    assert "test_mistakes.py:" in note


def test_errors_that_replacements_have_nothing_to_do_with():
    for program in (lambda: MODEL[0](torch.relu(torch.ones(3))), lambda: torch.relu(X)[9]):
        looks = tool_with(lambda c: c.insert_before_op(lambda *inputs: None))
        with pytest.raises((RuntimeError, IndexError)) as raised, amanda.apply(looks):
            program()
        assert not hasattr(raised.value, "__notes__")
    replaces = tool_with(lambda c: c.replace_op(lambda o: o * 2), ops="relu")
    with pytest.raises(IndexError) as raised, amanda.apply(replaces):
        torch.relu(X)[9]
    assert not hasattr(raised.value, "__notes__")


def test_autograd_in_a_routine():
    def gradient(output):
        return torch.autograd.grad(output.sum(), output)[0]

    with (
        pytest.raises(RuntimeError) as raised,
        amanda.apply(tool_with(lambda c: c.insert_after_op(gradient), ops="relu")),
    ):
        torch.relu(X)
    assert raised.value.__notes__[1] == (
        "[amanda] routines run without gradients; compute them inside `with torch.enable_grad():`, from "
        "x.detach().requires_grad_(), or schedule the routine with differentiable=True"
    )


def test_the_log_names_the_routine_of_a_result_of_another_shape(fresh_python):
    printed = fresh_python(
        """
        import logging, sys, torch, amanda
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        tool = amanda.Tool("mine")
        tool.add_inst_for_op(lambda c: c.insert_after_op(lambda o: o[:1]), ops="relu")
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        with amanda.apply(tool):
            model(torch.ones(2, 2))
        """
    )
    assert printed.startswith("[action] mine: <lambda> after aten::relu in 1 (forward, <string>:8): it put a tensor of")
