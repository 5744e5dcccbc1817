"""FakeQuantization on TensorFlow: against tf.quantization's operators, written into the model by hand."""

import re

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.quantization import FakeQuantization, MovingRange, int8_activation, int8_weight
from two_fronts import FRONTS, same, train_function

each_front = pytest.mark.parametrize("train", FRONTS.values(), ids=FRONTS)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


# The oracles' ranges are fixed: those of the first batch. `tf.quantization` clips gradients half a step earlier than
# PyTorch and this tool, so its operators are an oracle of values alone.


def rounded(value, scale, zero_point, smallest, largest):
    """Fake quantization as PyTorch documents it, in TensorFlow's operators."""

    @tf.custom_gradient
    def quantized(value):
        whole = tf.round(value * (1 / scale)) + zero_point
        clamped = tf.clip_by_value(whole, smallest, largest)
        return (clamped - zero_point) * scale, lambda gradient: tf.where(whole == clamped, gradient, 0.0)

    return quantized(value)


def asymmetric(value, first, steps=255):
    """What `int8_activation` does once it has seen `first`, and is told to observe no more."""
    low, high = np.float32(min(np.min(first), 0)), np.float32(max(np.max(first), 0))
    scale = (high - low) / np.float32(steps)
    return rounded(value, scale, -np.rint(low / scale), 0, steps)


def by_channel(value, first, axes):
    """What `int8_weight` does: symmetric, one scale for each index of the axes that are not in `axes`."""
    return rounded(value, abs(first).max(axes) / np.float32(127.5), 0, -128, 127)


WEIGHTS = {"conv": numbers(3, 3, 4, 5) / 5, "depthwise": numbers(2, 2, 5, 2), "dense": numbers(90, 4) / 9}
BATCHES = [numbers(2, 6, 6, 4, seed=i) * scale for i, scale in enumerate((1, 3, 0.5))]


def network(weights, x, quantized=lambda value, name: value):
    def weight(name):
        return quantized(weights[name], name)

    x = tf.nn.relu(tf.nn.conv2d(quantized(x, "x"), weight("conv"), 1, "VALID"))
    x = tf.nn.depthwise_conv2d(quantized(x, "h"), weight("depthwise"), [1, 1, 1, 1], "VALID")
    return quantized(tf.reshape(x, (2, 90)), "z") @ weight("dense")


def ranges():
    """The values at the first batch, with those before them quantized."""
    seen = {}

    def look(value, name):
        seen[name] = np.array(value)
        return quantized_by_hand(seen)(value, name)

    network(WEIGHTS, BATCHES[0], look)
    return seen


def quantized_by_hand(seen):
    axes = {"conv": (0, 1, 2), "depthwise": (0, 1), "dense": (0,)}

    def quantized(value, name):
        if name in axes:
            return by_channel(value, seen[name], axes[name])
        return asymmetric(value, seen[name])

    return quantized


class FixedAfterTheFirst(FakeQuantization):
    """Observes only what no other run has: the oracle's ranges are constants."""

    def _fake_quantize_array(self, *arguments, operand, **named):
        self.observe = operand().extremes is None
        return super()._fake_quantize_array(*arguments, operand=operand, **named)


@each_front
def test_three_steps_are_those_of_a_model_quantized_by_hand(train):
    seen, tool = ranges(), FixedAfterTheFirst()
    expected = train_function(lambda weights, x: network(weights, x, quantized_by_hand(seen)), WEIGHTS, BATCHES)
    same(train(network, WEIGHTS, BATCHES, tool), expected, rtol=1e-4, atol=1e-5)
    rows = {(row.name.removeprefix("tensorflow::"), row.position): row for row in tool.rows()}
    assert [len(row.scale) for row in rows.values()] == [1, 5, 1, 10, 1, 4]
    low, high = min(BATCHES[0].min(), 0), max(BATCHES[0].max(), 0)
    np.testing.assert_allclose(rows["Conv2D", "input"].scale, [(high - low) / 255], rtol=1e-6)
    np.testing.assert_allclose(rows["Conv2D", "weight"].scale, abs(WEIGHTS["conv"]).max((0, 1, 2)) / 127.5, rtol=1e-6)


@each_front
def test_values_that_are_clamped_have_no_gradient(train):
    value = np.array([[0.0, 0.5, 1.0]], np.float32)
    wide = np.array([[-9.0, 0.5, 9.0]], np.float32)
    tool = FixedAfterTheFirst({"relu": {"input": int8_activation}})
    found = train(
        lambda weights, x: tf.nn.relu(x * weights["one"]), {"one": np.ones(1, np.float32)}, [value, wide], tool
    )
    gradient = found.gradients[1][1]
    assert gradient[0, 0] == gradient[0, 2] == 0
    assert gradient[0, 1] > 0


@each_front
def test_each_operator_has_a_range_of_its_own(train):
    tool = FixedAfterTheFirst({"matmul": {"left": int8_activation}})
    weights, x = {"w": numbers(4, 4)}, numbers(3, 4)

    def program(weights, x):
        return tf.nn.tanh(x @ weights["w"]) @ weights["w"]

    h = np.tanh(asymmetric(x, x) @ weights["w"])

    def by_hand(weights, x):
        return asymmetric(tf.nn.tanh(asymmetric(x, batch) @ weights["w"]), h) @ weights["w"]

    batch = x
    same(train(program, weights, [x, x * 2], tool), train_function(by_hand, weights, [x, x * 2]), rtol=1e-4, atol=1e-5)


def test_a_place_that_runs_several_times_clips_each_by_its_own_value():
    wide = np.array([0.25, 0.5, 4.0, 0.75], np.float32)
    tool = FakeQuantization({"relu": {"input": MovingRange(0, 255)}})

    def program(weights, x):
        _, x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.nn.relu(x - 0.1)), (0, x * weights["one"]))
        x.set_shape(4)
        return x

    one = {"one": np.ones(1, np.float32)}
    with amanda.apply(tool):
        train_function(program, one, [np.array([-0.3, 0.0, 1.0, 0.5], np.float32)])
    tool.observe = False
    (row,) = tool.rows()

    def by_hand(weights, x):
        x = x * weights["one"]
        for _ in range(3):
            x = tf.nn.relu(rounded(x - 0.1, row.scale, row.zero_point.astype(np.float32), 0, 255))
        return x

    found, expected = train_function(program, one, [wide], tool), train_function(by_hand, one, [wide])
    same(found, expected, rtol=1e-4, atol=1e-5)
    assert 0 < np.count_nonzero(found.gradients[0][1]) < wide.size


def test_outputs_are_quantized_after_the_operator_and_their_gradients_clipped():
    function = tf.function(lambda x: tf.nn.relu(tf.nn.tanh(x)), autograph=False)
    tool = FakeQuantization({}, outputs={"tanh": {0: MovingRange(0, 15)}})
    x = tf.constant([-2.0, 0.25, 1.0])
    with amanda.apply(tool):
        found = function(x)
        tool.observe = False
        (row,) = tool.rows()
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x * 1e6 * tf.constant([0.0, 0.0, 1.0]) + x))
    assert tape.gradient(loss, x)[1] > 0
    y = np.tanh(x.numpy())
    expected = tf.nn.relu(tf.quantization.fake_quant_with_min_max_vars(y, y.min(), y.max(), num_bits=4))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (row.side, row.position, row.quant_max) == ("output", 0, 15)


def test_training_and_evaluation_share_the_ranges_of_weights():
    variable, tool, eye = tf.Variable(numbers(6, 3)), FakeQuantization(), tf.eye(6)

    def train(x):
        return x @ variable

    def evaluate(x):
        return x @ variable

    train, evaluate = tf.function(train, autograph=False), tf.function(evaluate, autograph=False)
    with amanda.apply(tool):
        train(eye)
        tool.observe = False
        with pytest.raises(amanda.Error, match=r"input 'input' of tensorflow::MatMul \(.*has no range yet; run"):
            evaluate(eye)
        tool.observe = True
        np.testing.assert_array_equal(evaluate(eye), train(eye))
    assert [row.position for row in tool.rows()].count("weight") == 1


def test_observing_and_quantizing_are_switched_apart():
    variable, tool = tf.Variable(numbers(6, 3)), FakeQuantization()
    function, x = tf.function(lambda x: x @ variable, autograph=False), tf.constant(numbers(4, 6))
    exact, wide = function(x), x * 3
    exact_of_wide = function(wide)
    tool.quantize = False
    with amanda.apply(tool):
        np.testing.assert_array_equal(function(x), exact)
        scales = [row.scale for row in tool.rows()]
        tool.quantize, tool.observe = True, False
        assert not np.array_equal(function(wide), exact_of_wide)
        assert all(map(np.array_equal, scales, [row.scale for row in tool.rows()]))
        tool.reset()
        assert tool.rows() == []


def test_integers_are_left_alone_and_halves_keep_their_dtype():
    add = tf.function(lambda x, y: x + y, autograph=False)
    tool = FakeQuantization({"add": {"left": int8_activation, "right": int8_activation}})
    with amanda.apply(tool):
        assert add(tf.constant([1, 300]), tf.constant([2, 3])).numpy().tolist() == [3, 303]
        assert tool.rows() == []
        for dtype in (tf.float16, tf.bfloat16, tf.float64):
            assert add(tf.cast([1.0, 2.0], dtype), tf.cast([3.0, 4.0], dtype)).dtype == dtype
    assert [row.position for row in tool.rows()] == ["left", "right"]


@pytest.mark.parametrize("low", [-3.0, 0.0, -0.01])
def test_values_are_those_of_tensorflows_operators(low):
    function = tf.function(tf.nn.relu, autograph=False)
    x = np.linspace(low, 5, 1000, dtype=np.float32)
    tool = FakeQuantization({"relu": {"input": int8_activation}})
    with amanda.apply(tool):
        found = function(x)
    expected = tf.nn.relu(tf.quantization.fake_quant_with_min_max_vars(x, min(low, 0), 5.0))
    np.testing.assert_allclose(found, expected, atol=1e-5)  # no value of `x` lies between two steps


def test_misuse_is_told():
    function, variable = tf.function(lambda x: tf.nn.relu(x @ variable), autograph=False), tf.Variable(numbers(6, 3))
    for places, text in [
        (
            {"relu": {"input": lambda: None}},
            "observes tensors of PyTorch; use int8_activation, int8_weight, or another",
        ),
        (
            {"relu": {"input": int8_weight}},
            "[quantization] input 'input' of tensorflow::Relu is not known to be a weight",
        ),
        ({"matmul": {"kernel": int8_weight}}, "kernel"),
    ]:
        with pytest.raises((amanda.Error, ValueError), match=re.escape(text)), amanda.apply(FakeQuantization(places)):
            function(tf.eye(6))


def test_eager_operators_are_refused():
    text = (
        "[quantization] FakeQuantization can't quantize tensorflow::MatMul: TensorFlow shows eager operators after they"
    )
    with pytest.raises(amanda.Error, match=re.escape(text)), amanda.apply(FakeQuantization()):
        tf.ones((2, 2)) @ tf.ones((2, 2))
