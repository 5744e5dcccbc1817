"""The modules of a model and their state, as nn.Module's own methods tell them."""

import collections

import amanda
import pytest
import torch
from amanda import _torch
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import models
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.third = nn.Linear(3, 3)
        self.third.weight = self.first.weight
        self.missing = None
        self.register_parameter("no_parameter", None)
        self.register_buffer("no_buffer", None)


class SharedBetween(nn.Module):
    """One stateless part that two others hold, and one with state that comes before the part that holds it, too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.activations = nn.ModuleList([nn.ReLU(), nn.Sequential(nn.ReLU())])
        self.later = nn.Sequential(nn.Sequential(self.norm), self.activations)


class Overriding(nn.Module):
    """What its class overrides is not called."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)

    def named_modules(self, *args, **kwargs):
        raise AssertionError("called")

    def __eq__(self, other):
        raise AssertionError("called")

    __hash__ = None

    def __bool__(self):
        raise AssertionError("called")


class Marked(torch.Tensor):
    pass


def of_a_subclass():
    model = nn.Linear(2, 3)
    model.weight = nn.Parameter(torch.ones(3, 2).as_subclass(Marked))
    return model


def ordered():
    model = nn.Linear(2, 3)
    parameters = collections.OrderedDict(model._parameters)
    parameters.move_to_end("weight")
    model.__dict__["_parameters"] = parameters
    return model


def compiled_inside():
    return nn.Sequential(nn.ReLU(), torch.compile(nn.Linear(2, 2), backend="eager"))


MODELS = {
    "one": lambda: nn.Linear(2, 3),
    "stateless": nn.ReLU,
    "nested": lambda: nn.TransformerEncoderLayer(8, 2),
    "buffers": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(), nn.Sequential(nn.Dropout())),
    "tied": Tied,
    "shared": SharedBetween,
    "a subclass": of_a_subclass,
    "ordered": ordered,
    "scalar": lambda: nn.ParameterList([torch.zeros(()), torch.zeros(0, 2), torch.zeros(5)]),
    "meta": lambda: nn.Linear(2, 3, device="meta"),
    "quoted": lambda: nn.ModuleDict({"it's": nn.Linear(1, 1), "äö\n": nn.Linear(1, 1)}),
    "script": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
}


def parts_of(model):
    return _torch.named_parts(model, None)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_parts_and_state_are_those_of_nn_module(make):
    model = make()
    parts = parts_of(model)
    expected = list(model.named_modules())
    assert [name for name, _ in parts] == [name for name, _ in expected]
    assert all(part is module for (_, part), (_, module) in zip(parts, expected, strict=True))
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    assert _torch.parameters_text(parts) == repr(shapes)
    state = [any(True for _ in (*part.parameters(), *part.buffers())) for _, part in parts]
    assert list(_torch.with_state(parts, None)) == state
    for _, part in parts:
        for kind in ("_parameters", "_buffers", "_modules"):
            held = [item for item in part.__dict__[kind].items() if item[1] is not None]
            assert all(a[0] == b[0] and a[1] is b[1] for a, b in zip(_torch.held(part, kind), held, strict=True))


def test_what_a_class_overrides_is_not_called():
    model = Overriding()
    assert [name for name, _ in parts_of(model)] == ["", "inner"]
    assert _torch.parameters_text(parts_of(model)) == "[('inner.weight', (2, 2))]"
    assert list(_torch.with_state(parts_of(model), None)) == [1, 1]


def test_a_lazy_parameter_has_no_shape():
    assert _torch.parameters_text(parts_of(nn.LazyLinear(2))) == "[('weight', None), ('bias', None)]"


class Pairs(dict):
    """A mapping whose items are lists."""

    def items(self):
        return [list(item) for item in super().items()]


def test_mappings_of_other_kinds_and_names_that_are_no_text():
    model = nn.Sequential()
    model.__dict__["_modules"] = Pairs({0: nn.Linear(1, 2), "one": nn.ReLU()})
    assert [name for name, _ in parts_of(model)] == ["", "0", "one"]
    assert _torch.parameters_text(parts_of(model)) == "[('0.weight', (2, 1)), ('0.bias', (2,))]"
    model.__dict__["_modules"] = type("Bad", (dict,), {"items": lambda self: [(1, 2, 3)]})(a=1)
    with pytest.raises(ValueError, match="no pair of a name and a value"):
        parts_of(model)


def test_a_cycle_ends():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].__dict__["_modules"]["back"] = model
    assert [name for name, _ in parts_of(model)] == ["", "0"]
    assert list(_torch.with_state(parts_of(model), None)) == [1, 1]


def test_a_chain_that_is_too_deep_is_pythons_error():
    model = nn.Sequential()
    for _ in range(100_000):
        model = nn.Sequential(model)
    with pytest.raises(RecursionError, match="while modules are named"):
        parts_of(model)
    while len(model):  # or its end would recurse as deeply
        model = model[0]


def test_a_wrapper_of_the_compiler_counts_as_its_module():
    model = compiled_inside()
    wrapper = port.compilers_wrapper()
    assert isinstance(model[1], wrapper)
    parts = models.named_parts(model)
    assert [name for name, _ in parts] == ["", "0", "1"]
    assert parts[2][1] is model[1]._orig_mod
    assert list(_torch.with_state(parts, wrapper)) == [1, 0, 1]


def test_what_is_in_the_place_of_a_buffer_and_is_no_tensor_is_skipped():
    model = nn.BatchNorm1d(2).eval()
    model._buffers["note"] = "no tensor"
    names = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: names.append(context.parameter_names[:5]), ops="batch_norm")
    with amanda.apply(tool):
        model(torch.ones(1, 2))
        nn.Sequential(model)(torch.ones(1, 2))  # that names it again
    own = ("weight", "bias", "running_mean", "running_var")
    assert [name[1:] for name in names] == [own, tuple(f"0.{name}" for name in own)]
