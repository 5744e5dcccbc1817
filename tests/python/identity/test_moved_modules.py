"""Modules that are added, moved, replaced or shared after their model's first run have the names they have now."""

import collections
import copy

import amanda
import pytest
import torch
from torch import nn

X = torch.randn(4, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Listed(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = layer(x)
        return x


class Adapter(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(8, 2), nn.Linear(2, inner.out_features)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def linear():
    return nn.Linear(8, 8)


class Seen(amanda.Tool):
    """(module path, id) of each linear operator that runs, and the names that its analyses were given."""

    def __init__(self, **filters):
        super().__init__("seen")
        self.runs, self.names = [], []
        self.add_inst_for_op(self.analyze, ops="linear", **filters)

    def analyze(self, context):
        place = context.module_path, context.op_id
        self.names.append((context.module_path, context.parameter_names[1]))
        context.insert_before_op(lambda: self.runs.append(place), inputs=[])

    def take(self):
        taken, self.runs = self.runs, []
        return taken


def run(model, **filters):
    tool = Seen(**filters)
    with amanda.apply(tool):
        model(X)
    return tool.runs


def paths(model, **filters):
    return [path for path, _ in run(model, **filters)]


def parameter_names(model):
    tool = Seen()
    with amanda.apply(tool):
        model(X)
    return tool.names


def named(model):
    """By PyTorch: the names of the linear modules, in the order in which they run."""
    names, found, handles = {module: name for name, module in model.named_modules()}, [], []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(lambda m, a, y: found.append(names[m])))
    model(X)
    for handle in handles:
        handle.remove()
    return found


# ---- each way to change a model ---------------------------------------------------------------------------------------


def sequence():
    return nn.Sequential(linear(), linear(), linear())


def module_list():
    return Listed(nn.ModuleList([linear(), linear(), linear()]))


def module_dict():
    return Listed(nn.ModuleDict({"a": linear(), "b": linear()}))


def replace_directly(model):  # as torch.ao.quantization does
    model._modules["head"] = linear()


class Aliased(Net):
    def __init__(self):
        super().__init__()
        self.alias = self.body

    def forward(self, x):
        return self.head(self.alias(x))


CHANGES = {
    "setattr": (Net, lambda model: setattr(model, "head", linear())),
    "add_module": (sequence, lambda model: model.add_module("last", linear())),
    "register_module": (sequence, lambda model: model.register_module("last", linear())),
    "set_submodule": (Net, lambda model: model.set_submodule("head", linear())),
    "_modules": (Net, replace_directly),
    "delattr": (Aliased, lambda model: delattr(model, "body")),
    "an adapter around": (Net, lambda model: setattr(model, "head", Adapter(model.head))),
    "exchanged": (Net, lambda model: model.__setattr__("head", model.body) or setattr(model, "body", linear())),
    "Sequential.append": (sequence, lambda model: model.append(linear())),
    "Sequential.extend": (sequence, lambda model: model.extend([linear(), linear()])),
    "Sequential.insert": (sequence, lambda model: model.insert(0, linear())),
    "Sequential.insert of no operator": (sequence, lambda model: model.insert(0, nn.Identity())),
    "Sequential.pop": (sequence, lambda model: model.pop(0)),
    "Sequential.__delitem__": (sequence, lambda model: model.__delitem__(1)),
    "Sequential.__setitem__": (sequence, lambda model: model.__setitem__(1, linear())),
    "ModuleList.append": (module_list, lambda model: model.layers.append(linear())),
    "ModuleList.insert": (module_list, lambda model: model.layers.insert(1, linear())),
    "ModuleList.insert of no operator": (module_list, lambda model: model.layers.insert(0, nn.Identity())),
    "ModuleList.pop": (module_list, lambda model: model.layers.pop(0)),
    "ModuleList.__delitem__ of a slice": (module_list, lambda model: model.layers.__delitem__(slice(0, 2))),
    "a reversed ModuleList": (module_list, lambda model: setattr(model, "layers", nn.ModuleList(model.layers[::-1]))),
    "ModuleDict.update": (module_dict, lambda model: model.layers.update({"c": linear()})),
    "ModuleDict.pop": (module_dict, lambda model: model.layers.pop("a")),
    "a Parameter": (Net, lambda model: setattr(model.head, "weight", nn.Parameter(torch.zeros(3, 8)))),
    "no bias": (Net, lambda model: model.head.register_parameter("bias", None)),
}


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("in_one_scope", [False, True], ids=["a new scope", "one scope"])
def test_names_are_those_of_named_modules_after(make, change, in_one_scope):
    model = make()
    tool = Seen()
    with amanda.apply(tool):
        model(X)
        assert [path for path, _ in tool.take()] == named(model)
        if in_one_scope:
            change(model)
            tool.take()
            model(X)
            runs = tool.take()
            expected = named(model)
    if not in_one_scope:
        change(model)
        runs, expected = run(model), named(model)
    assert [path for path, _ in runs] == expected
    assert parameter_names(model) == [(path, f"{path}.weight") for path in expected]
    for path in expected:
        assert paths(model, modules=path) == [each for each in expected if each == path or each.startswith(f"{path}.")]


def test_what_did_not_move_keeps_its_ids_and_what_is_new_has_its_own():
    model = Net()
    first = dict(run(model))
    old = model.head
    model.head = nn.Linear(8, 5)
    second = dict(run(model))
    assert second["body"] == first["body"]
    assert second["head"] != first["head"]  # a mask for the former one does not fit
    model.head = nn.Linear(8, 5)
    assert run(model)[1][1] not in (first["head"], second["head"])
    model.head = old
    assert dict(run(model)) == first


def test_layers_in_a_new_container_keep_their_ids():
    model = nn.Sequential(sequence(), linear())
    first = run(model)
    model[0] = nn.Sequential(*model[0])
    assert run(model) == first
    model[0] = model[0][:2]
    assert run(model) == [first[0], first[1], first[3]]


def test_ids_in_a_program_that_changes_a_model_are_the_same_for_an_equal_one():
    def program(model):
        seen = run(model)
        model.head = Adapter(model.head)
        return seen + run(model)

    first, second = program(Net()), program(Net())
    assert [path for path, _ in first] == [path for path, _ in second]
    assert not {id for _, id in first} & {id for _, id in second}  # another model
    assert len({id for _, id in first}) == len({id for _, id in second}) == 5


# ---- a module in several models ---------------------------------------------------------------------------------------


def test_a_layer_of_two_models_has_its_name_in_the_one_that_runs():
    layer = linear()
    first, second = nn.Sequential(layer), nn.Sequential(nn.Identity(), layer)
    for _ in range(2):
        assert parameter_names(first) == [("0", "0.weight")]
        assert parameter_names(second) == [("1", "1.weight")]
    assert not set(run(first)) & set(run(second))


def test_a_part_that_is_called_directly_has_its_name_in_the_model_that_ran():
    model = Net()
    assert paths(model) == ["body", "head"]
    assert paths(model.body) == ["body"]


def test_a_part_that_ran_alone_first_has_its_name_in_the_model():
    model = Net()
    alone = run(model.body)
    assert parameter_names(model) == [("body", "body.weight"), ("head", "head.weight")]
    assert run(model.body) == alone == [("", alone[0][1])]


def test_ids_in_a_model_do_not_depend_on_what_ran_alone_before():
    def of(model):
        return [id for _, id in run(model)]

    torch.manual_seed(0)
    one, other = Listed(nn.ModuleList([linear()])), Listed(nn.ModuleList([linear()]))
    program = of(one), of(one.layers[0]), of(one)
    run(other.layers[0])
    assert program[0] == program[2]
    assert len(of(other)) == 1


def test_a_module_that_a_list_hides_is_named_once_the_model_holds_it():
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.hidden = linear(), [linear()]

        def forward(self, x):
            return self.hidden[0](self.own(x))

    model = Hiding()
    assert paths(model) == ["own", ""]
    model.found = model.hidden[0]
    assert paths(model) == ["own", "found"]
    del model.found
    assert paths(model) == ["own", ""]


def test_a_model_without_state_that_gets_some_is_another_model():
    models = [nn.Sequential(nn.ReLU()) for _ in range(2)]
    seen = amanda.Tool("seen")
    ids = []
    seen.add_inst_for_op(lambda c: c.insert_before_op(lambda id: ids.append(id), inputs=[], id=c.op_id), ops="relu")
    with amanda.apply(seen):
        for model in models:
            model(X)
        assert len(set(ids)) == 1
        for model in models:
            model.append(linear())
            model(X)
    assert len(set(ids)) == 3
    assert paths(models[0]) == ["1"]


def test_the_model_that_wraps_another_names_it_and_the_other_has_its_own_names_again():
    model = Net()
    plain = run(model)
    wrapper = Listed(nn.ModuleList([model]))
    assert paths(wrapper) == ["layers.0.body", "layers.0.head"]
    assert run(model) == plain
    del wrapper
    assert run(model) == plain


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's own, for an input that is no leaf
def test_a_compiled_part_has_the_name_of_the_module_inside():
    model = Net()
    assert paths(model) == ["body", "head"]
    model.head = torch.compile(Adapter(model.head), backend="eager")
    assert paths(model) == ["body", "head.inner", "head.down", "head.up"]
    assert paths(torch.compile(model, backend="eager")) == ["body", "head.inner", "head.down", "head.up"]


def test_buffers_of_a_layer_that_moves_have_its_name():
    model = nn.Sequential(nn.Identity(), nn.BatchNorm1d(8)).eval()
    names = []
    tool = amanda.Tool("names")
    tool.add_inst_for_op(lambda c: names.append(c.parameter_names[3]), ops="batch_norm")
    for change in (lambda: None, lambda: model.pop(0), lambda: model.insert(0, nn.ReLU())):
        change()
        with amanda.apply(tool):
            model(X)
    assert names == ["1.running_mean", "0.running_mean", "1.running_mean"]


def test_names_that_an_optimizer_asks_for_follow_a_move():
    model = sequence()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    names = []
    tool = amanda.Tool("names")
    tool.add_inst_for_op(lambda c: names.append(c.parameter_names[0]), ops="_foreach_add_")

    def step():
        model(X).sum().backward()
        with amanda.apply(tool), amanda.cache_disabled():
            optimizer.step()
        return names.pop()

    before = step()
    model.insert(0, nn.Identity())
    after = step()
    assert before == tuple(f"{i}.{name}" for i in range(3) for name in ("weight", "bias"))
    assert after == tuple(f"{i}.{name}" for i in range(1, 4) for name in ("weight", "bias"))


# ---- cost -------------------------------------------------------------------------------------------------------------


def test_a_model_that_stays_as_it_is_is_listed_once():
    from amanda import _torch
    from amanda.drivers.torch.identity import models

    model, listed = nn.Sequential(sequence(), sequence()), collections.Counter()
    original = models.register_model

    def counting(parts):
        listed[id(parts[0][1])] += 1
        return original(parts)

    models.register_model = counting
    try:
        with amanda.apply(Seen()):
            named_places = []
            for _ in range(3):
                model(X)
                named_places.append(_torch.count_named_places())
    finally:
        models.register_model = original
    assert listed == {id(model): 1}
    assert len(set(named_places)) == 1


def test_a_deep_copy_is_another_model_with_equal_names():
    model = Net()
    model.head = Adapter(model.head)
    first, second = run(model), run(copy.deepcopy(model))
    assert [path for path, _ in first] == [path for path, _ in second]
    assert not set(first) & set(second)
