"""EffectivePath's results: densities, similarities, unions and rows of paths."""

import pytest
from amanda.research.effective_path import EffectivePath, Path
from neuron_paths import plain
from path_models import made


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
