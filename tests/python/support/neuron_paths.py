"""The oracle of EffectivePath: loops over single neurons, in plain Python."""

import itertools
import math


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
