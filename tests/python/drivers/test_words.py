"""A driver brings words for its operators, and tools that do not know the driver work on them."""

import amanda
import numpy as np
import pytest
import toy_arrays
from amanda.driver import registry
from amanda.research.error_injection import ErrorInjection, StuckAt
from amanda.tools.flops import Flops
from amanda.tools.mapping import names_of, vocabulary, words
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import FakeQuantization, int8_weight

drawn = np.random.default_rng(0)
KERNEL = drawn.standard_normal((4, 8)).astype(np.float32)
X = drawn.standard_normal((3, 8)).astype(np.float32)


def by_numpy(kernel=KERNEL, x=X):
    return np.maximum(x @ kernel.T, 0)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    for known in ("_registered", "_loaded"):
        monkeypatch.setattr(registry, known, list(getattr(registry, known)))
    registry.register(toy_arrays.TinyDriver())


@pytest.fixture
def model():
    return toy_arrays.Dense(KERNEL)


def test_its_words_stand_beside_those_of_other_drivers():
    assert words()["linear"]["Tiny"] == {"tiny::dense": {"input": "signal", "weight": "kernel"}}
    assert names_of("linear") == ["aten::linear", "tiny::dense"]


def test_the_mapping_writes_its_keys(model):
    class Keys(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.found = []
            self.depends_on(vocabulary())
            self.add_inst_for_op(lambda context: self.found.append(dict(context)), ops=names_of("linear", "relu"))

    with amanda.apply(keys := Keys()):
        model(X)
    assert keys.found == [
        {"op_type": "linear", "roles": {"input": 0, "weight": 1}, "weight_layout": "OI"},
        {"op_type": "relu", "roles": {"input": 0}},
    ]


def test_flops(model):
    with amanda.apply(flops := Flops()):
        model(X)
    assert flops.by_operator() == {"tiny::dense": 2 * 3 * 4 * 8}
    assert flops.uncounted == {"tiny::rectify": 1}
    assert flops.uncounted_products == {}


def test_magnitude_pruning(model):
    expected = model(X)
    with amanda.apply(pruning := MagnitudePruning(0.75)):
        found = model(X)
    kept = np.where(np.abs(KERNEL) >= np.sort(np.abs(KERNEL), None)[24], KERNEL, 0)
    np.testing.assert_array_equal(found, by_numpy(kept))
    assert [(row.name, row.pruned, row.weights) for row in pruning.rows()] == [("tiny::dense", 24, 32)]
    assert pruning.covered == (32, 32)
    np.testing.assert_array_equal(model(X), expected)
    with pytest.raises(amanda.Error, match="masks can be written into variables"):
        pruning.apply_to([])


def test_vectors_lie_along_the_input_channels(model):
    with amanda.apply(pruning := VectorwisePruning()):
        model(X)
    (row,) = pruning.rows()
    assert (row.pruned, row.weights) == (16, 32)


def test_quantization(model):
    scale = np.abs(KERNEL).max(1, keepdims=True) / np.float32(127.5)
    rounded = np.clip(np.round(KERNEL * (np.float32(1) / scale)), -128, 127) * scale
    with amanda.apply(quantization := FakeQuantization({"linear": {"weight": int8_weight}})):
        found = model(X)
    np.testing.assert_allclose(found, by_numpy(rounded), rtol=1e-5, atol=1e-6)
    assert [row.name for row in quantization.rows()] == ["tiny::dense"]
    with amanda.apply(FakeQuantization()):
        assert not np.array_equal(model(X), found)  # inputs, too


def test_a_weight_with_a_fault(model):
    with amanda.apply(injection := ErrorInjection(StuckAt(2.0), at="weight", index=(1, 2))):
        found = model(X)
    stuck = KERNEL.copy()
    stuck[1, 2] = 2.0
    np.testing.assert_array_equal(found, by_numpy(stuck))
    assert injection.rows()[0].before == pytest.approx(float(KERNEL[1, 2]))
