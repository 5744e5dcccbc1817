"""Actions: what a routine gets, what it may return, and what happens then."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import amanda
import pytest
import torch
import torch.nn.functional as F

X = torch.tensor([-1.0, 2.0])


def relu_with(tool, x=X):
    with amanda.apply(tool):
        return torch.relu(x)


# ---- what a routine gets ---------------------------------------------------------------------------------------------


def test_all_positions_by_default(before):
    got = []
    with amanda.apply(before("add", lambda *inputs: got.append(inputs))):
        torch.add(X, X, alpha=2)
    assert len(got[0]) == 3
    assert got[0][0] is X
    assert got[0][2] == 2


def test_selected_positions_in_the_order_asked(before):
    got = []
    with amanda.apply(before("conv2d", lambda *inputs: got.append(inputs), ["stride", 0, "groups"])):
        x = torch.ones(1, 1, 2, 2)
        F.conv2d(x, torch.ones(1, 1, 1, 1), stride=2)
    assert got == [([2, 2], x, 1)]


def test_an_empty_selection_gets_the_keywords_alone(before):
    got = []
    relu_with(before("relu", lambda **kwargs: got.append(kwargs), [], mask=3, name="t"))
    assert got == [{"mask": 3}]


def test_a_list_of_tensors_is_one_position(before):
    got = []
    with amanda.apply(before("cat", lambda tensors, dim: got.append((tensors, dim)))):
        torch.cat([X, X])
    assert type(got[0][0]) is list
    assert got[0][0][1] is X
    assert got[0][1] == 0


def test_the_outputs_after(after):
    got = []
    with amanda.apply(after("max", lambda *outputs: got.append([o.tolist() for o in outputs]))):
        torch.max(torch.eye(2), 1)
    assert got == [[[1.0, 1.0], [0, 1]]]


def test_a_run_is_shared_by_a_tools_routines_of_one_execution_and_no_others():
    seen = []

    class Timer(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyse, ops="relu")

        def analyse(self, context):
            context.insert_before_op(self.start, inputs=[], with_run=True)
            context.insert_after_op(self.stop, outputs=[], with_run=True, factor=2)

        def start(self, run):
            seen.append(dict(run))
            run["start"] = 21

        def stop(self, factor, run):
            seen.append(run["start"] * factor)

    with amanda.apply(Timer(), Timer()):
        torch.relu(X)
        torch.relu(X)
    assert seen == [{}, {}, 42, 42] * 2


# ---- what it may return ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "routine",
    [
        lambda y: None,
        lambda y: y,
        lambda y: (y,),
        lambda y: [y],
        lambda y: (None,),
    ],
)
def test_the_value_is_kept(before, after, routine):
    assert relu_with(after("relu", routine)).tolist() == [0.0, 2.0]
    assert relu_with(before("relu", routine)).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("routine", [lambda y: y + 1, lambda y: (y + 1,), lambda y: [y + 1]])
def test_the_only_selected_position_is_replaced(before, after, routine):
    assert relu_with(after("relu", routine)).tolist() == [1.0, 3.0]
    assert relu_with(before("relu", routine)).tolist() == [0.0, 3.0]


@pytest.mark.parametrize("routine", [lambda a, b: (a * 10, None), lambda a, b: [a * 10, b]])
def test_selected_positions_are_replaced_one_by_one(before, routine):
    with amanda.apply(before("add", routine, ["self", "other"])):
        assert torch.add(X, X).tolist() == [-11.0, 22.0]


def test_one_of_several_results_is_replaced(after):
    with amanda.apply(after("max", lambda indices: indices + 5, [1])):
        values, indices = torch.max(torch.eye(2), 1)
    assert (values.tolist(), indices.tolist()) == ([1.0, 1.0], [5, 6])


@pytest.mark.parametrize("routine", [lambda t: [t[0], t[0]], lambda t: ([t[0], t[0]],)])
def test_a_list_is_the_value_of_a_position_that_holds_a_list(before, routine):
    with amanda.apply(before("cat", routine, ["tensors"])):
        assert torch.cat([torch.ones(1), torch.zeros(1)]).tolist() == [1.0, 1.0]


def test_a_list_may_become_longer(before):
    with amanda.apply(before("cat", lambda t: [*t, *t], [0])):
        assert torch.cat([X, X]).numel() == 8


def test_numbers_strings_and_dtypes_are_replaced(before, after):
    with amanda.apply(before("conv2d", lambda stride: [2, 2], ["stride"])):
        assert F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1)).shape == (1, 1, 2, 2)
    with amanda.apply(before("einsum", lambda equation: "ij->ji", ["equation"])):
        assert torch.einsum("ij->ij", torch.tensor([[1.0, 2.0]])).shape == (2, 1)
    with amanda.apply(before("to", lambda dtype: torch.float64, ["dtype"])):
        assert X.to(torch.float16).dtype == torch.float64
    with amanda.apply(after("item", lambda value: 7.0)):
        assert X[1].item() == 7.0


def test_a_missing_optional_is_filled_in(before):
    with amanda.apply(before("conv2d", lambda bias: torch.full((1,), 5.0), ["bias"])):
        assert F.conv2d(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)).item() == 5.0


def test_an_optional_member_of_a_list_is_shown_as_none(before):
    got = []
    rows = torch.tensor([1])
    with amanda.apply(before("index", lambda indices: got.append(indices), ["indices"])):
        torch.eye(2)[:, rows]
    assert got == [[None, rows]]


def test_edits_of_several_tools_add_up_in_their_order(after):
    add, double = after("relu", lambda y: y + 1), after("relu", lambda y: y * 2)
    with amanda.apply(add, double):
        assert torch.relu(X).tolist() == [2.0, 6.0]
    with amanda.apply(double, add):
        assert torch.relu(X).tolist() == [1.0, 5.0]


def test_analysis_sees_the_programs_values(before, after):
    seen = []
    looker = amanda.Tool()
    looker.add_inst_for_op(lambda c: seen.append(c.inputs[0].tolist()), ops="relu")
    looker.add_inst_for_op(lambda c: seen.append(c.outputs[0].tolist()), ops="relu", require_outputs=True)
    with amanda.apply(before("relu", lambda x: x + 10), after("relu", lambda y: y + 100), looker):
        assert torch.relu(X).tolist() == [109.0, 112.0]
    assert seen == [[-1.0, 2.0], [9.0, 12.0]]  # inputs before any routine, outputs before any after-routine


# ---- scheduling ------------------------------------------------------------------------------------------------------


def test_a_removed_action_runs_no_more(before):
    count = []
    tool = before("relu", lambda: count.append(1), [])
    with amanda.apply(tool):
        for step in range(3):
            torch.relu(X)
            (action,) = tool.actions
            assert action.removed == (step > 0)
            action.remove()
    assert count == [1]


def test_a_routine_may_remove_itself(before):
    count = []

    def once():
        count.append(1)
        tool.actions[0].remove()

    tool = before("relu", once, [])
    with amanda.apply(tool):
        for _ in range(3):
            torch.relu(X)
    assert count == [1]


def test_a_late_analysis_that_schedules_before_gets_it_from_the_next_run_on():
    trace = []
    tool = amanda.Tool()

    def analyse(context):
        context.insert_before_op(lambda: trace.append("before"), inputs=[])
        context.insert_after_op(lambda: trace.append("after"), outputs=[])

    tool.add_inst_for_op(analyse, ops="relu", require_outputs=True)
    with amanda.apply(tool):
        for _ in range(2):
            torch.relu(X)
            trace.append("|")
    assert " ".join(trace) == "after | before after |"


def test_the_order_of_a_first_run():
    trace = []

    class Tracer(amanda.Tool):
        def __init__(self, name):
            super().__init__(name)
            self.add_inst_for_op(self.early, ops="relu")
            self.add_inst_for_op(self.late, ops="relu", require_outputs=True)

        def early(self, context):
            trace.append(f"{self.name}?")
            context.insert_before_op(self.note, inputs=[], event="<")
            context.insert_after_op(self.note, outputs=[], event=">")

        def late(self, context):
            trace.append(f"{self.name}!")

        def note(self, event):
            trace.append(self.name + event)

    with amanda.apply(Tracer("a"), Tracer("b")):
        torch.relu(X)
    assert " ".join(trace) == "a? b? a< b< a! b! a> b>"


def test_operators_of_a_routine_are_not_seen_whatever_it_enables(recorder, before):
    watcher = recorder()

    def busy(x):
        with amanda.enabled(), amanda.apply(watcher), amanda.cache_disabled():
            torch.sin(x)

    with amanda.apply(before("relu", busy), watcher):
        torch.relu(X)
        torch.cos(X)
    assert watcher.ran == ["relu", "cos"]


def test_operators_of_an_analysis_are_not_seen(recorder):
    watcher, tool = recorder(), amanda.Tool()
    tool.add_inst_for_op(lambda context: torch.sin(context.inputs[0]), ops="relu")
    with amanda.apply(tool, watcher):
        torch.relu(X)
    assert watcher.ran == ["relu"]


# ---- misuse of scheduling --------------------------------------------------------------------------------------------


def scheduling(analyse):
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(analyse, ops="relu")
    return relu_with(tool)


@pytest.mark.parametrize("method", ["insert_before_op", "insert_after_op", "replace_op"])
def test_a_routine_must_be_callable(method, says):
    with says(TypeError, f"[context] {method} takes a routine to call; got 3"):
        scheduling(lambda context: getattr(context, method)(3))


@pytest.mark.parametrize("selected", [0, "self"])
def test_positions_are_a_list(selected, says):
    text = f"[context] inputs= takes a list of positions or names, such as inputs=[0]; got {selected!r}"
    with says(TypeError, text):
        scheduling(lambda context: context.insert_before_op(print, inputs=selected))


@pytest.mark.parametrize("selected", [1.0, True, None])
def test_positions_are_numbers_and_names(selected, says):
    with says(TypeError, f"[context] outputs= takes positions (int) and names (str); got {selected}"):
        scheduling(lambda context: context.insert_after_op(print, outputs=[selected]))


@pytest.mark.parametrize("position", [1, -1])
def test_a_position_must_exist(position, says):
    text = f"[context] tool: insert_before_op on aten::relu: there is no position {position}; it has 0 (self)"
    with says(ValueError, text):
        scheduling(lambda context: context.insert_before_op(print, inputs=[position]))


def test_a_name_must_exist(says):
    with says(ValueError, "[context] tool: replace_op on aten::relu: there is no 'input'; it has 0 (self)"):
        scheduling(lambda context: context.replace_op(print, inputs=["input"]))


# ---- misuse of values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "count"), [(lambda y: (y, y), "2 values"), (lambda y: (), "0 values")])
def test_another_length_is_an_error(after, says, value, count):
    def routine(y):
        return value(y)

    text = (
        f"[action] tool: routine after aten::relu: it returned {count} for 1 selected position; return None to "
        "keep them all, or one value for each"
    )
    with says(amanda.Error, text):
        relu_with(after("relu", routine))


def test_one_value_for_several_positions_is_an_error(before, says):
    def routine(*inputs):
        return inputs[0]

    text = (
        "[action] tool: routine before aten::add: it returned 1 value for 3 selected positions; return None to "
        "keep them all, or one value for each"
    )
    with says(amanda.Error, text), amanda.apply(before("add", routine)):
        torch.add(X, X)


def test_a_value_for_no_position_is_an_error(before, says):
    def routine():
        return 3

    text = (
        "[action] tool: routine before aten::relu: it returned 1 value for 0 selected positions; return None to "
        "keep them all, or one value for each"
    )
    with says(amanda.Error, text):
        relu_with(before("relu", routine, []))


def double(x):
    return x.double()


def test_another_dtype_is_an_error(before, after, says):
    reason = "a tensor of dtype Double cannot replace one of Float; convert it with .to(dtype)"
    with says(amanda.Error, f"[action] tool: double before aten::relu: input 0 (self): {reason}"):
        relu_with(before("relu", double))
    with says(amanda.Error, f"[action] tool: double after aten::relu: output 0: {reason}"):
        relu_with(after("relu", double))


def test_another_dtype_in_a_list_is_an_error(before, says):
    def routine(tensors):
        return [t.double() for t in tensors]

    reason = "a tensor of dtype Double cannot replace one of Float; convert it with .to(dtype)"
    with says(amanda.Error, f"[action] tool: routine before aten::cat: input 0 (tensors): {reason}"):
        with amanda.apply(before("cat", routine, [0])):
            torch.cat([X, X])


def test_another_device_is_an_error(after, says):
    def routine(y):
        return y.to("meta")

    text = "[action] tool: routine after aten::relu: output 0: a tensor on meta cannot replace one on cpu; move it"
    with says(amanda.Error, text):
        relu_with(after("relu", routine))


@pytest.mark.parametrize(("value", "kind"), [(3, "int"), ("s", "str"), (print, "builtin_function_or_method")])
def test_another_type_is_an_error(before, says, value, kind):
    def routine(x):
        return value

    with says(amanda.Error, f"[action] tool: routine before aten::relu: input 0: got {kind} where Tensor is needed"):
        relu_with(before("relu", routine))


def test_a_routine_that_mutates_a_tensor_it_was_given_raises(before, after, says):
    def routine(tensor):
        tensor.mul_(2)

    reason = "it changed, in place, a tensor it was given; return a new one, or call context.may_mutate() at analysis"
    with says(amanda.Error, f"[action] tool: routine before aten::relu: {reason}"):
        relu_with(before("relu", routine), torch.ones(1))
    with says(amanda.Error, f"[action] tool: routine after aten::relu: {reason}"):
        relu_with(after("relu", routine))


def test_a_routine_may_mutate_if_its_analysis_said_so():
    tool = amanda.Tool()

    def analyse(context):
        context.may_mutate()
        context.insert_before_op(lambda x: x.mul_(2), inputs=[0])

    tool.add_inst_for_op(analyse, ops="relu")
    x = torch.ones(1)
    assert relu_with(tool, x).item() == 2
    assert x.item() == 2
