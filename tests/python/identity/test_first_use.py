"""What is kept of places, signatures and operators' names, so that it is found out once: it must never be stale."""

import contextlib
import copy
import dis
import inspect
import sys
import types

import amanda
import pytest
import torch
import torch.utils.checkpoint
from amanda import _core, _torch
from amanda.core import routine_checks
from amanda.driver.identity import frames, roots
from amanda.drivers.torch.identity import call_path, models

X = torch.ones(3)


def places(function, **asked):
    """(operator, id, module path, line) of what it runs, in order."""
    seen = []
    tool = amanda.Tool("places")
    tool.add_inst_for_op(lambda c: seen.append((c.op.__name__, c.op_id, c.module_path, c.source)), **asked)
    with amanda.apply(tool):
        function()
    return seen


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def test_an_equal_model_finds_every_step():
    x = torch.ones(2, 3)

    def run(model):
        return places(lambda: model(x))

    found = []
    models = [make_model() for _ in range(3)]
    for model in [*models, copy.deepcopy(models[0])]:
        before = _torch.count_steps()
        found.append(run(model))
        assert (_torch.count_steps() > before) == (len(found) == 1)
    first = found[0]
    for place in found:
        assert [row[::2] for row in place] == [row[::2] for row in first]
    ids = {row[1] for place in found for row in place}
    assert len(ids) == 4 * len(first)  # equal models are different ones


def test_a_module_has_the_state_of_those_in_it_wherever_else_they_are():
    shared = torch.nn.Linear(3, 3)
    parts = [torch.nn.Sequential(shared), torch.nn.Sequential(shared), torch.nn.Sequential(torch.nn.ReLU())]
    model = torch.nn.Sequential(*parts)
    places(lambda: model(X))
    assert [models.name_of(part).has_state for part in (model, shared, *parts)] == [True, True, True, True, False]


class Around(torch.nn.Module):
    """Has no state: its ids depend on what calls it."""

    def forward(self, x):
        return x.neg().relu()


def exchange(model):
    """Each of two parameters has the other's name."""
    first, last = model[0].bias, model[1].bias
    model[0].bias, model[1].bias = last, first


def calls_of(model, again):
    """Calls of a model, each at a line of its own. `again`: the model has been changed already."""
    x = torch.ones(2, 3)
    around = Around()
    yield lambda: model(x)
    yield lambda: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    yield lambda: torch.func.functional_call(model, {"0.weight": torch.zeros(3, 3, requires_grad=True)}, x)
    yield lambda: [model(x), model(x), model(X.expand(2, 3))]
    yield lambda: around(model(around(x)))
    yield lambda: around(x)
    yield lambda: model[0](x)
    yield lambda: [part(x) for part in model[:3]]
    if not again:
        exchange(model)
    yield lambda: model(x)
    if not again:
        model[1].running_mean = torch.zeros(3)
    yield lambda: (model(x), around(x))
    with amanda.root("part"):
        yield lambda: (model(x), around(x))


def test_a_kept_identity_is_the_one_that_naming_gives():
    model = make_model()
    found = [places(call) for call in calls_of(model, False)]
    found += [places(call) for call in calls_of(model, True)]
    direct = _torch.walks_frames_directly()
    _torch.walk_frames_directly(False)  # each place is named anew, by its frame objects
    try:
        named = [places(call) for call in calls_of(model, True)]
    finally:
        _torch.walk_frames_directly(direct)
    assert found[len(named) :] == named
    changed = 8  # the first call after the exchange
    assert found[changed : len(named)] == named[changed:]
    assert [row[0] for row in found[0]] == ["linear", "add_", "batch_norm", "relu", "linear"]


def test_a_model_called_at_another_line_is_named_once():
    if not _torch.walks_frames_directly():
        pytest.skip("this Python's frames cannot be read directly: every line's calls are named")
    model, x = make_model(), torch.ones(2, 3)
    named = _torch.count_named_places()
    first = places(lambda: model(x))
    assert _torch.count_named_places() == named + 5
    second = places(lambda: model(x))
    assert _torch.count_named_places() == named + 6  # the first one finds the new line
    assert [row[:3] for row in second] == [row[:3] for row in first]
    assert {row[3] for row in first} != {row[3] for row in second}  # of torch's own modules, the line of the call


def test_positions_are_those_of_the_interpreter():
    def codes(code):
        yield code
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from codes(constant)

    for module in (inspect, types, call_path):
        for code in codes(compile(inspect.getsource(module), module.__name__, "exec")):
            assert [_core.position_at(code, 2 * i) for i, _ in enumerate(code.co_positions())] == [*code.co_positions()]


def made_up(name, text="def f(x):\n    return g(x, 1) + h('ä', x)\n"):
    (code,) = (each for each in compile(text, name, "exec").co_consts if isinstance(each, types.CodeType))
    return code


@pytest.mark.parametrize(
    ("code", "outside"),
    [
        (made_up("a folder/it's ünusual.py"), True),
        (made_up("made\udc80up.py"), True),
        (made_up("positions.py").replace(co_linetable=b""), True),  # it has neither lines nor columns
        (torch.nn.functional.multi_head_attention_forward.__code__, False),
        (torch.nn.Module._call_impl.__code__, None),
    ],
    ids=["ordinary", "not UTF-8", "no positions", "torch's", "a module's call"],
)
def test_a_frame_counts_in_a_path_as_its_place(code, outside):
    """`outside`: is it a line of the program's? None: it is no part of paths."""
    for instruction in dis.get_instructions(code):
        step = call_path.step_at(code, instruction.offset, "a.module")
        text, source, _, in_model = _torch.path_of([step])
        places = () if outside is None else (frames.place_of("a.module", code, instruction.offset),)
        assert text == repr(places)
        line = frames.line_of(code, instruction.offset)
        assert source == (frames.encodable(f"{code.co_filename}:{line}") if outside else "")
        assert not in_model


class Questions(list):
    """The functions of Python that C++ calls to name the places that `function` reaches, in order."""

    _FILES = (call_path.__file__, models.__file__, roots.__file__)

    def of(self, function):
        sys.setprofile(self._watch)
        try:
            return function()
        finally:
            sys.setprofile(None)

    def _watch(self, frame, event, argument):
        asks = frame.f_back is None or frame.f_back.f_code.co_filename not in self._FILES
        if event == "call" and frame.f_code.co_filename in self._FILES and asks:
            self.append(frame.f_code.co_name)


def test_only_the_first_operator_of_a_model_asks_python_for_names():
    if not _torch.walks_frames_directly():
        pytest.skip("this Python's frames cannot be read directly: every place asks Python")
    questions, model, x = Questions(), make_model(), torch.ones(2, 3)

    def run():
        y = model(x)
        return y.relu() + y.neg()

    named = _torch.count_named_places()
    found = places(lambda: questions.of(run))
    assert [row[0] for row in found] == ["linear", "add_", "batch_norm", "relu", "linear", "relu", "neg", "add"]
    assert _torch.count_named_places() == named + 8
    assert questions.count("name_running") == 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_place_asks_python_once(direct):
    """For the names of a new model, and for the mark of a block. Which frames entered a scope, only its thread knows."""
    before = _torch.walks_frames_directly()
    _torch.walk_frames_directly(direct and before)
    x, asked, alive = torch.ones(3), [], []

    def relu(model, block):
        with amanda.root("block") if block else contextlib.nullcontext():
            return questions.of(lambda: model(x))

    try:
        for turn in range(2):  # the first one has new steps
            for block in (False, True):
                questions, model = Questions(), torch.nn.Sequential(torch.nn.ReLU())
                model.weight = torch.nn.Parameter(torch.ones(1))
                alive.append(model)  # a death would be told, too
                (row,) = places(lambda model=model, block=block: relu(model, block))
                assert row[0] == "relu"
                if turn:
                    asked.append([question for question in questions if question != "entered_here"])
    finally:
        _torch.walk_frames_directly(before)
    assert asked == [["name_running"], ["mark_of", "name_running"]]


def test_code_at_a_dead_one_s_address_is_not_taken_for_it():
    def run(text, line):
        functions = {"__name__": "made"}
        exec(compile("\n" * line + f"def made(x):\n return {text}\n", "made.py", "exec"), functions)
        (row,) = places(lambda: functions["made"](X))
        return row

    rows = {}
    for turn in range(3):
        for line, text in enumerate(("x.relu()", "x.cos()", "x.neg()", "x.abs()")):
            row = run(text, line)
            assert row[3] == f"made.py:{line + 2}"
            assert rows.setdefault(text, row) == row, turn
    assert len({row[1] for row in rows.values()}) == 4


def test_a_module_at_a_dead_ones_address_is_not_taken_for_it():
    x, found = torch.ones(2, 3), 0
    for _ in range(100):
        model = torch.nn.BatchNorm1d(3)
        places(lambda model=model: model(x))
        address = id(model)
        del model
        other = torch.nn.BatchNorm1d(3)  # its buffers are registered before anything asks who has died
        found += id(other) == address
        buffer = other.running_mean
        assert [row[0] for row in places(lambda buffer=buffer: buffer.copy_(X))] == ["copy_"]
        assert torch.equal(buffer, X)
        places(lambda other=other: other(x))
    assert found


def test_a_block_is_seen_at_an_instruction_that_ran_outside_of_one():
    def run(*, inside):
        with amanda.root("inside") if inside else contextlib.nullcontext():
            X.relu()

    def ids(*inside):
        return [row[1] for row in places(lambda: [run(inside=each) for each in inside])]

    outside, block = ids(False, True, False)
    assert outside != block
    assert ids(True, False) == [block, outside]


# ---- signatures -------------------------------------------------------------------------------------------------------


def schedule(*routines, run=torch.relu, ops="relu"):
    """Schedules them one after the other at the same operator, and returns what was said of each."""
    said = []

    def analyze(context):
        for routine, keywords in routines:
            try:
                context.insert_before_op(routine, **{"inputs": [0]} | keywords)
                said.append("")
            except (TypeError, ValueError) as error:
                said.append(str(error))

    tool = amanda.Tool("scheduler")
    tool.add_inst_for_op(analyze, ops=ops)
    with amanda.apply(tool):
        run(X)
    return said


def routine_with(**attributes):
    def routine(x=None, y=None):
        pass

    for name, value in attributes.items():
        setattr(routine, name, value)
    return routine


def test_a_signature_that_was_right_is_not_looked_at_again(monkeypatch):
    looked = []
    look = routine_checks.check
    monkeypatch.setattr(routine_checks, "check", lambda *arguments: looked.append(1) or look(*arguments))
    assert schedule(*[(routine_with(), {})] * 3) == [""] * 3
    assert len(looked) == 1
    assert schedule((routine_with(), {}), (routine_with(), {"y": 1})) == ["", ""]
    assert len(looked) == 2


def test_names_are_looked_at_once_for_each_type_of_operator(monkeypatch):
    looked = []
    look = routine_checks.check
    monkeypatch.setattr(routine_checks, "check", lambda *arguments: looked.append(1) or look(*arguments))
    named = (routine_with(), {"inputs": ["self"]})
    other = {"run": torch.neg, "ops": "neg"}
    assert schedule(named, named) == schedule(named, named, **other) == ["", ""]
    assert len(looked) == 2
    twice = (routine_with(), {"inputs": ["self", 0]})
    assert all("selects 'self' twice" in said for said in schedule(twice, twice))
    assert len(looked) == 4


def test_all_operands_are_looked_at_for_each_type_of_operator():
    def takes_one(x):
        pass

    everything = (takes_one, {"inputs": None})
    assert schedule(everything) == [""]
    for _ in range(2):
        (said,) = schedule(everything, run=lambda x: x + x, ops="add")
        assert "takes_one takes 1, will get 3: self, other, alpha; select with inputs=" in said
    assert schedule(everything) == [""]


def test_positions_that_can_be_read_once_are_read_once():
    def once():
        yield "self"

    assert schedule((routine_with(), {"inputs": once()}), (routine_with(), {"inputs": iter([0])})) == ["", ""]
    (said,) = schedule((lambda: None, {"inputs": once()}))
    assert "takes 0, will get 1: self" in said


def test_what_differs_from_a_right_routine_is_checked():
    required = routine_with()
    required.__defaults__ = None
    by_keyword = types.FunctionType((lambda x, *, k=0: None).__code__, {})  # without its default
    good, no_default, keyword, misspelt, twice, bound, named = schedule(
        (routine_with(), {}),
        (required, {}),
        (by_keyword, {}),
        (routine_with(), {"input": [0]}),
        (routine_with(), {"inputs": [0, 0]}),
        (types.MethodType(lambda self: None, X), {}),
        (routine_with(__signature__="none of a function's"), {"inputs": []}),
    )
    assert good == named == ""
    assert all((no_default, keyword, misspelt, twice, bound))


# ---- filters ----------------------------------------------------------------------------------------------------------

PATTERNS = [
    "{0}",
    "first_use::{0}",
    "{0}.b",
    "first_use::{0}.b",
    "{0}*",
    "*{0}",
    "f*_use::{0}",
    "*::{0}.?",
    "[{1}]{2}",
    "{0}.*",
]
OTHERS = ["{0}x*", "aten*::{0}", "{0}.[!b]", "first_use::{0}.", "first_*::x{0}", "{0}::{0}"]


def test_every_spelling_of_a_filter_finds_the_operator():
    with torch.library._scoped_library("first_use", "FRAGMENT") as library:
        for index, pattern in enumerate([*PATTERNS, *OTHERS]):
            name = f"alpha{index}x{index}"  # no other pattern has asked for it
            library.define(f"{name}.b(Tensor x) -> Tensor")
            library.impl(f"{name}.b", torch.neg, "CPU")
            operator = getattr(torch.ops.first_use, name).b
            seen = places(lambda operator=operator: operator(X), ops=pattern.format(name, name[0], name[1:]))
            assert [row[0] for row in seen] == [name] * (index < len(PATTERNS)), pattern
            del operator
