"""`amanda.points`: the operators of a program, and that looking changes nothing."""

import functools
import re

import amanda
import pytest
import torch
import torch.nn.functional as F


class Loop(torch.nn.Module):
    """Applies one layer three times; normalizes; drops."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x, scale=1.0):
        for _ in range(3):
            x = F.relu(self.layer(x))
        return {"out": F.dropout(self.norm(x), training=self.training) * scale}


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Loop()


def found(points):
    return [(row.operator, row.module_path, row.runs) for row in points.rows() if not row.backward_operator]


def test_rows_are_the_points_in_the_order_of_their_first_runs(model):
    points = amanda.points(model, X)
    assert found(points) == [
        ("aten::linear", "layer", 3),
        ("aten::relu", "", 3),
        ("aten::add_.Tensor", "norm", 1),
        ("aten::batch_norm", "norm", 1),
        ("aten::dropout", "", 1),
        ("aten::mul.Tensor", "", 1),
    ]
    linear, relu = points.rows()[:2]
    assert [(operand.name, str(operand)) for operand in linear.inputs] == [
        ("input", "float32[8, 4]"),
        ("weight", "float32[4, 4]"),
        ("bias", "float32[4]"),
    ]
    assert [str(operand) for operand in linear.outputs] == ["float32[8, 4]"]
    assert linear.inputs[0].shape == (8, 4)
    assert linear.inputs[0].device == "cpu"
    assert relu.source.rpartition(":")[0] == __file__
    assert (linear.backward_operator, linear.backward_op_id) == ("", None)


def test_ids_are_those_of_other_scopes(model):
    ids = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: ids.append(context.op_id))
    model.eval()
    with amanda.apply(tool):
        model(X)
    assert [row.op_id for row in amanda.points(model, X).rows()] == ids


def test_inputs_and_keywords_are_the_program_s(model):
    outputs = []

    def program(*inputs, **keywords):
        outputs.append(model(*inputs, **keywords)["out"])

    amanda.points(program, X, scale=0.0)
    assert not outputs[0].any()


def test_lists_of_tensors_and_numbers():
    (row,) = amanda.points(torch.cat, [X, X], 1).rows()
    assert [str(operand) for operand in row.inputs] == ["(float32[8, 4], float32[8, 4])", "int64"]
    assert [element.shape for element in row.inputs[0].elements] == [(8, 4), (8, 4)]
    assert row.inputs[1].kind == "number"


# ---- backward ----------------------------------------------------------------------------------------------------------


def test_backward_operators_stand_below_their_forward_operators(model):
    points = amanda.points(model, X, backward=True)
    rows = points.rows()
    linear, addmm = rows[0], next(row for row in rows if row.backward_operator == "AddmmBackward0")
    assert (addmm.operator, addmm.op_id, addmm.module_path, addmm.runs) == ("aten::linear", linear.op_id, "layer", 3)
    assert addmm.backward_op_id not in (None, linear.op_id)
    assert [str(operand) for operand in addmm.inputs] == ["float32[8, 4]"]
    assert [str(operand) for operand in addmm.outputs] == ["float32[4]", "float32[8, 4]", "float32[4, 4]"]
    below = rows[1 : 1 + sum(row.op_id == linear.op_id for row in rows[1:])]
    assert below
    assert all(row.op_id == linear.op_id and row.backward_operator for row in below)
    assert {row.backward_operator for row in rows} >= {"ReluBackward0", "NativeBatchNormBackward0", "MulBackward0"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_backward_operators_of_a_training_step_are_listed(model):
    def step():
        model(X)["out"].sum().backward()

    points = amanda.points(step)
    assert {"SumBackward0", "AddmmBackward0", "AccumulateGrad"} <= {row.backward_operator for row in points.rows()}
    assert all(parameter.grad is not None for parameter in model.parameters())  # it is the program's doing


def test_backward_of_several_results_and_of_what_the_program_was_called_with():
    x = X.clone().requires_grad_()
    before = x * 2
    points = amanda.points(lambda y: (y.sin(), [y.exp()], y.detach()), before, backward=True)
    assert [row.backward_operator for row in points.rows()] == ["", "SinBackward0", "", "ExpBackward0", ""]
    before.sum().backward()  # its graph was not freed
    assert torch.equal(x.grad, torch.full_like(X, 2.0))


@pytest.mark.parametrize("program", [lambda: X.sin(), lambda: None])
def test_backward_without_gradients_is_an_error(program):
    with pytest.raises(
        ValueError, match=r"\[points\] backward=True: nothing in the result requires a gradient; call a model"
    ):
        amanda.points(program, backward=True)


# ---- nothing changes ---------------------------------------------------------------------------------------------------


def state_of(model):
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    return tensors, versions, torch.get_rng_state(), [id(buffer) for buffer in model.buffers()]


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    assert one[1] == other[1]
    assert torch.equal(one[2], other[2])
    assert one[3] == other[3]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "program",
    [lambda model: model, lambda model: model.forward, lambda model: functools.partial(model, scale=2.0)],
    ids=["module", "method", "partial"],
)
def test_statistics_and_random_states_are_as_before(model, program, backward):
    before = state_of(model)
    points = amanda.points(program(model), X, backward=backward)
    assert "aten::batch_norm" in [row.operator for row in points.rows()]
    assert_same(before, state_of(model))
    assert model.training


def test_they_are_as_before_where_the_program_raises(model):
    def fails(module, inputs, output):
        raise KeyError("from a hook")

    model.norm.register_forward_hook(fails)
    before = state_of(model)
    with pytest.raises(KeyError, match="from a hook"):
        amanda.points(model, X)
    assert_same(before, state_of(model))


def test_a_graph_that_has_saved_a_buffer_can_still_be_differentiated(model):
    y = X.clone().requires_grad_() * model.norm.running_var
    amanda.points(model, X)
    y.sum().backward()


def test_buffers_that_are_assigned_or_written_behind_autograd_are_put_back():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("assigned", torch.zeros(1))
            self.register_buffer("hidden", torch.full((1,), float("nan")))
            self.register_buffer("absent", None)

        def forward(self, x):
            self.assigned = self.assigned + 1
            self.hidden.data.fill_(1.0)
            return x

    model = Counts()
    buffers = list(model.buffers())
    amanda.points(model, X)
    assert all(now is before for now, before in zip(model.buffers(), buffers, strict=True))
    assert model.assigned.item() == 0
    assert model.hidden.isnan()


def test_buffers_made_under_inference_mode_are_put_back():
    with torch.inference_mode():
        model = torch.nn.BatchNorm1d(4)
        amanda.points(model, X)
        assert model.num_batches_tracked.item() == 0
    assert not model.running_mean.any()


def test_other_tools_do_not_see_how_it_is_put_back(model, recorder):
    tool = amanda.Tool()
    seen = []
    tool.add_inst_for_op(lambda context: seen.append(context.op.__name__))
    with amanda.apply(tool):
        amanda.points(model, X, backward=True)
    assert "clone" not in seen
    assert "copy_" not in seen
    assert "ones_like" not in seen


# ---- the table ---------------------------------------------------------------------------------------------------------


def test_it_prints_as_a_table(model):
    text = str(amanda.points(model, X, backward=True))
    lines = text.splitlines()
    assert re.fullmatch(r"runs +operator +module +line +inputs +outputs +id", lines[0])
    linear = r" +3  aten::linear +layer +\S+:\d+ +input float32\[8, 4\], weight float32\[4, 4\], bias float32\[4\] +"
    assert re.fullmatch(linear + r"float32\[8, 4\] +0x[0-9a-f]+", lines[1])
    assert lines[2].startswith("   3    ")  # indented
    assert re.fullmatch(r"6 operators, \d+ backward operators, \d+ runs", lines[-1])
    assert repr(amanda.points(torch.sin, X)) == "<amanda points: 1 operator, 1 run>"
    assert str(amanda.points(lambda: None)) == "no operators ran"


def test_the_table_is_sorted_cut_and_shortened(model):
    points = amanda.points(model, X)
    lines = points.table(sort="runs", top=2).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["3", "aten::linear"], ["3", "aten::relu"]]
    assert lines[3] == "and 4 more"
    operators = [line.split()[1] for line in points.table(sort="operator").splitlines()[1:-1]]
    assert operators == sorted(operators)
    assert max(map(len, points.table(width=110).splitlines())) <= 110
    narrow = points.table(width=60).splitlines()
    assert max(map(len, narrow)) <= 60
    assert "no room in 60 characters for: inputs, outputs, id" in " ".join(map(str.strip, narrow))
    with pytest.raises(
        ValueError, match=r'\[points\] rows are sorted by "order", "runs", "operator" or "module", got \'time\''
    ):
        points.table(sort="time")


def test_pandas_and_notebooks(model):
    points = amanda.points(model, X)
    assert list(points.to_pandas().runs) == [3, 3, 1, 1, 1, 1]
    page = points._repr_html_()
    assert page.count("<tr>") == 7
    assert ">6 operators, 10 runs</caption>" in page


def test_what_cannot_be_called_is_an_error():
    with pytest.raises(
        TypeError, match=r"\[points\] points takes a model, or something else to call, and its inputs; got 3"
    ):
        amanda.points(3)


def test_an_operator_that_raises_is_listed_without_outputs():
    def program():
        try:
            X @ X
        except RuntimeError:
            return

    (row,) = amanda.points(program).rows()
    assert (row.operator, row.runs, row.outputs) == ("aten::matmul", 1, None)
    assert "(raised)" in str(amanda.points(program))
