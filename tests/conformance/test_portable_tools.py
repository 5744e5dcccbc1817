"""The same tools in every regime that is installed, on one small CNN: what they find is what numpy computes."""

import collections
import math
import time

import amanda
import numpy as np
import pytest
import small_cnn
from amanda.research.error_injection import BitFlip, Campaign, ErrorInjection, RandomValue, StuckAt
from amanda.tools.capture import Capture, Patch
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.mapping import names_of, vocabulary, words
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import FakeQuantization
from amanda.tools.statistics import OpStatistics
from small_cnn import IMAGES, WEIGHTS, WORDS, by_numpy, gradients_by_numpy

REGIMES = {regime.name: regime for regime in small_cnn.regimes()}
EDITED = [name for name, regime in REGIMES.items() if regime.edits]
TRAINED = [name for name, regime in REGIMES.items() if regime.trains]
WORD_OF = {name.partition("::")[2]: word for word in (*words(), *WORDS) for name in names_of(word)}


@pytest.fixture(params=REGIMES)
def regime(request):
    return REGIMES[request.param]


@pytest.fixture(params=EDITED)
def edited(request):
    return REGIMES[request.param]


@pytest.fixture(params=TRAINED)
def trained(request):
    return REGIMES[request.param]


def word_of(name):
    return WORD_OF.get(name.partition("::")[2], name)


def close(expected, rel=1e-5):
    return pytest.approx(expected, rel=rel, abs=1e-6)


class Count(amanda.Tool):
    """Operators by their word, forward and backward: once for each forward operator."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward, self.namespaces = collections.Counter(), set(), set()
        self.depends_on(vocabulary())
        self.add_inst_for_op(self.analyze, ops=names_of(*WORDS))
        self.add_inst_for_op(self.analyze_backward, backward=True, ops=names_of(*WORDS))

    def analyze(self, context):
        self.namespaces.add(context.namespace)
        context.insert_before_op(lambda word: self.forward.update([word]), inputs=[], word=context["op_type"])

    def analyze_backward(self, context):
        seen = context.op_id, context["op_type"]
        context.insert_before_backward_op(lambda seen: self.backward.add(seen), grad_outputs=[], seen=seen)


def test_counts(regime):
    model, tool = regime.build(), Count()
    expected = model.run()
    with regime.apply(tool):
        found = [model.run() for _ in range(2)]
    assert tool.namespaces == {regime.name}
    assert tool.forward == dict.fromkeys(WORDS, 2)
    assert not tool.backward
    for scores in (*found, model.run()):
        np.testing.assert_array_equal(scores, expected)
    np.testing.assert_allclose(expected, by_numpy().add, rtol=1e-5)


def test_counts_in_training(trained):
    model, tool = trained.build(), Count()
    expected = model.step()
    with trained.apply(tool):
        found = model.step()
    assert tool.forward == dict.fromkeys(WORDS, 1)
    assert sorted(word for _, word in tool.backward) == sorted(WORDS)
    oracle = gradients_by_numpy() | {"scores": by_numpy().add}
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])
        np.testing.assert_allclose(values, oracle[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert found.keys() == {*WEIGHTS, "scores"}


def edges_of(graph):
    return {
        (word_of(producer.name) if producer.kind == "operator" else producer.kind, word_of(node.name))
        for node in graph
        for producer in graph.producers(node)
    }


def test_the_graph(edited):
    model, tracing = edited.build(), GraphTracing()
    with edited.apply(tracing):
        model.run()
    graph = tracing.graph
    chain = set(zip(["input", *WORDS], WORDS, strict=False))
    assert edges_of(graph) == chain | {("parameter", word) for word in ("conv2d", "matmul", "add")}
    assert collections.Counter(node.kind for node in graph) == {"operator": 5, "parameter": 3, "input": 1}
    assert tracing.skipped == {}
    (matmul,) = (node for node in graph if word_of(node.name) == "matmul")
    assert sorted(positions for positions in graph.producers(matmul).values()) == [[0], [1]]


def test_the_graph_after_a_reset(edited):
    model, tracing = edited.build(), GraphTracing()
    with edited.apply(tracing):
        model.run()
        before = edges_of(tracing.graph)
        tracing.reset()
        assert len(tracing.graph) == 0
        model.run()
        model.run()
    assert edges_of(tracing.graph) == before


def test_statistics(regime):
    model, statistics = regime.build(), OpStatistics()
    with regime.apply(statistics):
        for _ in range(2):
            model.run()
    rows = {word_of(row.name): row for row in statistics.rows("op")}
    for word, values in by_numpy()._asdict().items():
        row = rows[word]
        assert (row.calls, row.elements, row.skipped) == (2, 2 * values.size, 0), word
        assert row.zeros == 2 * np.count_nonzero(values == 0), word
        found = row.min, row.max, row.mean, row.std
        assert found == close((values.min(), values.max(), values.mean(), values.std())), word
    assert statistics.skipped == {}


def names_by_word(capture):
    """The first captured name of each word."""
    found = {}
    for name in capture:
        op = name.rpartition(":")[2].partition("[")[0]
        found.setdefault(word_of(f"::{op}"), name)
    return found


def test_capture(regime):
    model, capture = regime.build(), Capture(ops=names_of(*WORDS), runs="all")
    expected = model.run()
    with regime.apply(capture):
        for _ in range(2):
            np.testing.assert_array_equal(model.run(), expected)
    names = names_by_word(capture)
    assert {*names} == {*WORDS}
    for word, values in by_numpy()._asdict().items():
        for kept in capture.runs(names[word]).values():
            np.testing.assert_allclose(kept, regime.from_nhwc(values), rtol=1e-4, atol=1e-6)
    assert {row.dtype for row in capture.rows()} == {"float32"}
    assert {row.runs for row in capture.rows()} == {2}
    assert capture.skipped == {}


def test_captured_gradients(trained):
    model, capture = trained.build(), Capture(ops=names_of(*WORDS), grad=True)
    with trained.apply(capture):
        model.step()
    expected, names = gradients_by_numpy(), names_by_word(capture)
    if not capture.grads(names["add"]):  # in a session, the gradient of a sum has no operator
        assert trained.name == "tensorflow/2.21/graph"
        del names["add"]
    for word, name in names.items():
        np.testing.assert_allclose(capture.grad(name), trained.from_nhwc(expected[word]), rtol=1e-4, atol=1e-6)


def patched(regime, values, **options):
    model = regime.build()
    capture = Capture(ops=names_of(*values))
    with regime.apply(capture):
        model.run()
    names = names_by_word(capture)
    return model, Patch({names[word]: value for word, value in values.items()}, **options)


def test_patch(edited):
    expected = edited.build().run()
    zeros = np.zeros_like(by_numpy().relu[0], np.float32)
    model, patch = patched(edited, {"relu": edited.from_nhwc(zeros[None])[0]}, positions=1)
    with edited.apply(patch):
        found = model.run()
    relu = by_numpy().relu.copy()
    relu[1] = 0
    np.testing.assert_allclose(found, by_numpy(relu=relu).add, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.run(), expected)
    model, patch = patched(edited, {"mean": lambda mean: mean * 2})
    with edited.apply(patch):
        found = model.run()
    np.testing.assert_allclose(found, by_numpy(mean=by_numpy().mean * 2).add, rtol=1e-4, atol=1e-6)


def test_nothing_flows_back_through_a_value_that_was_put_in(trained):
    model, patch = patched(trained, {"mean": 1.0}, positions=0)
    with trained.apply(patch):
        found = model.step()
    expected = gradients_by_numpy()
    forward = by_numpy().mean.copy()
    forward[0] = 1
    np.testing.assert_allclose(found["matrix"], forward.T @ expected["add"], rtol=1e-4)
    windows = np.lib.stride_tricks.sliding_window_view(IMAGES.astype(np.float64), (3, 3), (1, 2))
    conv2d = expected["conv2d"].copy()
    conv2d[0] = 0
    np.testing.assert_allclose(found["filters"], np.einsum("nyxihw,nyxo->hwio", windows, conv2d), rtol=1e-4, atol=1e-6)


def test_flops(regime):
    model, flops = regime.build(), Flops(uncounted=False)
    with regime.apply(flops):
        for _ in range(2):
            model.run()
    convolution = 2 * by_numpy().conv2d.size * 3 * 3 * 3
    product = 2 * by_numpy().matmul.size * 5
    assert flops.total == 2 * (convolution + product)
    assert sorted(flops.by_operator().values()) == [2 * product, 2 * convolution]


def test_flops_lists_what_it_does_not_know(regime):
    model, flops = regime.build(), Flops()
    with regime.apply(flops):
        model.run()
    assert {word_of(name) for name in flops.uncounted} >= {"relu", "mean", "add"}
    assert flops.uncounted_products == {}


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_pruning(edited, sparsity):
    model, pruning = edited.build(), MagnitudePruning(sparsity)
    expected = model.run()
    with edited.apply(pruning):
        found = [model.run() for _ in range(2)]
    kept = {name: without_smallest(WEIGHTS[name], sparsity) for name in ("filters", "matrix")}
    np.testing.assert_allclose(found[0], by_numpy(**kept).add, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(model.run(), expected)
    assert sorted(row.pruned for row in pruning.rows()) == sorted(int((each == 0).sum()) for each in kept.values())
    assert pruning.covered.share == pytest.approx(155 / 159)
    assert [row.elements for row in pruning.unhandled] == [4]  # the bias


def without_smallest(weight, sparsity):
    kept = weight.astype(np.float64).reshape(-1)
    kept[np.argsort(np.abs(kept))[: round(sparsity * kept.size)]] = 0
    return kept.reshape(weight.shape)


def test_quantization(edited):
    model, quantization = edited.build(), FakeQuantization()
    with edited.apply(quantization):
        found = model.run()
    # PyTorch's matmul may multiply two activations; words say that a factor is a weight.
    matrix = (rounded_activation if edited.name.startswith("pytorch/") else rounded_weight)(WEIGHTS["matrix"])
    forward = by_numpy(rounded_activation(IMAGES), filters=rounded_weight(WEIGHTS["filters"]))
    expected = rounded_activation(forward.mean) @ matrix + WEIGHTS["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert quantization.skipped == {}


def rounded_weight(weight):
    """To -128 to 127, with one scale for each output channel, the last dimension."""
    extremes = np.abs(weight).max(tuple(range(weight.ndim - 1)))
    scale = np.maximum(extremes / 127.5, np.finfo(np.float32).eps).astype(np.float32)
    return np.clip(np.round(weight * (np.float32(1) / scale)), -128, 127) * scale


def rounded_activation(values):
    values = np.asarray(values, np.float32)
    low, high = min(values.min(), 0), max(values.max(), 0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(-np.round(low / scale), 0, 255)
    return (np.clip(np.round(values * (np.float32(1) / scale)) + zero, 0, 255) - zero) * scale


@pytest.mark.parametrize("bins", [None, [-2.0, -0.5, 0.0, 0.5, 1.0, 3.0]])
def test_histograms(regime, bins):
    model, tool = regime.build(), ValueHistograms(ops=names_of(*WORDS), bins=bins)
    with regime.apply(tool):
        model.run()
    rows = {word_of(row.name): row for row in tool.rows()}
    assert rows.keys() == set(WORDS)
    for word, values in by_numpy()._asdict().items():
        counted = np.abs(values) if bins is None else values
        counts, _ = np.histogram(counted, tool.edges)
        assert list(rows[word].counts) == list(counts), word
        assert rows[word].zeros == np.count_nonzero(values == 0), word
    assert tool.skipped == {}


def test_gradients(trained):
    model, tool = trained.build(), GradientStatistics()
    with trained.apply(tool):
        model.step()
    norms = collections.defaultdict(list)
    for row in tool.rows():
        if row.side == "grad_input" and row.last is not None:
            norms[word_of(row.name)].append(row.last)
    expected = {name: np.linalg.norm(gradient) for name, gradient in gradients_by_numpy().items()}
    for word, operands in {"conv2d": ["filters"], "relu": ["conv2d"], "matmul": ["matrix", "mean"]}.items():
        for operand in operands:
            assert any(norm == close(expected[operand], 1e-4) for norm in norms[word]), (word, operand, norms[word])
    assert tool.skipped == {}


def test_the_profile(regime):
    model, profile = regime.build(), Profile()
    began = time.perf_counter_ns()
    with regime.apply(profile):
        for _ in range(3):
            model.run()
    took = time.perf_counter_ns() - began
    rows = {word_of(row.name): row for row in profile.rows()}
    for word, values in by_numpy()._asdict().items():
        assert (rows[word].calls, rows[word].output_bytes) == (3, 3 * 4 * values.size), word
        assert 0 < rows[word].median_ns < took
    assert profile.skipped == {}


def test_the_profile_backward(trained):
    model, profile = trained.build(), Profile(backward=True)
    with trained.apply(profile):
        for _ in range(3):
            model.step()
    rows = {word_of(row.name): row for row in profile.rows()}
    for word in ("conv2d", "relu", "matmul"):
        assert rows[word].calls == 3, word
        assert rows[word].backward_calls >= 3, word
        assert 0 < rows[word].backward_ns == rows[word].total_ns - rows[word].forward_ns, word
    assert rows["relu"].backward_bytes == 3 * 4 * by_numpy().relu.size
    lines = profile.rows("line")
    assert sum(row.backward_ns for row in lines) == sum(row.backward_ns for row in profile.rows())
    assert all(row.source for row in lines)


def flipped(values, index, bit):
    changed = values.astype(np.float32)
    changed.view(np.int32)[index] ^= np.int32(1 << bit)
    return changed.astype(np.float64)


@pytest.mark.parametrize("word", ["mean", "matmul", "add"])
def test_a_flipped_bit_of_a_result(edited, word):
    model = edited.build()
    tool = ErrorInjection(BitFlip(22), ops=names_of(word), index=(2, 3))
    with edited.apply(tool):
        found = model.run()
    (fault,) = tool.rows()
    plain = getattr(by_numpy(), word)
    assert (fault.index, fault.bit, word_of(fault.name)) == ((2, 3), 22, word)
    assert fault.before == close(plain[2, 3])
    changed = plain.copy()
    changed[2, 3] = fault.after
    assert fault.after == close(flipped(np.array([fault.before]), 0, 22)[0], 1e-7)
    np.testing.assert_allclose(found, by_numpy(**{word: changed}).add, rtol=1e-5)


def test_a_weight_with_a_fault(edited):
    model = edited.build()
    expected = model.run()
    with edited.apply(ErrorInjection(StuckAt(2.5), ops=names_of("matmul"), at="weight", index=(4, 1))):
        found = model.run()
    matrix = WEIGHTS["matrix"].astype(np.float64)
    matrix[4, 1] = 2.5
    np.testing.assert_allclose(found, by_numpy(matrix=matrix).add, rtol=1e-5)
    np.testing.assert_array_equal(model.run(), expected)


def test_layers_are_hit_by_default(edited):
    tool = ErrorInjection(RandomValue(10.0, 11.0), count=3, seed=5)
    model = edited.build()
    for _ in range(2):
        with edited.apply(tool):
            model.run()
        rows = tool.rows()
        assert [word_of(row.name) for row in rows] == ["conv2d"] * 3 + ["matmul"] * 3
        assert all(10 <= row.after < 11 for row in rows)
        assert [row.elements for row in tool.rows("id")] == [4 * 4 * 4 * 5, 4 * 4]
        tool.reset()
    again = ErrorInjection(RandomValue(10.0, 11.0), count=3, seed=5)
    with edited.apply(again):
        model.run()
    assert [row.index for row in again.rows()] == [row.index for row in rows]


def test_a_campaign(edited):
    model, campaign = edited.build(), Campaign(BitFlip(range(23, 31)), trials=4, ops=names_of("add"), seed=1)
    campaign.run(model.run)
    assert len(campaign.trials) == 4
    scores = by_numpy().add
    for trial in campaign.trials:
        (fault,) = trial.faults
        changed = scores.copy()
        changed[fault.index] = fault.after
        moved = not np.array_equal(np.argmax(changed, -1), np.argmax(scores, -1))
        assert trial.outcome == ("sdc" if moved else "masked")
        assert not trial.identical
        assert math.isfinite(fault.before)
    assert model.run() == pytest.approx(scores, rel=1e-5)
