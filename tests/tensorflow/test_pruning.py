"""MagnitudePruning and VectorwisePruning on TensorFlow: against models whose weights are multiplied by masks by hand."""

import re

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, VectorwisePruning, WeightPruning
from two_fronts import FRONTS, same, scope_of, train_function, train_session

each_front = pytest.mark.parametrize("train", FRONTS.values(), ids=FRONTS)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def magnitude(weight, sparsity):
    """What MagnitudePruning keeps, by sorting."""
    mask = np.ones(weight.size, weight.dtype)
    mask[np.argsort(abs(weight), axis=None)[: round(sparsity * weight.size)]] = 0
    return mask.reshape(weight.shape)


def two_of_four(weight, dim):
    """The two largest of every four, by sorting each four."""
    rows = np.moveaxis(weight, dim, -1)
    mask = np.zeros_like(rows)
    for place in np.ndindex(*rows.shape[:-1]):
        for start in range(0, rows.shape[-1], 4):
            four = abs(rows[place][start : start + 4])
            for i in np.argsort(-four)[:2]:
                mask[place][start + i] = 1
    return np.moveaxis(mask, -1, dim)


# ---- training --------------------------------------------------------------------------------------------------------


def cnn(weights, x):
    """Convolution, depthwise convolution, transposed convolution and a product."""
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, weights["conv"], 1, "VALID"), weights["bias"]))
    x = tf.nn.depthwise_conv2d(x, weights["depthwise"], [1, 1, 1, 1], "VALID")
    x = tf.nn.conv2d_transpose(x, weights["transposed"], [3, 4, 4, 5], 1, "VALID")
    return tf.reshape(x, [3, 80]) @ weights["dense"]


CNN = {
    "conv": numbers(3, 3, 6, 8) / 5,
    "bias": numbers(8),
    "depthwise": numbers(2, 2, 8, 2) / 2,
    "transposed": numbers(2, 2, 5, 16) / 5,
    "dense": numbers(80, 4) / 5,
}
BATCHES = [numbers(3, 6, 6, 6, seed=i) for i in range(3)]
DIMS = {"conv": 2, "transposed": 3, "dense": 0}  # the dimension over which the operator sums


def masked(masks, forward=cnn):
    return lambda weights, x: forward({name: weights[name] * masks.get(name, 1) for name in weights}, x)


@each_front
def test_three_steps_are_those_of_a_model_masked_by_hand(train):
    masks = {name: magnitude(weight, 0.6) for name, weight in CNN.items() if name != "bias"}
    pruning = MagnitudePruning(0.6)
    same(train(cnn, CNN, BATCHES, pruning), train(masked(masks), CNN, BATCHES))
    assert {(row.name, row.weights, row.pruned) for row in pruning.rows()} == {
        ("tensorflow::Conv2D", 432, 259),
        ("tensorflow::DepthwiseConv2dNative", 64, 38),
        ("tensorflow::Conv2DBackpropInput", 320, 192),
        ("tensorflow::MatMul", 320, 192),
    }


@each_front
def test_two_of_four_along_the_dimension_over_which_the_operator_sums(train):
    masks = {name: two_of_four(CNN[name], dim) for name, dim in DIMS.items()}  # a depthwise convolution sums over none
    same(train(cnn, CNN, BATCHES, VectorwisePruning()), train(masked(masks), CNN, BATCHES))


PRODUCTS = {
    "left": ({"w": (4, 6)}, lambda w, x: w["w"] @ x, 1),
    "right": ({"w": (5, 4)}, lambda w, x: x @ w["w"], 0),
    "left transposed": ({"w": (6, 4)}, lambda w, x: tf.matmul(w["w"], x, transpose_a=True), 0),
    "right transposed": ({"w": (4, 5)}, lambda w, x: tf.matmul(x, w["w"], transpose_b=True), 1),
    "batches": ({"w": (1, 5, 4)}, lambda w, x: tf.reshape(x, (2, 3, 5)) @ w["w"], 1),
    "in another shape": ({"w": (10, 2)}, lambda w, x: x @ tf.reshape(w["w"], (5, 4)), None),
    "in half precision": ({"w": (5, 4)},
                          lambda w, x: tf.cast(tf.cast(x, tf.float16) @ tf.cast(w["w"], tf.float16), x.dtype), 0),
}  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.parametrize("train", [train_session, train_function])
def test_either_factor_may_be_the_weight(case, train):
    shapes, forward, dim = PRODUCTS[case]
    weights = {name: numbers(*shape) for name, shape in shapes.items()}
    masks = {"w": magnitude(weights["w"], 0.5) if dim is None else two_of_four(weights["w"], dim)}
    pruning = MagnitudePruning(0.5) if dim is None else VectorwisePruning()
    batches = [numbers(6, 5, seed=i) for i in range(3)]
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if "half" in case else {}
    same(train(forward, weights, batches, pruning), train(masked(masks, forward), weights, batches), **tolerance)
    assert len(pruning.rows()) == 1


def test_products_of_activations_and_bias_are_dense():
    pruning = MagnitudePruning(1.0)
    same(
        train_function(lambda w, x: x @ tf.transpose(x) + w["bias"], {"bias": numbers(6)}, [numbers(6, 5)], pruning),
        train_function(lambda w, x: x @ tf.transpose(x) + w["bias"], {"bias": numbers(6)}, [numbers(6, 5)]),
    )
    assert pruning.rows() == []


@each_front
def test_a_weight_that_two_operators_use_has_one_mask_and_both_gradients_are_masked(train):
    weights, batches = {"w": numbers(5, 5) / 3}, [numbers(6, 5, seed=i) for i in range(3)]

    def tied(w, x):
        return tf.tanh(x @ w["w"]) @ w["w"]

    pruning = MagnitudePruning(0.4)
    expected = train(masked({"w": magnitude(weights["w"], 0.4)}, tied), weights, batches)
    same(train(tied, weights, batches, pruning), expected)
    assert [row.pruned for row in pruning.rows()] == [10, 10]


@pytest.mark.parametrize("train", [train_session, train_function])
def test_in_a_loop_and_in_a_branch_of_a_conditional(train):
    weights = {"w": numbers(5, 5) / 3, "v": numbers(5, 5) / 3}

    def program(w, x):
        _, x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(x @ w["w"])), (0, x))
        x = tf.cond(tf.reduce_sum(x) > 1e9, lambda: x, lambda: x @ w["v"])
        x.set_shape((6, 5))
        return x

    batches = [numbers(6, 5, seed=i) for i in range(3)]
    masks = {name: magnitude(weight, 0.5) for name, weight in weights.items()}
    if train is train_session:
        tf.compat.v1.disable_control_flow_v2()  # a Session's tools do not see into functions
    try:
        expected = train(masked(masks, program), weights, batches)
        same(train(program, weights, batches, MagnitudePruning(0.5)), expected)
    finally:
        tf.compat.v1.enable_control_flow_v2()


# ---- Keras -----------------------------------------------------------------------------------------------------------


def network():
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 8))
    h = keras.layers.MultiHeadAttention(2, 4)(x, x)
    h = keras.layers.Dense(16, activation="relu")(keras.layers.LayerNormalization()(x + h))
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.Flatten()(h)))


def kernels(model):
    return [weight for weight in model.weights if weight.path.endswith("kernel")]


def compiled(model):
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", run_eagerly=False)
    return model


def fit(model, tool=None):
    x, y = numbers(8, 6, 8), numbers(8, 3)
    with scope_of(tool):
        return model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]


class MaskedByHand(keras.optimizers.SGD):
    """Masks gradients, and what a step makes of the weights."""

    def apply_gradients(self, grads_and_vars):
        pairs = [(gradient * self.masks.get(v.path, 1), v) for gradient, v in grads_and_vars]
        super().apply_gradients(pairs)


def test_a_transformer_layer_trains_with_fit_as_one_masked_by_hand():
    model, by_hand = compiled(network()), network()
    masks = {}
    for weight, twin in zip(kernels(model), kernels(by_hand), strict=True):
        masks[twin.path] = magnitude(weight.numpy(), 0.5)
        twin.assign(weight.numpy() * masks[twin.path])
    optimizer = MaskedByHand(0.05, momentum=0.9)
    optimizer.masks = masks
    by_hand.compile(optimizer, "mse")
    pruning = MagnitudePruning(0.5)
    np.testing.assert_allclose(fit(model, pruning), fit(by_hand), rtol=1e-5)
    assert len(pruning.rows()) == len(masks) == 6
    pruning.apply_to(model)
    for weight, twin in zip(model.weights, by_hand.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), twin.numpy(), rtol=1e-4, atol=1e-6)


def test_training_and_evaluation_share_the_masks_and_apply_to_makes_them_permanent():
    model, pruning, (x, y) = compiled(network()), MagnitudePruning(0.5), (numbers(8, 6, 8), numbers(8, 3))
    scope = amanda.apply(pruning)
    with scope:
        model.fit(x, y, batch_size=4, epochs=3, verbose=0)
        inside = model.predict(x, verbose=0)
    pruning.apply_to(model)
    # Outside of scopes TensorFlow runs a product and its bias as one operator, and rounds otherwise.
    np.testing.assert_allclose(model.predict(x, verbose=0), inside, rtol=1e-5)
    for weight in kernels(model):
        assert np.count_nonzero(weight.numpy() == 0) == round(0.5 * weight.numpy().size)


# ---- masks over time -------------------------------------------------------------------------------------------------


def product():
    """A function of an input, and its variable."""
    variable = tf.Variable(numbers(8, 4), name="w")
    return tf.function(lambda x: x @ variable, autograph=False), variable


EYE = tf.eye(8)


def test_masks_stay_while_weights_change_until_the_schedule_steps_or_the_tool_is_reset():
    function, variable = product()
    schedule = SparsitySchedule(initial=0.25, final=0.75, begin=0, end=2, every=1)
    pruning = MagnitudePruning(schedule)
    with amanda.apply(pruning):
        first = magnitude(variable.numpy(), 0.25)
        np.testing.assert_array_equal(function(EYE), variable * first)
        variable.assign(variable[::-1])
        np.testing.assert_array_equal(function(EYE), variable * first)
        pruning.reset()
        np.testing.assert_array_equal(function(EYE), variable * magnitude(variable.numpy(), 0.25))
        schedule.step()
        schedule.step()
        np.testing.assert_array_equal(function(EYE), variable * magnitude(variable.numpy(), 0.75))
    np.testing.assert_array_equal(function(EYE), variable)


def test_a_mask_of_ones_own():
    class Upper(WeightPruning):
        def get_mask(self, weight, dim):
            return np.triu(np.ones_like(weight))

    function, variable = product()
    with amanda.apply(Upper()):
        np.testing.assert_array_equal(function(EYE), np.triu(variable))


def test_where_leaves_operators_dense():
    function, variable = product()
    with amanda.apply(MagnitudePruning(1.0, where=lambda context: context.parameter_names[1] == "w")):
        assert not np.any(function(EYE))
    with pytest.warns(amanda.UnmatchedFilterWarning, match="where="):  # noqa: SIM117 -- outside the warning
        with amanda.apply(MagnitudePruning(1.0, where=lambda context: context.parameter_names[1] != "w")):
            np.testing.assert_array_equal(function(EYE), variable)


# ---- apply_to --------------------------------------------------------------------------------------------------------


def says(text):
    return pytest.raises(amanda.Error, match=re.escape(text))


def test_apply_to_takes_variables():
    function, variable = product()
    pruning, mask = MagnitudePruning(0.5), magnitude(variable.numpy(), 0.5)
    with amanda.apply(pruning):
        function(EYE)
    expected = variable.numpy() * mask
    with says(
        "its weight 'w' is not a variable of what was given; pass the model that ran in the scope, or a list of its"
    ):
        pruning.apply_to([tf.Variable(1.0)])
    pruning.apply_to([variable])
    np.testing.assert_array_equal(variable, expected)


def test_what_apply_to_cannot_do():
    with says("[pruning] nothing has been pruned; run the model in a scope of the tool first"):
        MagnitudePruning().apply_to([])
    with pytest.raises(
        TypeError, match=re.escape("[pruning] apply_to takes the model that was pruned, or a list of its")
    ):
        MagnitudePruning().apply_to(3)
    pruning = MagnitudePruning()
    train_session(cnn, CNN, BATCHES, pruning)
    with says(
        "is one of a Session's graph, or no longer exists; masks can be written into variables that exist outside"
    ):
        pruning.apply_to([])
    function, variable = product()
    twice = tf.function(lambda x: x @ variable @ tf.transpose(variable), autograph=False)
    pruning = MagnitudePruning()
    with amanda.apply(pruning):
        twice(EYE)
    with says("is computed, so no mask can be written into it; leave the operator dense with where="):
        pruning.apply_to([variable])
    pruning = MagnitudePruning(where=lambda context: context.module_path != "dense")
    function = tf.function(lambda x: dense(x @ variable), autograph=False)

    def dense(x):
        with tf.name_scope("dense"):
            return x @ tf.reshape(variable, (4, 8))

    with amanda.apply(pruning):
        function(EYE)
    with says("'w' is the weight of tensorflow::MatMul"):
        pruning.apply_to([variable])


def test_an_operator_without_a_weight_is_told():
    with (
        says("[pruning] which input of tensorflow::Relu is its weight is not known"),
        amanda.apply(MagnitudePruning(ops="Relu")),
    ):
        tf.function(tf.nn.relu)(EYE)


def test_tools_that_need_pytorch_say_so():
    import amanda.research as research

    with pytest.raises(ModuleNotFoundError, match="torch"):
        _ = research.TilewisePruning
    with pytest.raises(AttributeError, match="has no attribute 'Tilewise'"):
        _ = research.Tilewise


def test_eager_operators_are_refused():
    filters, x = tf.ones((1, 1, 1, 1)), tf.ones((1, 2, 2, 1))
    text = "[pruning] MagnitudePruning can't prune tensorflow::Conv2D: TensorFlow shows eager operators after they have run"
    with says(text), amanda.apply(MagnitudePruning(0.5)):
        tf.nn.conv2d(x, filters, 1, "SAME")
    with amanda.apply(MagnitudePruning(0.5, where=lambda context: context.op.__name__ != "Conv2D")):
        tf.nn.conv2d(x, filters, 1, "SAME")


# ---- slices of weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice_of", "is_whole"),
    [
        (lambda w: w[None], True),
        (lambda w: w[None, :, :], True),
        (lambda w: w[tf.newaxis, ..., :4], True),
        (lambda w: w[None, ::-1], False),
        (lambda w: w[None, :2], False),
    ],
    ids=["new", "colons", "ellipsis", "reversed", "part"],
)
def test_a_slice_of_all_elements_is_the_weight(slice_of, is_whole):
    weight, x = tf.Variable(numbers(4, 4), name="weight"), numbers(1, 3, 4)
    function = tf.function(lambda x: x[..., : slice_of(weight).shape[1]] @ slice_of(weight))
    pruning = MagnitudePruning(0.5)
    with amanda.apply(pruning):
        result = function(x)
    whole = weight.numpy()
    kept = slice_of(whole * magnitude(whole, 0.5) if is_whole else whole)
    np.testing.assert_allclose(result, x[..., : kept.shape[1]] @ kept, rtol=1e-5, atol=1e-6)
    assert [(row.name, row.parameter) for row in pruning.unhandled] == (
        [] if is_whole else [("tensorflow::StridedSlice", "weight")]
    )
