"""In-place operators, out= and views: an edit is never silently without effect, and gradients stay right."""

# ruff: noqa: B007, E731, SIM117 -- modules written by hand in one line; routines that read the loop's variable

import contextlib

import amanda
import pytest
import torch
import torch.nn.functional as F
from by_hand import StraightThrough, assert_same, edit, gradients


def relu_in_place(x, w):
    return torch.relu_(x @ w) * 3


def add_to_itself(x, w):
    z = x @ w
    return z.add_(z)


def relu_a_view(x, w):
    z = x @ w
    z[:2].relu_()
    return z * 3


def assign_items(x, w):
    z = x @ w
    z[0] = 1.0
    z[1:3, 0] = z[0, 0]
    z[z > 0] = 0.5
    return z * 2


def fill_a_column(x, w):
    y = torch.zeros(len(x), 3)
    y[:, 1] = (x @ w)[:, 0]
    return y * 2


def chain(x, w):
    return (x @ w).mul_(2).add_(1).sub_(0.5).relu_()


PROGRAMS = [relu_in_place, add_to_itself, relu_a_view, assign_items, fill_a_column, chain]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("nested", [False, True])
def test_looking_changes_nothing(program, nested, recorder):
    assert_same(recorder(nested=nested), program, program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_looking_at_results_changes_nothing(program, after):
    assert_same(after("*", lambda *results: None), program, program)


def test_an_edit_after_is_straight_through(after):
    by_hand = lambda x, w: StraightThrough.apply(torch.relu(x @ w), edit) * 3
    assert_same(after("relu_", edit), relu_in_place, by_hand)


def test_an_edit_before_is_straight_through(before):
    by_hand = lambda x, w: torch.relu(StraightThrough.apply(x @ w, edit)) * 3
    assert_same(before("relu_", edit), relu_in_place, by_hand)


def test_a_differentiable_edit_is_recorded(after):
    by_hand = lambda x, w: edit(torch.relu(x @ w)) * 3
    assert_same(after("relu_", edit, differentiable=True), relu_in_place, by_hand)


def test_an_edit_of_a_tensor_added_to_itself(before, after):
    assert_same(after("add_", edit), add_to_itself, lambda x, w: StraightThrough.apply((x @ w) * 2, edit))
    by_hand = lambda x, w: (lambda z: StraightThrough.apply(z, edit) + z)(x @ w)
    assert_same(before("add_", edit, ["self"]), add_to_itself, by_hand)
    by_hand = lambda x, w: (lambda z: z + StraightThrough.apply(z, edit))(x @ w)
    assert_same(before("add_", edit, ["other"]), add_to_itself, by_hand)


def test_an_edit_of_a_view_reaches_its_base(after):
    def by_hand(x, w):
        z = x @ w
        return torch.cat([StraightThrough.apply(torch.relu(z[:2]), edit), z[2:]]) * 3

    assert_same(after("relu_", edit), relu_a_view, by_hand)


def test_every_step_of_a_chain_is_edited(after):
    def by_hand(x, w):
        z = x @ w
        for step in (lambda z: z * 2, lambda z: z + 1, lambda z: z - 0.5, torch.relu):
            z = StraightThrough.apply(step(z), edit)
        return z

    assert_same(after(["mul_", "add_", "relu_", "sub_"], edit), chain, by_hand)


def test_a_replacement_is_the_operator(replace):
    assert_same(replace("relu_", torch.sigmoid), relu_in_place, lambda x, w: torch.sigmoid(x @ w) * 3)


def test_a_replacement_may_call_the_original_on_a_copy():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(lambda x, op: op(x.clone()) * 2, op=c.op), ops="relu_")
    assert_same(tool, relu_in_place, lambda x, w: torch.relu(x @ w) * 2 * 3)


def test_resnet_block_trains_with_its_activation_edited(after):
    torch.manual_seed(0)
    nn = torch.nn

    def train(block, activation):
        conv, norm = block
        x = torch.ones(2, 3, 4, 4, requires_grad=True)
        y = activation(norm(conv(x))) + x
        y.square().sum().backward()
        return [x.grad, conv.weight.grad.clone(), norm.weight.grad.clone()]

    def block():
        torch.manual_seed(1)
        return nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    expected = train(block(), lambda y: StraightThrough.apply(torch.relu(y), lambda y: y * 0.5))
    with amanda.apply(after("relu_", lambda y: y * 0.5)):
        for _ in range(2):
            got = train(block(), nn.ReLU(inplace=True))
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b)


# ---- identity of the tensor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before", "after"])
def test_all_holders_of_the_tensor_see_the_edit(point, request):
    x = torch.tensor([-1.0, 2.0])
    view, address = x[:1], x.data_ptr()
    with amanda.apply(request.getfixturevalue(point)("relu_", lambda x: x + 1)):
        y = F.relu(x, inplace=True)
    assert y is x
    assert x.data_ptr() == address
    assert x.tolist() == ([0.0, 3.0] if point == "before" else [1.0, 3.0])
    assert view.item() == x[0].item()


def test_the_tools_own_value_is_not_written_to(before):
    own = torch.zeros(2)
    x = torch.ones(2)
    with amanda.apply(before("add_", lambda x: own, ["self"])):
        x.add_(5)
    assert (x.tolist(), own.tolist()) == ([5.0, 5.0], [0.0, 0.0])


def test_a_parameter_update_is_edited(after):
    p = torch.nn.Parameter(torch.ones(2))
    with amanda.apply(after("add_", lambda p: p * 10)), torch.no_grad():
        for _ in range(2):
            p.add_(1)
    assert p.tolist() == [210.0, 210.0]
    assert p.requires_grad
    assert p.is_leaf


def test_pytorchs_own_error_for_a_leaf_is_kept(recorder, before, after, replace):
    text = "a leaf Variable that requires grad is being used in an in-place operation"
    for tool in (recorder(), before("relu_", edit), after("relu_", edit), replace("relu_", torch.sigmoid)):
        x = torch.ones(2, requires_grad=True)
        with amanda.apply(tool), pytest.raises(RuntimeError, match=text):
            x.relu_()


def test_random_operators_draw_once(recorder, after):
    def dropout():
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        y = F.dropout(x * 1, 0.5, True, inplace=True)
        y.sum().backward()
        return [y.detach(), x.grad, torch.get_rng_state()]

    expected = dropout()
    for tool in (recorder(), recorder(nested=True), after("dropout_", lambda y: None)):
        with amanda.apply(tool):
            for _ in range(2):
                assert all(torch.equal(a, b) for a, b in zip(dropout(), expected, strict=True))


# ---- lists -----------------------------------------------------------------------------------------------------------


def test_a_foreach_operator_is_looked_at(recorder):
    tool = recorder(ops="_foreach_add_")
    tensors = [torch.ones(2), torch.ones(3)]
    with amanda.apply(tool):
        for _ in range(2):
            torch._foreach_add_(tensors, 1.0)
    assert [t[0].item() for t in tensors] == [3.0, 3.0]
    assert tool.inputs[0][0][0] is tensors[0]


def test_a_foreach_operators_input_is_edited(before):
    tensors = [torch.ones(2), torch.ones(3)]
    with amanda.apply(before("_foreach_add_", lambda self: [t * 10 for t in self], ["self"])):
        for _ in range(2):
            torch._foreach_add_(tensors, 1.0)
    assert [t[0].item() for t in tensors] == [111.0, 111.0]
    with amanda.apply(before("_foreach_add_", lambda other: [t * 10 for t in other], ["other"])):
        torch._foreach_add_(tensors, [torch.ones(2), torch.ones(3)])
    assert [t[0].item() for t in tensors] == [121.0, 121.0]


def test_members_that_are_one_tensor_stay_one(before):
    def copies(tensors):
        return [t.clone() for t in tensors]

    a, b = torch.zeros(2), torch.zeros(2)
    with amanda.apply(before("_foreach_add_", copies, ["self"])):
        torch._foreach_add_([a, b, a], 1.0)
    assert (a.tolist(), b.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_members_that_are_one_tensor_can_have_one_value_only(before, says):
    a = torch.zeros(2)
    text = "its members 0 and 1 are one tensor, which the operator writes to; the values for them differ"

    def routine(tensors):
        return [t + i for i, t in enumerate(tensors)]

    with says(amanda.Error, f"[action] tool: routine before aten::_foreach_add_: input 0 (self): {text}"):
        with amanda.apply(before("_foreach_add_", routine, ["self"])):
            torch._foreach_add_([a, a], 1.0)
    assert a.tolist() == [0.0, 0.0]


def test_members_that_share_memory_are_not_edited_in_silence(before, says):
    def routine(tensors):
        return [t.clone() for t in tensors]

    a = torch.zeros(2)
    text = "its members 0 and 1 share memory that the operator writes to; other values cannot replace them"
    with says(amanda.Error, f"[action] tool: routine before aten::_foreach_add_: input 0 (self): {text}"):
        with amanda.apply(before("_foreach_add_", routine, ["self"])):
            torch._foreach_add_([a, a[1:]], 1.0)


def test_members_handed_back_are_no_edit(before):
    a = torch.zeros(2)
    with amanda.apply(before("_foreach_add_", lambda tensors: list(tensors), ["self"])):
        torch._foreach_add_([a, a[1:]], 1.0)
    assert a.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_step_is_unharmed(foreach, recorder):
    def step():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    expected = step()
    with amanda.apply(recorder(nested=True)):
        got = step()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


# ---- out= ------------------------------------------------------------------------------------------------------------


def test_an_out_argument_holds_the_edited_value(before, after):
    x, out = torch.ones(2), torch.empty(2)
    with amanda.apply(after("add", edit)):
        assert torch.add(x, x, out=out) is out
        assert out.tolist() == [5.0, 5.0]
    with amanda.apply(before("add", edit, ["self"])):
        assert torch.add(x, x, out=out) is out
        assert out.tolist() == [4.0, 4.0]
    assert x.tolist() == [1.0, 1.0]


def test_an_out_argument_may_grow(after):
    x, out = torch.ones(2), torch.empty(0)
    with amanda.apply(after("add", lambda y: torch.cat([y, y]))):
        torch.add(x, x, out=out)
    assert out.tolist() == [2.0] * 4


def test_one_of_several_out_arguments_is_edited(after):
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
    with amanda.apply(after("max", lambda values, indices: (values * 10, None))):
        result = torch.max(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([20.0, 40.0], [1, 0])
    assert result.values is values


def test_a_replacement_fills_the_out_argument(replace):
    x, out = torch.ones(2), torch.empty(2)
    with amanda.apply(replace("add", lambda *inputs: torch.full((2,), 7.0))):
        assert torch.add(x, x, out=out) is out
    assert out.tolist() == [7.0, 7.0]


# ---- views -----------------------------------------------------------------------------------------------------------

VIEW = (
    "its result is a view, and a value put in its place would no longer share memory with the operator's input; pass "
    "allow_view=True if nothing relies on that"
)


def doubled(y, *rest):
    return y * 2


def test_a_view_is_not_edited_by_accident(after, replace, says):
    x = torch.randn(2, 3)
    with says(amanda.Error, f"[action] tool: doubled after aten::transpose: output 0: {VIEW}"):
        with amanda.apply(after("transpose", doubled)):
            x.transpose(0, 1)
    with says(amanda.Error, f"[context] tool: replace_op on aten::transpose: {VIEW}"):
        with amanda.apply(replace("transpose", doubled)):
            x.transpose(0, 1)


def test_a_view_is_edited_on_request(after, replace):
    x = torch.randn(2, 3)
    with amanda.apply(after("transpose", doubled, allow_view=True)):
        assert torch.equal(x.transpose(0, 1), x.T * 2)
    with amanda.apply(replace("transpose", lambda x, *dims: x.T * 2, allow_view=True)):
        assert torch.equal(x.transpose(0, 1), x.T * 2)


def test_looking_at_a_view_is_always_allowed(recorder):
    tool, x = recorder(), torch.randn(2, 3)
    with amanda.apply(tool):
        y = x.transpose(0, 1)
    assert y._is_view()
    assert y._base is x
    assert y.data_ptr() == x.data_ptr()
    assert tool.trace == ["transpose?", "transpose<", "transpose>"]


def test_an_operator_that_only_may_return_a_view_is_edited_where_it_copies(after, says):
    x = torch.randn(2, 3)
    with amanda.apply(after("reshape", doubled)):
        assert torch.equal(x.T.reshape(6), x.T.flatten() * 2)
        with says(amanda.Error, f"[action] tool: doubled after aten::reshape: output 0: {VIEW}"):
            x.reshape(6)


def test_a_list_of_views_is_edited_on_request(after, says):
    def routine(parts):
        return [part * 2 for part in parts]

    x = torch.ones(2, 2)
    with says(amanda.Error, f"[action] tool: routine after aten::unbind: output 0: {VIEW}"):
        with amanda.apply(after("unbind", routine)):
            torch.unbind(x)
    with amanda.apply(after("unbind", routine, allow_view=True)):
        assert [part.tolist() for part in torch.unbind(x)] == [[2.0, 2.0]] * 2


OPERAND_OF_VIEW = (
    "the operator's result is a view of it, and would no longer share memory with the program's tensor; pass "
    "allow_view=True if nothing relies on that"
)


def same_again(*values):
    return [v.clone() if isinstance(v, torch.Tensor) else None for v in values]


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize(
    ("ops", "view"),
    [
        ("view", lambda x: x.view(6)),
        ("transpose", lambda x: x.transpose(0, 1)),
        ("reshape", lambda x: x.reshape(6)),
        ("to", lambda x: x.to(torch.float32)),
        ("detach", lambda x: x.detach()),
        ("unbind", lambda x: x.unbind()[0]),
        ("slice", lambda x: x[1:]),
    ],
)
def test_what_a_view_is_made_of_is_not_edited_by_accident(ops, view, differentiable, before, says):
    x = torch.zeros(2, 3)
    text = f"[action] tool: same_again before aten::{ops}: input 0 (self): {OPERAND_OF_VIEW}"
    with says(amanda.Error, text), amanda.apply(before(ops, same_again, differentiable=differentiable)):
        view(x)
    with amanda.apply(before(ops, lambda *values: None)):
        view(x).add_(1)
    assert x.sum().item() > 0  # looking cuts nothing
    with amanda.apply(before(ops, same_again, allow_view=True, differentiable=differentiable)):
        torch.testing.assert_close(view(x), view(x.clone()))


def test_the_operand_of_an_operator_that_copies_is_edited(before):
    x = torch.ones(2, 3)
    with amanda.apply(before(["reshape", "to", "contiguous"], doubled, [0])):
        assert x.T.reshape(6).tolist() == [2.0] * 6
        assert x.to(torch.float64).tolist() == [[2.0] * 3] * 2
        assert x.T.contiguous().tolist() == [[2.0] * 2] * 3


def test_the_other_operands_of_a_view_are_edited(before):
    x = torch.zeros(4)
    with amanda.apply(before("view", lambda size: [4, 1], ["size"])):
        y = x.view(2, 2)
    y.add_(1)
    assert (y.shape, x.tolist()) == ((4, 1), [1.0] * 4)


# ---- what can't be done ----------------------------------------------------------------------------------------------


def test_the_shape_of_an_in_place_tensor_cant_change(after, says):
    def routine(x):
        return x[:1]

    text = "the shape of an in-place operator's tensor can't change: it is [2], the value has [1]"
    with says(amanda.Error, f"[action] tool: routine after aten::relu_: output 0: {text}"):
        with amanda.apply(after("relu_", routine)):
            torch.ones(2).relu_()


def test_nothing_can_stand_for_a_change_of_shape_in_place(before, after, replace, says):
    text = "it changes its tensor's shape or storage in place; no other value can replace its result"
    with says(amanda.Error, f"[action] tool: doubled before aten::t_: input 0 (self): {text}"):
        with amanda.apply(before("t_", doubled)):
            torch.ones(2, 3).t_()
    with says(amanda.Error, f"[action] tool: doubled after aten::t_: output 0: {text}"):
        with amanda.apply(after("t_", doubled)):
            torch.ones(2, 3).t_()
    with says(amanda.Error, f"[context] tool: replace_op on aten::t_: {text}"):
        with amanda.apply(replace("t_", doubled, allow_view=True)):
            torch.ones(2, 3).t_()


def test_a_late_edit_is_refused_once_while_autograd_records(after, says):
    def routine(y):
        return edit(y) if editing else None

    editing = False
    tool = after("relu_", routine)
    plain = gradients(lambda x, w: torch.relu(x @ w) * 3)
    edited = gradients(lambda x, w: StraightThrough.apply(torch.relu(x @ w), edit) * 3)
    text = (
        "[action] tool: routine after aten::relu_: output 0: the routine only looked at this in-place operator "
        "before, so it ran in place, and autograd has saved its result; an edit can't be put in any more. It is "
        "prepared for from the next run on"
    )
    results = []
    with amanda.apply(tool):
        for editing, refused in [(False, False), (True, True), (True, False), (False, False)]:
            with says(amanda.Error, text) if refused else contextlib.nullcontext():
                results.append(gradients(relu_in_place))  # one place of the program
    torch.testing.assert_close(results, [plain, edited, plain])


def test_a_late_edit_without_gradients_needs_no_preparation(after):
    def routine(y):
        return edit(y) if editing else None

    tool = after("relu_", routine)
    with amanda.apply(tool):
        for editing, expected in [(False, 1.0), (True, 3.0), (False, 1.0), (True, 3.0)]:
            x = torch.ones(1)
            x.relu_()
            assert x.item() == expected


def test_an_edit_of_a_view_is_refused_in_inference_mode_too(after):
    x = torch.ones(4)
    with (
        torch.inference_mode(),
        amanda.apply(after("view", lambda y: y + 1)),
        pytest.raises(amanda.Error, match="is a view"),
    ):
        x.view(2, 2)
    with torch.inference_mode():
        made = torch.ones(4)
        with amanda.apply(after("view", lambda y: y + 1)), pytest.raises(amanda.Error, match="is a view"):
            made.view(2, 2)


def test_all_edited_results_reach_their_out_tensors(after):
    x, values, indices = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.empty(2), torch.empty(2, dtype=torch.long)
    with amanda.apply(after("max", lambda v, i: (v * 0 + 7, i * 0 + 7))):
        torch.max(x, 1, out=(values, indices))
    assert values.tolist() == [7, 7]
    assert indices.tolist() == [7, 7]


def test_the_result_of_a_trial_run_takes_hooks_and_requires_a_gradient(after):
    seen = []

    def look(value):
        seen.append(value.requires_grad)
        value.register_hook(lambda gradient: None)

    w = torch.ones(2, requires_grad=True)
    with amanda.apply(after("relu_", look)):
        for _ in range(2):
            torch.relu_(w * 1).sum().backward()
    assert seen == [True, True]
    assert w.grad.tolist() == [2, 2]


def test_a_differentiable_edit_decided_after_the_first_run_is_differentiable_in_it():
    class Triple(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="relu_", require_outputs=True)

        def analyze(self, context):
            context.insert_after_op(lambda value: value * 3, differentiable=True)

    with amanda.apply(Triple()):
        for _ in range(2):
            w = torch.ones(2, requires_grad=True)
            torch.relu_(w * 1).sum().backward()
            assert w.grad.tolist() == [3, 3]


def test_looking_without_recording_leaves_a_later_edit_possible(after):
    edits = []
    w = torch.ones(2, requires_grad=True)
    with amanda.apply(after("relu_", lambda value: value * 2 if edits else None)):
        for training in (False, True):
            edits[:] = [1] if training else []
            with torch.set_grad_enabled(training):
                y = w * 1
                torch.relu_(y)
    y.sum().backward()
    assert y.tolist() == [2, 2]
    assert w.grad.tolist() == [1, 1]


def test_a_custom_in_place_operator_runs_once_under_a_tool_that_looks(after):
    runs = []
    library = torch.library.Library("amanda_once", "DEF")
    library.define("add_one_(Tensor(a!) x) -> Tensor(a!)")

    @torch.library.impl(library, "add_one_", "CPU")
    def add_one_(x):
        runs.append(1)
        return x.add_(1)

    with amanda.apply(after("add_one_", lambda value: None)), torch.no_grad():
        torch.ops.amanda_once.add_one_(torch.zeros(1))
    assert len(runs) == 1


# ---- a routine that raises after the operator has run ----------------------------------------------------------------


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("runs_before", [0, 1, 2])
def test_the_tensor_is_changed_when_a_look_at_the_result_fails(recording, runs_before, after):
    def look(y):
        if fails:
            raise ValueError("look")

    fails = False
    with amanda.apply(after("add_", look)):
        for run in range(runs_before + 1):
            x = torch.ones(2, requires_grad=recording) * 1
            fails = run == runs_before
            with pytest.raises(ValueError, match="look") if fails else contextlib.nullcontext():
                x.add_(1)
    assert x.tolist() == [2.0, 2.0]
    assert x._version == 1
    if recording:
        assert x.grad_fn.name() == "AddBackward0"


def test_the_tensor_is_changed_when_an_analysis_of_the_result_fails():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: 1 / 0, ops="add_", require_outputs=True)
    x = torch.ones(2, requires_grad=True) * 1
    with amanda.apply(tool), pytest.raises(ZeroDivisionError):
        x.add_(1)
    assert x.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("recording", [False, True])
def test_edits_made_before_the_failure_remain(recording, after):
    def fail(y):
        raise ValueError("late")

    late = after("add_", fail, name="late")
    late.depends_on(after("add_", lambda y: y * 10, name="early"))
    x = torch.ones(2, requires_grad=recording) * 1
    with amanda.apply(late), pytest.raises(ValueError, match="late"):
        x.add_(1)
    assert x.tolist() == [20.0, 20.0]


def test_nothing_is_changed_when_a_routine_before_it_fails(before):
    def fail(*values):
        raise ValueError("early")

    x = torch.ones(2, requires_grad=True) * 1
    with amanda.apply(before("add_", fail)), pytest.raises(ValueError, match="early"):
        x.add_(1)
    assert (x.tolist(), x._version) == ([1.0, 1.0], 0)


# ---- what a first look shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        lambda base: base[:, ::2],
        lambda base: base.T,
        lambda base: base[:, 0],
        lambda base: base[1:, 1:3],
        lambda base: base.as_strided((2, 3), (1, 2)),
    ],
)
def test_a_first_look_shows_the_results_strides(part, after):
    seen = []
    base = torch.randn(4, 6, requires_grad=True) * 1
    tensor = part(base)
    with amanda.apply(after("relu_", lambda y: seen.append((y.shape, y.stride(), y.tolist())))):
        for _ in range(2):
            tensor.relu_()
    assert seen == [(tensor.shape, tensor.stride(), tensor.tolist())] * 2


@pytest.mark.parametrize("edits", [False, True])
def test_a_trial_run_and_an_edited_run_show_a_copy_of_the_view(edits, after):
    seen = []

    def routine(y):
        seen.append((y.storage_offset(), y._is_view(), y.untyped_storage().nbytes(), y.tolist()))
        return y * 1 if edits else None

    base = torch.tensor([[-1.0, 2.0], [3.0, -4.0]], requires_grad=True) * 1
    with amanda.apply(after("relu_", routine)):
        for _ in range(3):
            base[1].relu_()
    copy, view = (0, False, 8, [3.0, 0.0]), (2, True, 16, [3.0, 0.0])
    assert seen == ([copy] * 3 if edits else [copy, view, view])
    assert base.tolist() == [[-1.0, 2.0], [3.0, 0.0]]


def test_a_run_without_recording_shows_the_view(after):
    seen = []
    base = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    with amanda.apply(after("relu_", lambda y: seen.append((y.storage_offset(), y._is_view())))):
        base[1].relu_()
    assert seen == [(2, True)]


def test_pytorchs_own_error_for_overlapping_elements_is_kept(after):
    x = (torch.ones(1, requires_grad=True) * 1).expand(3)
    with amanda.apply(after("relu_", lambda y: None)), pytest.raises(RuntimeError, match="more than one element of"):
        x.relu_()


def test_an_edit_inside_a_trial_run_remains(after):
    class Inner(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y + 5), ops="clamp_min_", nested=True)

    results = []
    with amanda.apply(Inner(), after("relu_", lambda y: None)):
        for _ in range(2):
            results.append(torch.relu_(torch.ones(2, requires_grad=True) * 1).tolist())
    assert results == [[6.0, 6.0]] * 2
