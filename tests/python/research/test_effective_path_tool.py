"""EffectivePath: its paths against loops over single neurons, written in plain Python.

Weights and samples of most models are small integers: sums are exact in every order, many contributions are equal, and
equal means the same sets.
"""

import copy
import itertools
import math
import re
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.research.effective_path import EffectivePath, Path
from amanda.research.effective_path.synapses import critical
from amanda.tools.statistics import OpStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_regimes import REGIMES, in_regime
from torch import nn

THETAS = [0.1, 0.5, 0.9, 1.0]


# ---- oracle: one neuron at a time ------------------------------------------------------------------------------------


class Cells:
    """The neurons of one tensor, of one sample, by their index; what each is made of; and whether they are a layer."""

    def __init__(self, values, synapses, kind="sum", layer=True):
        self.values = values  # {index: number}
        self.synapses = synapses  # {index: [(Cells, index, factor, index of the weight)]}
        self.kind, self.layer = kind, layer


def numbers(tensor):
    return {index: tensor[index].item() for index in itertools.product(*map(range, tensor.shape))}


def sample(tensor):
    return Cells(numbers(tensor), {}, layer=False)


def weighted(synapses, bias=None, kind="sum", layer=True):
    values = {
        index: sum(x.values[i] * factor for x, i, factor, _ in own) + (bias(index) if bias else 0)
        for index, own in synapses.items()
    }
    return Cells(values, synapses, kind, layer)


def linear(x, weight, bias=None):
    synapses = {
        (o,): [(x, (i,), weight[o, i].item(), (o, i)) for i in range(weight.shape[1])] for o in range(weight.shape[0])
    }
    return weighted(synapses, None if bias is None else lambda index: bias[index[0]].item())


def window(x, c, y, z, kernel, stride, padding, dilation):
    """The cells that an output sees, with their places in the kernel."""
    for i, j in itertools.product(range(kernel), repeat=2):
        index = c, y * stride - padding + i * dilation, z * stride - padding + j * dilation
        yield (index if index in x.values else None), (i, j)


def size_of(x):
    return [1 + max(index[d] for index in x.values) for d in range(3)]


def conv(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    (outputs, width, kernel, _), (channels, height, wide) = weight.shape, size_of(x)
    rows, columns = ((n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for n in (height, wide))
    synapses = {}
    for o, y, z in itertools.product(range(outputs), range(rows), range(columns)):
        own = synapses[o, y, z] = []
        for c in range(width):
            first = o // (outputs // groups) * (channels // groups)
            for index, (i, j) in window(x, first + c, y, z, kernel, stride, padding, dilation):
                own.append((x, index, weight[o, c, i, j].item(), (o, c, i, j)) if index else None)
    return weighted_with_padding(synapses, bias)


def weighted_with_padding(synapses, bias=None, kind="sum"):
    values = {
        index: sum(one[0].values[one[1]] * one[2] for one in own if one)
        + (0 if bias is None else bias[index[0]].item())
        for index, own in synapses.items()
    }
    return Cells(values, synapses, kind)


def pool(x, kernel, stride, padding=0, kind="max"):  # or "sum": the average
    channels, height, wide = size_of(x)
    rows, columns = ((n + 2 * padding - kernel) // stride + 1 for n in (height, wide))
    synapses = {
        (c, y, z): [
            (x, index, 1 / kernel**2, None) if index else None
            for index, _ in window(x, c, y, z, kernel, stride, padding, 1)
        ]
        for c, y, z in itertools.product(range(channels), range(rows), range(columns))
    }
    cells = weighted_with_padding(synapses, kind=kind)
    if kind == "max":
        cells.values = {i: max(x.values[one[1]] for one in own if one) for i, own in synapses.items()}
    return cells


def mean(x):
    channels, height, wide = size_of(x)
    return weighted(
        {
            (c,): [(x, (c, y, z), 1 / (height * wide), None) for y in range(height) for z in range(wide)]
            for c in range(channels)
        }
    )


def add(left, right):
    return weighted({index: [(left, index, 1, None), (right, index, 1, None)] for index in left.values})


def mapped(x, function, slope=lambda index: 1, stops=False):
    cells = Cells({i: function(i, v) for i, v in x.values.items()}, {}, "map", layer=False)
    cells.synapses = {i: [(x, i, slope(i), None)] for i in x.values}
    if stops:
        cells.synapses = {i: own for i, own in cells.synapses.items() if cells.values[i] != 0}
    return cells


def relu(x):
    return mapped(x, lambda _, value: max(value, 0), stops=True)


def norm(x, module):
    mean, var, weight, bias = (
        t.tolist() for t in (module.running_mean, module.running_var, module.weight, module.bias)
    )
    scale = [w / math.sqrt(v + module.eps) for w, v in zip(weight, var, strict=True)]
    return mapped(x, lambda i, v: (v - mean[i[0]]) * scale[i[0]] + bias[i[0]], lambda i: scale[i[0]])


def flat(x, order=None):
    indices = sorted(x.values) if order is None else order
    cells = Cells({(n,): x.values[i] for n, i in enumerate(indices)}, {}, "map", layer=False)
    cells.synapses = {(n,): [(x, i, 1, None)] for n, i in enumerate(indices)}
    return cells


def concatenated(left, right):
    shift = size_of(left)[0]
    parts = [((i[0] + k * shift, *i[1:]), x, i) for k, x in enumerate((left, right)) for i in x.values]
    cells = Cells({new: x.values[i] for new, x, i in parts}, {}, "map", layer=False)
    cells.synapses = {new: [(x, i, 1, None)] for new, x, i in parts}
    return cells


def smallest_set(contributions, theta):
    """Positions of the largest positive contributions that reach theta of the sum."""
    ranked = sorted((n for n, value in enumerate(contributions) if value > 0), key=lambda n: (-contributions[n], n))
    total = sum(contributions)
    goal = theta * (total if total > 0 else sum(contributions[n] for n in ranked))
    reached, taken = 0, []
    for n in ranked:
        if reached >= goal:
            break
        reached += contributions[n]
        taken.append(n)
    return taken


def trace(tensors, theta, chosen):
    """The path: for each layer in order its neurons, synapses and weights; then the inputs.

    Arguments:
        tensors: all `Cells`, the sample first, in an order in which none comes before what it is made of.
        chosen: the class.
    """
    wants = {id(cells): {} for cells in tensors}  # index: the directions that consumers want
    wants[id(tensors[-1])][chosen,] = {"more" if tensors[-1].values[chosen,] >= 0 else "less"}
    layers = []
    for cells in reversed(tensors):
        neurons, synapses, weights = set(), set(), set()
        for index, directions in wants[id(cells)].items():
            neurons.add(index)
            sign = -1 if cells.values[index] < 0 else 1
            direction = sign if "more" in directions else -sign
            own = cells.synapses.get(index, [])
            if cells.kind == "sum":
                found = [0 if one is None else direction * one[0].values[one[1]] * one[2] for one in own]
                taken = [(n, "more") for n in smallest_set(found, theta)]
            elif cells.kind == "max":
                n = max(range(len(own)), key=lambda n: -math.inf if own[n] is None else own[n][0].values[own[n][1]])
                taken = [(n, "more" if "more" in directions else "less")]
            else:  # one to one
                taken = []
                for x, i, slope, _ in own:
                    if slope != 0:
                        upwards = 1 if x.values[i] >= 0 else -1
                        taken.append((0, "more" if direction * slope * upwards > 0 else "less"))
            for n, want in taken:
                x, i, _, weight = own[n]
                wants[id(x)].setdefault(i, set()).add(want)
                synapses.add((index, n))
                weights.add(weight)
        if cells.layer:
            layers.append((neurons, synapses, weights - {None}))
    return layers[::-1], set(wants[id(tensors[0])])


def members(mask):
    return {tuple(index) for index in mask.nonzero().tolist()}


def plain(path):
    """A `Path` as the oracle writes one."""
    layers = []
    for layer in path.layers.values():
        places = list(itertools.product(*map(range, layer.neurons.shape)))
        synapses = {(places[n // layer.fan_in], n % layer.fan_in) for n in layer.synapses.tolist()}
        layers.append((members(layer.neurons), synapses, set() if layer.weights is None else members(layer.weights)))
    return layers, members(path.inputs)


# ---- models, and what they are made of -------------------------------------------------------------------------------


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(torch.relu_(self.fc1(x.flatten(1))))

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv1.weight, self.conv1.bias)
        c = relu(b)
        d = pool(c, 2, 2)
        e = conv(d, self.conv2.weight, self.conv2.bias, padding=1)
        f = relu(e)
        g = pool(f, 2, 1, kind="sum")
        h = flat(g)
        i = linear(h, self.fc1.weight, self.fc1.bias)
        j = relu(i)
        return [a, b, c, d, e, f, g, h, i, j, linear(j, self.fc2.weight, self.fc2.bias)]


class Residual(nn.Module):
    """Batch normalization, one with negative weights, and skip connections, in place and not."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv, self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        x = F.relu(self.first(self.stem(x)), inplace=True)
        y = self.second(self.conv(x))
        y += x
        y = torch.relu_(y)
        y = self.conv(y) + y
        return F.linear(y.mean([2, 3]), self.fc.weight)

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.stem.weight, padding=1)
        c = norm(b, self.first)
        d = relu(c)
        e = conv(d, self.conv.weight, padding=1, groups=2)
        f = norm(e, self.second)
        g = add(f, d)
        h = relu(g)
        i = conv(h, self.conv.weight, padding=1, groups=2)
        j = add(i, h)
        k = mean(j)
        return [a, b, c, d, e, f, g, h, i, j, k, linear(k, self.fc.weight)]


class PreActivation(nn.Module):
    """A tensor that goes to a normalization with a negative weight, which may want less of it, and to a sum; and
    normalizations that want less of a maximum, and something of neurons that are zero."""

    def __init__(self):
        super().__init__()
        self.conv, self.first = nn.Conv2d(2, 3, 2, stride=2, padding=1), nn.BatchNorm2d(3)
        self.second, self.fc = nn.BatchNorm2d(3), nn.Linear(3 * 4, 3)

    def forward(self, x):
        x = self.conv(x)
        x = F.relu(F.max_pool2d(self.first(x) + x, 2, 1))
        return self.fc(self.second(x).flatten(1))

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv.weight, self.conv.bias, stride=2, padding=1)
        c = norm(b, self.first)
        d = add(c, b)
        e = pool(d, 2, 1)
        f = relu(e)
        g = norm(f, self.second)
        h = flat(g)
        return [a, b, c, d, e, f, g, h, linear(h, self.fc.weight, self.fc.bias)]


class Shapes(nn.Module):
    """What moves elements, and what maps one to one, functional; scores end in a softmax."""

    def __init__(self):
        super().__init__()
        self.conv, self.matrix = nn.Conv2d(2, 2, 2, dilation=2), nn.Parameter(torch.empty(4 * 9, 3))

    def forward(self, x):
        y = self.conv(x)
        y = F.max_pool2d(torch.cat([y, -y], 1), 3, 1, padding=1)
        y = y.permute(0, 2, 3, 1).reshape(len(x), -1) * 0.5
        return (torch.tanh(y) @ self.matrix).softmax(-1)

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv.weight, self.conv.bias, dilation=2)
        c = mapped(b, lambda _, value: -value, lambda _: -1)
        d = concatenated(b, c)
        e = pool(d, 3, 1, padding=1)
        channels, height, wide = size_of(e)
        order = [(k, i, j) for i in range(height) for j in range(wide) for k in range(channels)]
        f = flat(e, order)
        g = mapped(f, lambda _, value: math.tanh(value / 2), stops=True)
        h = linear(g, self.matrix.T)
        total = sum(math.exp(value) for value in h.values.values())
        return [a, b, c, d, e, f, g, h, mapped(h, lambda _, value: math.exp(value) / total)]


MODELS = {"lenet": (LeNet, (1, 8, 8)), "residual": (Residual, (2, 5, 5)), "pre-activation": (PreActivation, (2, 4, 4))}
MODELS["shapes"] = (Shapes, (2, 5, 5))
each_model = pytest.mark.parametrize("name", MODELS)


def made(name, seed=0, integers=True, samples=3):
    """A model in float64, and samples for it."""
    make, shape = MODELS[name]
    generator, model = torch.Generator().manual_seed(seed), make().double().eval()

    def values(shape, low=-3):
        if integers:
            return torch.randint(low, 4, shape, generator=generator).double()
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values(parameter.shape))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(values(module.running_mean.shape))
                module.running_var.copy_(values(module.running_var.shape).abs() + 0.5)
    return model, values((samples, *shape), low=-1)


def same_path(found, expected):
    assert plain(found) == plain(expected)


# ---- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "floats"])
@pytest.mark.parametrize("theta", THETAS)
@each_model
def test_paths_are_those_of_loops_over_single_neurons(name, theta, integers):
    model, x = made(name, integers=integers, samples=2)
    with torch.no_grad():
        scores = model(x)
    for path, one, own in zip(EffectivePath(theta).extract(model, x), x, scores, strict=True):
        tensors = model.cells(one)
        assert [tensors[-1].values[k,] for k in range(3)] == pytest.approx(own.tolist())
        expected = trace(tensors, theta, int(own.argmax()))
        assert plain(path) == expected
        assert expected[0][-1][1]


@each_model
def test_paths_of_given_classes(name):
    model, x = made(name)
    tool = EffectivePath()
    for classes in (0, 2, torch.tensor([2, 0, 1])):
        each = [classes] * 3 if isinstance(classes, int) else classes.tolist()
        for path, one, chosen in zip(tool.extract(model, x, classes), x, each, strict=True):
            assert plain(path) == trace(model.cells(one), 0.5, chosen)


def test_a_batch_has_the_paths_of_its_samples():
    model, x = made("residual", samples=4)
    tool = EffectivePath()
    for path, one in zip(tool.extract(model, x), x, strict=True):
        (alone,) = tool.extract(model, one[None])
        same_path(path, alone)
        assert path.inputs.shape == one.shape


def test_what_is_ranked_in_parts_is_the_same(monkeypatch):
    model, x = made("lenet")
    whole = EffectivePath().extract(model, x)
    monkeypatch.setattr("amanda.research.effective_path.extraction.CHUNK", 50)
    for path, expected in zip(EffectivePath().extract(model, x), whole, strict=True):
        same_path(path, expected)


OPERATORS = {
    "linear of tokens": (lambda x: F.linear(x, WEIGHT), lambda x: F.conv1d(x.mT, WEIGHT[:, :, None]).mT),
    "matmul": (lambda x: x @ WEIGHT.T, lambda x: F.linear(x, WEIGHT)),
    "addmm": (lambda x: torch.addmm(WEIGHT[0, :4], x[:, 0], WEIGHT.T), lambda x: F.linear(x[:, 0], WEIGHT)),
    "conv1d": (
        lambda x: F.conv1d(x, KERNEL, padding=1),
        lambda x: F.conv2d(x[:, :, None], KERNEL[:, :, None], padding=(0, 1)),
    ),
    "conv1d, same": (lambda x: F.conv1d(x, KERNEL, padding="same"), lambda x: F.conv1d(x, KERNEL, padding=1)),
    "conv3d": (
        lambda x: F.conv3d(x[:, :, None, None], KERNEL[:, :, None, None]),
        lambda x: F.conv1d(x, KERNEL),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), lambda x: F.max_pool2d(x[:, :, None], (1, 2))),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2, 1), lambda x: F.avg_pool2d(x[:, :, None], (1, 2), 1)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), lambda x: F.avg_pool1d(x, 3)),
    "adaptive_avg_pool1d to 1": (lambda x: F.adaptive_avg_pool1d(x, 1), lambda x: x.mean(-1)),
    "sum": (lambda x: x.sum((1, 2), keepdim=True), lambda x: F.linear(x.flatten(1), torch.ones(1, 18))),
    "mean, kept": (lambda x: x.mean(-1, keepdim=True), lambda x: F.avg_pool1d(x, 6)),
    "sub": (lambda x: x - x.flip(1), lambda x: x + -x.flip(1)),
    "added twice": (lambda x: torch.add(x, x.flip(1), alpha=2), lambda x: x + x.flip(1) * 2),
    "a shift": (lambda x: 3 - x / 2 + WEIGHT[0], lambda x: x * -0.5 + (3 + WEIGHT[0])),
    "broadcast": (lambda x: x + x.sum(1, keepdim=True), lambda x: x + x.sum(1, keepdim=True).expand(x.shape)),
    "relu6": (lambda x: F.relu6(x * 2), lambda x: torch.relu(x) * 2),
}
WEIGHT = torch.randint(-3, 4, (4, 6), generator=torch.Generator().manual_seed(1)).float()
KERNEL = torch.randint(-3, 4, (2, 3, 3), generator=torch.Generator().manual_seed(2)).float()


@pytest.mark.parametrize(("one", "other"), OPERATORS.values(), ids=OPERATORS)
def test_operators_that_compute_the_same_have_the_same_path(one, other):
    x = torch.randint(-3, 4, (2, 3, 6), generator=torch.Generator().manual_seed(3)).float()

    def ends_with(function):
        width = function(x)[0].numel()
        head = 7 * torch.arange(3 * width).view(3, width).float() % 5 - 2
        return lambda x: F.linear(function(x).flatten(1), head)

    for a, b in zip(
        EffectivePath().extract(ends_with(one), x), EffectivePath().extract(ends_with(other), x), strict=True
    ):
        assert torch.equal(a.inputs, b.inputs)
        assert a.inputs.any()


def test_a_module_that_is_called_twice_has_two_layers():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(16).view(4, 4))
    x = torch.rand(1, 4)
    (path,) = EffectivePath().extract(lambda x: model(model(x)), x)
    twice = nn.Sequential(*model, *copy.deepcopy(model))
    (expected,) = EffectivePath().extract(twice, x)
    assert [number for _, number in path.layers] == [0, 1]
    assert plain(path) == plain(expected)


def test_paths_of_functions_can_be_compared_wherever_they_are_extracted():
    x, tool = torch.ones(1, 6), EffectivePath()

    def model(x):
        return F.linear(F.linear(x, WEIGHT), WEIGHT[:, :4])

    def elsewhere():
        return tool.extract(model, x)

    assert tool.extract(model, x)[0].similarity(elsewhere()[0]) == 1


def resnet18():
    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2]}  # a quarter of its width
    config = transformers.ResNetConfig(layer_type="basic", **sizes)
    return transformers.ResNetForImageClassification(config).eval()


def test_resnet_18_chooses_as_loops_do():
    """Every fifth neuron of every convolution, given those of the layer and what the module computed."""
    model, x, seen = resnet18().double(), torch.randn(1, 3, 32, 32, dtype=torch.float64), {}
    handles = [
        module.register_forward_hook(lambda module, given, result, name=name: seen.update({name: (given[0], result)}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    (path,) = EffectivePath().extract(model, x)
    layers = list(path.layers.values())
    assert [layer.place.name for layer in layers[-2:]] == ["aten::adaptive_avg_pool2d", "aten::linear"]
    assert sum(layer.place.name == "aten::add_" for layer in layers) == 8
    assert len(handles) == sum(layer.place.name == "aten::conv2d" for layer in layers) == 20
    compared = 0
    for layer in layers:
        if layer.place.name == "aten::conv2d":
            module = model.get_submodule(layer.place.module_path)
            given, result = (tensor[0].detach() for tensor in seen[layer.place.module_path])
            padded = F.pad(given, [module.padding[0]] * 4)
            for o, y, z in layer.neurons.nonzero()[::5].tolist():
                y0, z0 = y * module.stride[0], z * module.stride[1]
                k = module.kernel_size[0]
                added = (padded[:, y0 : y0 + k, z0 : z0 + k] * module.weight[o]).flatten().tolist()
                assert sum(added) == pytest.approx(result[o, y, z].item())
                first = ((o * result.shape[1] + y) * result.shape[2] + z) * layer.fan_in
                inside = (layer.synapses >= first) & (layer.synapses < first + layer.fan_in)
                taken = (layer.synapses[inside] - first).tolist()
                # what follows is normalized with positive weights: more of the output is wanted, whatever its sign
                assert taken == sorted(smallest_set(added, 0.5))
                compared += 1
    assert compared > 80


# ---- the rule --------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # a machine may be busy
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8), st.sampled_from(THETAS))
def test_critical_contributions_are_a_smallest_set(contributions, theta):
    (mask,) = critical(torch.tensor([contributions]).double(), theta).tolist()
    taken = [value for value, chosen in zip(contributions, mask, strict=True) if chosen]
    total, positive = sum(contributions), [value for value in contributions if value > 0]
    goal = theta * (total if total > 0 else sum(positive))
    sets = (found for n in range(len(positive) + 1) for found in itertools.combinations(positive, n))
    fewest = next(len(found) for found in sets if sum(found) >= goal)
    assert len(taken) == fewest
    assert sum(taken) >= goal
    assert min(taken, default=1) > 0


def positive_network():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0)) - 0.1).relu_()
    return model


def test_theta_1_takes_all_that_contributes_if_all_is_positive():
    model = positive_network()
    x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    (path,) = EffectivePath(theta=1).extract(model, x)
    score = model(x.requires_grad_())
    (gradient,) = torch.autograd.grad(score[0, score.argmax()], x)
    assert torch.equal(path.inputs, (gradient * x > 0)[0])
    assert path.density("neurons") > 0.4


def test_a_greater_theta_only_adds():
    model, x = made("lenet", integers=False)
    found = [EffectivePath(theta).extract(model, x) for theta in (0.01, 0.2, 0.5, 0.8, 1.0)]
    for smaller, greater in itertools.pairwise(found):
        for one, other in zip(smaller, greater, strict=True):
            same_path(one | other, other)
    assert sum(path.density() for path in found[-1]) > 2 * sum(path.density() for path in found[0]) > 0


# ---- paths as values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["synapses", "neurons", "weights"])
def test_densities_and_similarities_are_those_of_sets(part):
    model, x = made("residual", samples=2)
    one, other = EffectivePath().extract(model, x)
    k = ["neurons", "synapses", "weights"].index(part)
    (ours, _), (theirs, _) = plain(one), plain(other)
    sizes = [layer.size(part) for layer in one.layers.values()]
    assert one.density(part) == pytest.approx(sum(len(layer[k]) for layer in ours) / sum(sizes))
    expected = [
        len(a[k] & b[k]) / len(a[k] | b[k]) if a[k] | b[k] else 1.0
        for a, b, size in zip(ours, theirs, sizes, strict=True)
        if size
    ]
    assert one.similarities(other, part) == other.similarities(one, part) == pytest.approx(expected)
    assert one.similarity(other, part) == pytest.approx(sum(expected) / len(expected))
    contained = [
        len(a[k] & b[k]) / len(a[k]) if a[k] else 1.0 for a, b, size in zip(ours, theirs, sizes, strict=True) if size
    ]
    assert one.similarities(other, part, "containment") == pytest.approx(contained)
    assert one.similarity(one | other, part, "containment") == 1
    own = list(range(len(expected)))
    weighted = sum(value * weight for value, weight in zip(expected, own, strict=True))
    assert one.similarity(other, part, layer_weights=own) == pytest.approx(weighted)
    assert one.similarity(one, part) == 1
    assert one.similarity(other, part) < 1


def test_a_union_has_all_that_its_paths_have():
    model, x = made("residual", samples=3)
    paths = EffectivePath().extract(model, x)
    (layers, inputs), *others = map(plain, paths)
    for more, more_inputs in others:
        layers = [tuple(a | b for a, b in zip(one, two, strict=True)) for one, two in zip(layers, more, strict=True)]
        inputs = inputs | more_inputs
    for union in (Path.union(paths), paths[2] | paths[0] | paths[1]):
        assert plain(union) == (layers, inputs)


def test_rows_count_what_the_paths_have():
    model, x = made("lenet")
    tool = EffectivePath()
    paths = tool.extract(model, x) + tool.extract(model, x[:1])
    rows = tool.rows()
    assert [row.module_path for row in rows] == ["conv1", "", "conv2", "", "fc1", "fc2"]
    for row, *layers in zip(rows, *(path.layers.values() for path in paths), strict=True):
        assert row.paths == 4
        for part, name in (("neurons", "neuron"), ("synapses", "synapse"), ("weights", "weight")):
            active, size = (sum(getattr(layer, of)(part) for layer in layers) for of in ("active", "size"))
            assert (getattr(row, f"active_{part}"), getattr(row, part)) == (active, size)
            assert getattr(row, f"{name}_density") == (active / size if size else None)
    assert [(row.name, row.paths) for row in tool.rows("op")][:2] == [("aten::conv2d", 8), ("aten::max_pool2d", 4)]


# ---- what it leaves alone --------------------------------------------------------------------------------------------


def test_the_model_and_its_gradients_stay_as_they_are():
    model, x = made("residual")
    model(x).sum().backward()
    calls = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(calls.append)
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradients = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
    before, x.grad = x.clone(), None
    EffectivePath().extract(model, x)
    assert all(parameter.grad is own for parameter, (own, _) in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(own, old) for own, old in gradients)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(x, before)
    assert (calls, x.grad, x.requires_grad) == ([], None, False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode):
    model, x = made("lenet")
    expected = EffectivePath().extract(model, x)
    with mode():
        for path, own in zip(EffectivePath().extract(model, x.clone()), expected, strict=True):
            same_path(path, own)


def trained(model, x, extract=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x).square(), torch.tensor([0, 1, 2])).backward()
        if step % 5 == 0:
            extract()
        optimizer.step()
    return list(model.parameters())


def test_training_in_its_scope_is_as_outside_also_between_extractions():
    (model, x), tool = made("residual", integers=False), EffectivePath()
    other = copy.deepcopy(model)
    expected = trained(other, x)
    with amanda.apply(tool):
        found = trained(model, x, lambda: tool.extract(model, x))
    assert all(map(torch.equal, found, expected))
    same_path(tool.extract(model, x)[0], EffectivePath().extract(other, x)[0])


def test_inside_another_scope_and_on_two_threads():
    (model, x), tool = made("lenet"), EffectivePath()
    expected = EffectivePath().extract(model, x)
    found = []

    def work():
        with amanda.apply(OpStatistics()), amanda.apply(tool):
            found.extend(tool.extract(model, x) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for paths in found:
        for path, own in zip(paths, expected, strict=True):
            same_path(path, own)
    assert {row.paths for row in tool.rows()} == {18}


def test_a_model_that_extracts_paths_of_another_one():
    (inner, x), tool = made("lenet"), EffectivePath()
    inside = []

    def outer(x):
        inside.extend(tool.extract(inner, x))
        return inner(x)

    for path, other, own in zip(tool.extract(outer, x), inside, tool.extract(inner, x), strict=True):
        assert plain(path) == plain(other) == plain(own)


@pytest.mark.parametrize("regime", REGIMES)
def test_paths_in_every_regime(regime):
    model = Integers().eval()
    x = torch.randint(0, 3, (3, 2, 4, 4), generator=torch.Generator().manual_seed(1)).float()
    expected = EffectivePath().extract(model, x)
    with in_regime(regime, model) as program:
        found = EffectivePath().extract(program, x)
    for path, own in zip(found, expected, strict=True):
        same_path(path, own)
        assert path.inputs.any()


class Integers(nn.Module):
    """Weights of -1, 0 and 1: sums of small integers are exact in bfloat16."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2 * 4, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))

    def forward(self, x):
        return self.fc(F.max_pool2d(torch.relu(self.conv(x)) + x, 2).flatten(1))


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0, -0.5, 1.1, float("nan"), "half", True, None])
def test_a_theta_that_is_no_share_is_refused(says, theta):
    with says(
        ValueError,
        f"[effective_path] theta is the share of a neuron's value to explain, above 0 and up to 1; got {theta!r}",
    ):
        EffectivePath(theta)


class Refused(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.body, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.body(x))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * -2


UNKNOWN = {
    "aten::layer_norm": lambda x: F.layer_norm(x, (4,)),
    "aten::cumsum": lambda x: x.cumsum(1),
    "aten::mul": lambda x: x * x.sigmoid(),
    "aten::matmul": lambda x: (x @ x.T) @ torch.ones(3, 4),
    "autograd::Double": Double.apply,
    "aten::adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[:, None], 3)[:, 0],
    "aten::mean": lambda x: x - x.mean(0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operator_without_a_rule_is_named_with_module_and_line(name):
    with pytest.raises(amanda.Error) as caught:
        EffectivePath().extract(nn.Sequential(Refused(UNKNOWN[name])), torch.rand(3, 4))
    text = str(caught.value)
    assert re.match(
        rf"\[effective_path\] {name} \(0, .*test_effective_path_tool.py:\d+\) is on the path, but which of", text
    )
    assert "Known are adaptive_avg_pool1d, " in text


def test_an_operator_that_only_pytorchs_modules_call_is_named_with_its_module():
    model, tool = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), EffectivePath()
    with pytest.raises(amanda.Error, match=r"^\[effective_path\] aten::layer_norm \(1\) is on the path"):
        tool.extract(model, torch.rand(3, 4))
    tool.extract(model[::2], torch.rand(3, 4))
    assert [(row.module_path, row.source) for row in tool.rows()] == [("0", ""), ("2", "")]


def test_what_is_not_on_the_path_needs_no_rule():
    x = torch.rand(3, 4)
    model = Refused(lambda x: torch.relu(x) + F.layer_norm(x.detach(), (4,)).cumsum(1).mul(0))
    assert len(EffectivePath().extract(model, x)) == 3


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (
            nn.BatchNorm1d(4),
            "aten::batch_norm (function, LINE) normalizes by statistics of the batch, which mix samples",
        ),
        (nn.Dropout(0.5), "aten::dropout (function, LINE) drops elements at random"),
    ],
)
def test_a_model_that_runs_as_in_training_is_refused(layer, what):
    model = Refused(layer)
    with pytest.raises(amanda.Error) as caught:
        EffectivePath().extract(model, torch.rand(3, 4))
    start, end = what.split("LINE")
    assert str(caught.value).startswith(f"[effective_path] {start}")
    assert str(caught.value).split("\n")[0].endswith(f"{end}; call model.eval() first")
    assert len(EffectivePath().extract(model.eval(), torch.rand(3, 4))) == 3


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x.sum(), "torch.float32 of []"),
        (lambda x: x[:2], "torch.float32 of [2, 4]"),
        (lambda x: (x, x), "tuple"),
        (lambda x: x.argmax(1, keepdim=True), "torch.int64 of [3, 1]"),
    ],
)
def test_results_that_are_no_scores_are_refused(says, function, got):
    with says(
        ValueError,
        "[effective_path] a model returns the scores of classes, (3, classes), or has them in .logits; got "
        f"{got}. Wrap it: extract(lambda x: scores_of(model(x)), x)",
    ):
        EffectivePath().extract(Refused(function), torch.rand(3, 4))


def test_scores_that_have_no_path_are_refused(says):
    tool, x = EffectivePath(), torch.rand(3, 4)
    with says(
        ValueError, "[effective_path] the scores do not depend on x: the model detaches it, or runs under no_grad"
    ):
        tool.extract(lambda x: x.detach() * 2, x)
    weight = torch.rand(3, 4, requires_grad=True)
    with says(
        ValueError, "[effective_path] the scores do not depend on x: the model detaches it, or runs under no_grad"
    ):
        tool.extract(lambda x: weight * 2, x)
    with says(ValueError, "[effective_path] scores are not finite: their paths are not defined"):
        tool.extract(lambda x: x / 0, x)


@pytest.mark.parametrize("x", [torch.ones(2, 3, dtype=torch.int64), torch.tensor(1.0), torch.ones(0, 3), [1.0]])
def test_samples_that_are_none_are_refused(says, x):
    got = f"{x.dtype} of {list(x.shape)}" if isinstance(x, torch.Tensor) else "list"
    text = (
        f"[effective_path] x is a floating-point tensor of samples, (samples, ...); got {got}. Of a model of tokens, "
    )
    with says(TypeError, text + "extract the part that follows its embeddings"):
        EffectivePath().extract(nn.Linear(3, 3), x)


@pytest.mark.parametrize("classes", [4, -1, 1.0, torch.tensor([0, 1]), torch.tensor([0, 1, 9])])
def test_classes_that_do_not_exist_are_refused(says, classes):
    with says(
        ValueError, f"[effective_path] classes= is a number from 0 to 3, or a tensor of 3 of them; got {classes!r}"
    ):
        EffectivePath().extract(nn.Linear(4, 4), torch.rand(3, 4), classes)


def test_a_gradient_that_is_no_mask_is_noticed():
    def unseen(x):
        with amanda.disabled():
            return x / 3

    with pytest.raises(
        amanda.Error, match=r"\[effective_path\] the gradient that arrives at aten::linear \(body, .*is no mask"
    ):
        EffectivePath().extract(Refused(unseen), torch.rand(3, 4))


def test_an_input_that_is_overwritten_is_noticed():
    def function(x):
        y = x + x.flip(1)
        x.mul_(2)
        return y

    with pytest.raises(
        amanda.Error, match=r"the input 'self' of aten::add \(.*\) was overwritten later; make what writes"
    ):
        EffectivePath().extract(Refused(function), torch.rand(3, 4))


def test_samples_that_are_not_first_are_noticed():
    model = Refused(lambda x: F.linear(x.view(-1, 2), torch.ones(2, 2)).view(-1, 4))
    with pytest.raises(
        amanda.Error, match=r"aten::linear .* outputs of \[6, 2\] do not begin with the 3 samples; pass one"
    ):
        EffectivePath().extract(model, torch.rand(3, 4))
    assert len(EffectivePath().extract(model, torch.rand(1, 4))) == 1


def test_paths_that_cannot_be_compared_are_refused(says):
    def path_of(model, *shape):
        return EffectivePath().extract(model, torch.rand(1, *shape))[0]

    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    one, other = path_of(conv, 1, 4, 4), path_of(conv, 1, 5, 5)
    text = "paths are of samples of different shapes: aten::conv2d in 0 has outputs of [2, 2, 2] and of [2, 3, 3]"
    for use in (one.similarity, one.__or__):
        with says(ValueError, f"[effective_path] the two {text}"):
            use(other)
    with says(ValueError, "[effective_path] the two paths are of different programs: 3 layers are only in one of them"):
        one.similarity(path_of(nn.Linear(2, 2), 2))
    with says(ValueError, '[effective_path] part= is "synapses", "neurons" or "weights", got \'cells\''):
        one.density("cells")
    with says(ValueError, '[effective_path] measure= is "jaccard" or "containment", got \'cosine\''):
        one.similarity(one, measure="cosine")
    with says(ValueError, "[effective_path] layer_weights= has one for each of 2 layers; got [1.0]"):
        one.similarity(one, layer_weights=[1.0])
    with says(ValueError, "[effective_path] a union takes at least one path; got none"):
        Path.union([])


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_tells_adversarial_images_from_others(run_example):
    printed = run_example("detect_adversarial.py")
    assert float(re.search(r"^accuracy (.*)%$", printed, re.MULTILINE)[1]) > 93
    rows = [
        list(map(float, row.replace("%", "").split())) for row in re.findall(r"^ +0\.\d .*$", printed, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [0.1, 0.3]
    for _, fooled, clean, adversarial, jaccard, containment, linear in rows:
        assert fooled > 25
        assert clean > adversarial
        assert 0.5 < jaccard < containment
        assert min(containment, linear) > 0.7
