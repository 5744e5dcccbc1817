"""Exceptions: they arrive as themselves, and leave no traces; on_error="disable" lets the program go on."""

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])


class Odd(Exception):
    """An exception that can't be made again from its text."""

    def __init__(self, code, *, where):
        super().__init__(f"odd {code}")
        self.code, self.where = code, where


class Failing(amanda.Tool):
    """Raises `error` at one point: "analysis", "late analysis", "before", "after", "replace"."""

    def __init__(self, point, error, name="failing"):
        super().__init__(name)
        self.point, self.error, self.told = point, error, []
        self.runs = 0
        self.add_inst_for_op(self.analyse, ops="relu")
        self.add_inst_for_op(self.analyse_late, ops="relu", require_outputs=True)

    def analyse(self, context):
        if self.point == "analysis":
            self.fail()
        if self.point == "before":
            context.insert_before_op(self.fail)
        if self.point == "after":
            context.insert_after_op(self.fail)
        if self.point == "replace":
            context.replace_op(self.fail)

    def analyse_late(self, context):
        if self.point == "late analysis":
            self.fail()

    def fail(self, *operands):
        self.runs += 1
        raise self.error

    def on_disable(self, error):
        self.told.append(error)


NOTES = {
    "analysis": "[amanda] in tool 'failing': analysis of aten::relu",
    "late analysis": "[amanda] in tool 'failing': analysis of aten::relu",
    "before": "[amanda] in tool 'failing': fail before aten::relu",
    "after": "[amanda] in tool 'failing': fail after aten::relu",
    "replace": "[amanda] in tool 'failing': fail replacing aten::relu",
}
POINTS = list(NOTES)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "make", [lambda: Odd(7, where="here"), lambda: ValueError("v"), StopIteration, KeyboardInterrupt]
)
def test_an_exception_arrives_as_itself_with_a_note(point, make, placeless):
    error = make()
    with pytest.raises(type(error)) as caught, amanda.apply(Failing(point, error)):
        torch.relu(X)
    assert caught.value is error
    assert list(map(placeless, error.__notes__)) == [NOTES[point]]


@pytest.mark.parametrize("point", POINTS)
def test_the_traceback_names_the_routine(point):
    with pytest.raises(ValueError) as caught, amanda.apply(Failing(point, ValueError())):
        torch.relu(X)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "fail"
    assert names[0] == "test_the_traceback_names_the_routine"


@pytest.mark.parametrize("point", POINTS)
def test_the_thread_is_clean_after_an_exception(point, recorder):
    watcher, x = recorder(), X.clone().requires_grad_()
    with amanda.apply(watcher):
        with pytest.raises(ValueError), amanda.apply(Failing(point, ValueError())):
            torch.relu(x)
        watcher.ran.clear()
        y = torch.sin(x) * 2
    assert watcher.ran == ["sin", "mul"]
    assert y.requires_grad
    torch.sin(x)
    assert watcher.ran == ["sin", "mul"]


def test_the_scope_goes_on_after_an_exception(recorder):
    watcher = recorder(ops="relu")
    failing = Failing("before", ValueError())
    with amanda.apply(watcher, failing):
        for _ in range(3):
            with pytest.raises(ValueError):
                torch.relu(X)
    assert watcher.ran == ["relu"] * 3
    assert failing.runs == 3


def test_a_failed_analysis_schedules_nothing_and_runs_again():
    trace = []
    tool = amanda.Tool()

    def analyse(context):
        trace.append("analysis")
        context.insert_before_op(lambda: trace.append("before"), inputs=[])
        if len(trace) == 1:
            raise ValueError

    tool.add_inst_for_op(analyse, ops="relu")
    with amanda.apply(tool):
        for step in range(3):
            if step == 0:
                with pytest.raises(ValueError):
                    relu()
            else:
                relu()
    assert trace[:3] == ["analysis", "analysis", "before"]
    assert trace.count("before") == 2


def relu():
    return torch.relu(X)


def test_an_operators_own_error_is_left_alone(recorder):
    watcher = recorder()
    with amanda.apply(watcher):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        with pytest.raises(IndexError, match="index 10 is out of bounds"):
            X[10]
        torch.sin(X)
    assert not hasattr(caught.value, "__notes__")
    assert watcher.ran[-1] == "sin"


def test_a_custom_operators_own_error_is_left_alone(recorder):
    @torch.library.custom_op("amanda_test_errors::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        raise Odd(3, where="operator")

    with amanda.apply(recorder()), pytest.raises(Odd) as caught:
        odd(X)
    assert (caught.value.code, caught.value.where) == (3, "operator")


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_exception_in_a_recomputed_region_arrives_as_itself(reentrant):
    error = Odd(1, where="recompute")
    tool, runs = amanda.Tool(), []

    def routine():
        runs.append(1)
        if len(runs) == 2:
            raise error

    tool.add_inst_for_op(lambda c: c.insert_before_op(routine, inputs=[]), ops="sigmoid")
    x = X.clone().requires_grad_()
    with amanda.apply(tool), pytest.raises(Odd) as caught:
        torch.utils.checkpoint.checkpoint(torch.sigmoid, x, use_reentrant=reentrant).sum().backward()
    assert caught.value is error


# ---- on_error="disable" ----------------------------------------------------------------------------------------------

LINES = {
    "analysis": "the analysis of aten::relu",
    "late analysis": "the analysis of aten::relu",
    "before": "fail before aten::relu",
    "after": "fail after aten::relu",
    "replace": "fail replacing aten::relu",
}


@pytest.mark.parametrize("point", POINTS)
def test_a_failing_tool_is_stopped_with_one_line(point, log, placeless):
    error = ValueError("boom")
    tool = Failing(point, error)
    with amanda.apply(tool, on_error="disable"):
        for _ in range(3):
            assert torch.relu(X).tolist() == [0.0, 2.0]
    assert tool.runs == 1
    assert tool.told == [error]
    (line,) = log()
    what, _, rest = line.partition(" failed: ")
    assert placeless(what) == f"[amanda] failing: {LINES[point]}"
    assert rest.split(";")[0].removeprefix("ValueError: ") == "boom"
    assert line.endswith("; stopped for the rest of the scope: 'failing'")


@pytest.mark.parametrize("point", POINTS)
def test_on_disable_is_isolated_as_an_analysis_is(point, recorder):
    states = []

    class Computing(Failing):
        def on_disable(self, error):
            states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.relu(X).requires_grad))

    other = recorder("other")
    with torch.autocast("cpu"), amanda.apply(Computing(point, ValueError("boom")), other, on_error="disable"):
        torch.relu(X.clone().requires_grad_())
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
    assert states == [(False, False, False)]
    assert other.ran == ["clone", "relu"]


def test_dependents_stop_too_and_others_go_on(after, recorder, log):
    failing = Failing("before", ValueError("boom"))
    dependent, other = recorder("dependent", ops="relu"), recorder("other", ops="relu")
    dependent.depends_on(failing)
    told = []
    dependent.on_disable = told.append
    with amanda.apply(other, dependent, on_error="disable"):
        for _ in range(2):
            torch.relu(X)
    assert dependent.ran == []
    assert other.ran == ["relu"] * 2
    assert told == failing.told
    assert log()[0].endswith("stopped for the rest of the scope: 'failing', 'dependent'")


def test_edits_already_made_remain(before, after):
    with amanda.apply(
        before("relu", lambda x: x + 1),
        Failing("before", ValueError()),
        after("relu", lambda y: y * 2),
        on_error="disable",
    ):
        assert torch.relu(X).tolist() == [0.0, 6.0]


def test_the_failing_routines_own_effect_is_dropped(before):
    def routine(self, other):
        return self * 100, other.double()

    with amanda.apply(before("add", routine, ["self", "other"]), on_error="disable"):
        assert torch.add(X, X).tolist() == [-2.0, 4.0]


def test_a_stopped_tool_is_stopped_for_the_scope_object_only(log):
    tool = Failing("before", ValueError("boom"))
    scope = amanda.apply(tool, on_error="disable")
    for _ in range(3):
        with scope:
            torch.relu(X)
    assert tool.runs == 1
    with amanda.apply(tool, on_error="disable"):
        torch.relu(X)
    assert tool.runs == 2
    assert len(log()) == 2


def test_misuse_disables_too(after, log):
    with amanda.apply(after("relu", lambda y: (y, y)), on_error="disable"):
        assert torch.relu(X).tolist() == [0.0, 2.0]
    assert "it returned 2 values for 1 selected position" in log()[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("point", POINTS)
def test_interrupts_are_not_swallowed(point, error, log):
    tool = Failing(point, error())
    with pytest.raises(error), amanda.apply(tool, on_error="disable"):
        torch.relu(X)
    assert log() == []
    assert tool.told == []


def test_a_failed_replacement_that_mutated_its_input_raises(log):
    tool = amanda.Tool()

    def spoil(x):
        x.mul_(2)
        raise ValueError("spoilt")

    def analyse(context):
        context.may_mutate()
        context.replace_op(spoil)

    tool.add_inst_for_op(analyse, ops="relu")
    with pytest.raises(ValueError, match="spoilt"), amanda.apply(tool, on_error="disable"):
        torch.relu(torch.ones(2))


def test_a_failing_operator_is_not_the_tools_failure(replace, log):
    """The replacement passes on the operator's own exception."""
    tool = amanda.Tool("wraps")
    tool.add_inst_for_op(lambda c: c.replace_op(lambda a, b, op: op(a, b), op=c.op), ops="mm")
    with amanda.apply(tool, on_error="disable"), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
