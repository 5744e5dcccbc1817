"""EffectivePath's operators: those that compute the same have the same paths, and ResNet-18."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.research.effective_path import EffectivePath
from neuron_paths import plain, smallest_set
from torch import nn

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
