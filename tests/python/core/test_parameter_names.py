"""OpContext.parameter_names: which inputs are parameters or buffers, by their names in the model."""

import copy
import gc

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.drivers.torch.identity import parameter_names
from torch import nn

X = torch.ones(2, 4)


class Names(amanda.Tool):
    """Lists (operator, names) of every analysis."""

    def __init__(self, **options):
        super().__init__()
        self.seen = []
        self.add_inst_for_op(self.analyze, **options)

    def analyze(self, context):
        op = context.backward_op if context.is_backward() else context.op
        assert len(context.parameter_names) == len(context.inputs)
        self.seen.append((op.__name__, context.parameter_names))


def names(program, **options):
    tool = Names(**options)
    with amanda.apply(tool):
        program()
    return tool.seen


def names_of(op, program, **options):
    """Of each input, for each place of the operator, those that are no parameter left out."""
    return [tuple(filter(None, found)) for _, found in names(program, ops=op, **options)]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.layers(x) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


# ---- a model's operators ----------------------------------------------------------------------------------------------


def test_parameters_and_buffers_have_the_names_of_the_model():
    model = Net()
    seen = names(lambda: model(X), ops=["linear", "batch_norm", "mul"])
    layer, norm = "encoder.layers.0", "encoder.layers.1"
    assert seen == [
        ("linear", (None, f"{layer}.weight", f"{layer}.bias")),
        (
            "batch_norm",
            (None, *(f"{norm}.{name}" for name in ("weight", "bias", "running_mean", "running_var")), *[None] * 4),
        ),
        ("mul", (None, "encoder.scale")),
        ("linear", (None, "head.weight", "head.bias")),
    ]
    known = dict(model.named_parameters()) | dict(model.named_buffers())
    assert {name for _, found in seen for name in found if name} <= known.keys()


def test_a_name_is_that_of_the_very_parameter():
    model, found = Net(), {}

    def look(context):
        found.update(zip(context.parameter_names, context.inputs, strict=True))

    tool = amanda.Tool()
    tool.add_inst_for_op(look)
    with amanda.apply(tool):
        model(X)
    found.pop(None)
    expected = dict(model.named_parameters()) | dict(model.named_buffers())
    del expected["encoder.layers.1.num_batches_tracked"]
    expected["encoder.layers.1.num_batches_tracked"] = model.encoder.layers[1].num_batches_tracked
    assert found.keys() == expected.keys()
    assert all(found[name] is expected[name] for name in found)


def test_frozen_parameters_have_names():
    model = nn.Linear(4, 2).requires_grad_(False)
    assert names_of("linear", lambda: model(X)) == [("weight", "bias")]


def test_a_view_has_the_name_of_its_parameter():
    model = nn.Linear(4, 2)
    model(X)

    def program():
        model(X)
        X @ model.weight.t()
        model.weight[0].sum()

    assert names_of("matmul", program) == [("weight",)]
    assert names_of("sum", program) == [("weight",)]
    assert names_of("addmm", lambda: model(X), nested=True) == [("bias", "weight")]


def test_a_shared_parameter_has_its_first_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert names_of("linear", lambda: model(X)) == [("0.weight", "0.bias"), ("0.weight", "1.bias")]


def test_two_models_have_their_own_names_without_a_prefix():
    student = Net()
    teacher = copy.deepcopy(student)
    assert names_of("linear", lambda: (student(X), teacher(X))) == 2 * [
        ("encoder.layers.0.weight", "encoder.layers.0.bias"),
        ("head.weight", "head.bias"),
    ]


def test_a_part_that_ran_alone_first_has_its_names_in_the_model_as_its_module_path_is():
    model, paths = Net(), []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: paths.append((c.module_path, c.parameter_names[1])), ops="linear")
    with amanda.apply(tool):
        model.encoder(X)
        model(X)
    encoder = [("layers.0", "layers.0.weight"), ("encoder.layers.0", "encoder.layers.0.weight")]
    assert paths == [*encoder, ("head", "head.weight")]


def test_a_compiled_model_has_the_names_of_the_plain_one():
    model = torch.compile(nn.Sequential(nn.Linear(4, 2)), backend="eager")
    assert names_of("linear", lambda: model(X)) == [("0.weight", "0.bias")]


def test_what_stands_for_a_parameter_in_a_functional_call_has_its_name():
    model = nn.Linear(4, 2)
    leaves = {name: torch.ones_like(value).requires_grad_() for name, value in model.named_parameters()}
    assert names_of("linear", lambda: torch.func.functional_call(model, leaves, (X,))) == [("weight", "bias")]
    assert names_of("linear", lambda: F.linear(X, leaves["weight"])) == [()]


def test_an_exchanged_parameter_has_the_name_and_the_former_one_has_none():
    model = nn.Linear(4, 2)
    model(X)
    former = model.weight

    def program():
        model(X)
        F.linear(X, former)

    assert names_of("linear", program) == [("weight", "bias"), ("weight",)]
    model.weight = nn.Parameter(torch.ones(2, 4))
    assert names_of("linear", program) == [("weight", "bias"), ()]


def test_swapped_parameters_stay_named():
    model = nn.Linear(4, 2)
    assert names_of("linear", lambda: model(X)) == [("weight", "bias")]
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(2, 4)))
    assert names_of("linear", lambda: model(X)) == [("weight", "bias")]


def test_names_do_not_keep_a_model_alive_nor_pass_to_another():
    for index in range(5):
        model = nn.Sequential(*[nn.Identity()] * index, nn.Linear(4, 2))
        assert names_of("linear", lambda m=model: m(X)) == [(f"{index}.weight", f"{index}.bias")]
        del model
        gc.collect()
    assert names_of("linear", lambda: F.linear(X, torch.ones(2, 4, requires_grad=True))) == [()]
    kept = [holder for holders in parameter_names._holders.values() for holder in holders]
    assert all(holder.module() is not None for holder in kept)


def test_names_with_characters_that_are_no_text_are_escaped():
    model = nn.Module()
    model.register_parameter("w\udc80", nn.Parameter(torch.ones(2, 4)))
    model.forward = lambda x: F.linear(x, model._parameters["w\udc80"])
    assert names_of("linear", lambda: model(X)) == [("w\\udc80",)]


# ---- backward ---------------------------------------------------------------------------------------------------------


def test_a_backward_operator_has_the_names_of_its_forward_operator():
    model = nn.Linear(4, 2)
    seen = dict(names(lambda: model(X).sum().backward(), backward=True, ops="linear"))
    assert seen["AddmmBackward0"] == (None, "weight", "bias")


# ---- the optimizer's operators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizers_operators_name_the_parameters_that_they_write(make, foreach):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = make(model.parameters(), lr=0.1, foreach=foreach)
    expected = [name for name, _ in model.named_parameters()]

    def step():
        model(X).sum().backward()
        optimizer.step()

    first = [found[0] for _, found in names(step, ops=["add_", "addcdiv_", "_foreach_add_", "_foreach_addcdiv_"])]
    if foreach:
        assert tuple(expected) in first
    else:
        assert [name for name in first if name] == expected


def test_the_fused_optimizer_names_its_parameters():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(X).sum().backward()
    ((_, found),) = names(optimizer.step, ops="_fused_adam_")
    assert found[0] == ("weight", "bias")
    assert found[1] == (None, None)


def test_a_model_none_of_whose_operators_was_seen_has_names(monkeypatch):
    model, loose = Net(), nn.Parameter(torch.ones(2))
    model(X).sum().backward()
    loose.grad = torch.ones(2)
    optimizer = torch.optim.SGD([*model.parameters(), loose], lr=0.1, foreach=True)
    expected = (*(name for name, _ in model.named_parameters()), None)
    searches = []
    search = parameter_names.all_outermost
    monkeypatch.setattr(parameter_names, "all_outermost", lambda: searches.append(1) or search())
    for _ in range(3):
        ((_, found),) = names(optimizer.step, ops="_foreach_add_")
        assert found[0] == expected
    assert len(searches) == 2  # for the first parameter, and for the loose one
    later = nn.Module()
    later.given = loose
    ((_, found),) = names(optimizer.step, ops="_foreach_add_")
    assert found[0] == (*expected[:-1], "given")


# ---- what is no parameter ---------------------------------------------------------------------------------------------


def test_what_is_no_parameter_has_no_name():
    leaf = torch.ones(2, 4, requires_grad=True)
    assert names(lambda: torch.add(leaf, X)) == [("add", (None, None, None))]
    assert names(lambda: torch.cat([X, leaf])) == [("cat", ((None, None), None))]
    assert names(lambda: torch.add(nn.Parameter(X.clone()), 1), ops="add") == [("add", (None, None, None))]


def test_names_do_not_change_ids():
    model, ids = Net(), []
    plain, asking = amanda.Tool(), amanda.Tool()
    plain.add_inst_for_op(lambda context: ids.append(context.op_id))
    asking.add_inst_for_op(lambda context: (ids.append(context.op_id), context.parameter_names))
    for tool in (plain, asking, plain):
        with amanda.apply(tool):
            model(X)
    third = len(ids) // 3
    assert ids[:third] == ids[third : 2 * third] == ids[2 * third :]


def test_names_are_known_during_the_analysis_only():
    kept = []
    tool = amanda.Tool()
    tool.add_inst_for_op(kept.append, ops="relu")
    with amanda.apply(tool):
        X.relu()
        with pytest.raises(amanda.Error, match=r"^\[context\] inputs works only while the analysis routine runs"):
            _ = kept[0].parameter_names
