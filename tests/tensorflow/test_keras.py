"""Keras 3: fit and its relatives, on a convolutional network and on a transformer; what is saved in a scope."""

from __future__ import annotations

import re
import zipfile

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.capture import Capture, Patch
from function_tools import Mine, looks

RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.randn(16, 8, 8, 3).astype(np.float32)
TOKENS = RANDOM.randn(16, 6, 8).astype(np.float32)
LABELS = RANDOM.randint(0, 5, 16)


def convolutional():
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPool2D(),
            keras.layers.Dropout(0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
        ]
    )
    return compiled(model)


def transformer():
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    given = keras.Input((6, 8))
    x = keras.layers.LayerNormalization()(given + keras.layers.MultiHeadAttention(2, 4)(given, given))
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(x)))
    return compiled(keras.Model(given, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x))))


def compiled(model):
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


MODELS = {"convolutional": (convolutional, IMAGES), "transformer": (transformer, TOKENS)}
models = pytest.mark.parametrize("kind", ["convolutional", pytest.param("transformer", marks=pytest.mark.slow)])


def trained(model, x, scopes):
    """The losses of an epoch for each scope, and the weights afterwards."""
    losses = []
    for scope in scopes:
        with scope or amanda.disabled():
            history = model.fit(x, LABELS, batch_size=8, verbose=0, shuffle=False).history
            losses.append({name: float(value[0]) for name, value in history.items()})
    return losses, [weight.numpy().tolist() for weight in model.weights]


def looks_at(*ops):
    tool = amanda.Tool("looks")
    tool.ran = []

    def analyze(context):
        name = context.op.__name__
        context.insert_before_op(lambda *_: None)
        context.insert_after_op(lambda *_: tool.ran.append(name))

    def analyze_backward(context):
        name = context.backward_op.__name__
        context.insert_after_backward_op(lambda *_: tool.ran.append(name))

    tool.add_inst_for_op(analyze, ops=list(ops))
    tool.add_inst_for_op(analyze_backward, ops=list(ops), backward=True)
    return tool


@models
def test_training_off_on_off_on_is_training(kind):
    make, x = MODELS[kind]
    tool = looks_at("Conv2D", "MatMul", "Softmax")
    scope = amanda.apply(tool)
    assert trained(make(), x, [None, scope, None, scope]) == trained(make(), x, [None] * 4)
    assert tool.ran


@models
def test_looking_at_everything_in_a_train_step(kind):
    make, x = MODELS[kind]
    model, plain, tool = make(), make(), looks()
    with amanda.apply(tool):
        losses = [float(model.train_on_batch(x, LABELS)[0]) for _ in range(3)]
    expected = [float(plain.train_on_batch(x, LABELS)[0]) for _ in range(3)]
    # TensorFlow's optimizer fuses operators where no routine looks between them.
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert sum(tool.ran.values()) > 300


def test_predict_and_evaluate():
    model, tool = convolutional(), looks_at("Conv2D", "MatMul")
    vanilla = model.predict(IMAGES, verbose=0), model.evaluate(IMAGES, LABELS, verbose=0)
    scope = amanda.apply(tool)
    for _ in range(2):
        with scope:
            np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), vanilla[0])
            assert model.evaluate(IMAGES, LABELS, verbose=0) == vanilla[1]
            assert tool.ran.count("Conv2D") > 0
        tool.ran.clear()
        np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), vanilla[0])
        assert model.evaluate(IMAGES, LABELS, verbose=0) == vanilla[1]
        assert tool.ran == []


def test_several_steps_in_one_loop():
    def epoch(scope):
        model = convolutional()
        model.compile(
            "sgd",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=2,
            jit_compile=False,
        )
        return trained(model, IMAGES, [scope])

    tool = looks_at("Conv2D")
    assert epoch(amanda.apply(tool)) == epoch(None)
    assert tool.ran.count("Conv2D") == 2
    assert tool.ran.count("Conv2DBackpropFilter") == 2


@models
def test_every_backward_operator_is_linked_and_its_gradients_are_the_models(kind):
    """Without a link, it would be shown as a forward operator of the tape's name scope."""
    make, x = MODELS[kind]
    tool, forward, backward, returned = amanda.Tool("links"), [], [], {}

    def analyze(context):
        forward.append((context.op.__name__, context.module_path))
        context["place"] = context.op_id

    def analyze_backward(context):
        backward.append(context.backward_op.__name__)
        assert context["place"] == context.op_id
        key = (context.op.__name__, context.op_id, context.backward_op_id)
        context.insert_after_backward_op(lambda *given: returned.update({key: given}))

    tool.add_inst_for_op(analyze)
    tool.add_inst_for_op(analyze_backward, backward=True)
    model = make()
    with amanda.apply(tool):
        model.train_on_batch(x, LABELS)
    assert len(backward) > 30
    assert [op for op in forward if op[1].startswith(("gradient", "StatefulPartitionedCall"))] == []
    assert not {name for name, _ in forward} & {"Conv2DBackpropFilter", "ReluGrad", "MaxPoolGrad", "TanhGrad"}

    plain = make()
    with tf.GradientTape() as tape:
        loss = plain.compute_loss(x, LABELS, plain(x, training=True))
    expected = tape.gradient(loss, plain.trainable_weights)
    shown = [gradient for given in returned.values() for gradient in tf.nest.flatten(given) if gradient is not None]
    for weight, gradient in zip(plain.trainable_weights, expected, strict=True):
        if len(weight.shape) < 2:
            continue  # of a broadcast operand, or reshaped on the way
        size = int(np.prod(weight.shape))
        candidates = [value for value in shown if np.size(value) == size]
        assert any(np.allclose(np.ravel(value), np.ravel(gradient), rtol=1e-3, atol=1e-6) for value in candidates), (
            weight.path
        )


def test_positions_of_convolutions_and_products():
    tool, seen = amanda.Tool("positions"), {}

    def analyze_backward(context):
        name = context.backward_op.__name__
        given = [i for i, value in enumerate(context.grad_outputs) if value is not None]
        seen.setdefault((context.op.__name__, name), []).append(given)
        context.insert_after_backward_op(
            lambda *returned: seen.setdefault((name, "returns"), []).append(
                [i for i, value in enumerate(returned) if value is not None]
            )
        )

    tool.add_inst_for_op(analyze_backward, ops=["Conv2D", "MatMul"], backward=True)
    with amanda.apply(tool):
        convolutional().train_on_batch(IMAGES, LABELS)
    assert seen["Conv2D", "Conv2DBackpropFilter"] == [[0]]
    assert seen["Conv2DBackpropFilter", "returns"] == [[1]]
    assert seen["MatMul", "MatMul"] == [[0], [0]]
    assert sorted(seen["MatMul", "returns"]) == [[0], [1]]


def test_the_error_of_a_routine_comes_out_of_fit_as_itself():
    error = Mine("mine")

    def fails(*_):
        raise error

    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: context.insert_after_op(fails), ops="Conv2D")
    model = convolutional()
    with amanda.apply(tool), pytest.raises(Mine) as raised:
        model.fit(IMAGES, LABELS, batch_size=8, verbose=0)
    assert raised.value is error
    model.fit(IMAGES, LABELS, batch_size=8, verbose=0)


def test_the_error_of_an_analysis_comes_out_of_fit_as_itself():
    error = Mine("mine")
    tool = amanda.Tool("careless")

    def fails(context):
        raise error

    tool.add_inst_for_op(fails, ops="Conv2D")
    model = convolutional()
    with amanda.apply(tool), pytest.raises(Mine) as raised:
        model.fit(IMAGES, LABELS, batch_size=8, verbose=0)
    assert raised.value is error
    assert trained(model, IMAGES, [None]) == trained(convolutional(), IMAGES, [None])


def masks(mask):
    """Masks the kernels of convolutions, and their gradients."""
    tool = amanda.Tool("masks")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda w: w * mask, inputs=[1]), ops="Conv2D")

    def analyze_backward(context):
        if context.backward_op.__name__ == "Conv2DBackpropFilter":
            context.insert_after_backward_op(lambda dw: dw * mask, grad_inputs=[1])

    tool.add_inst_for_op(analyze_backward, ops="Conv2D", backward=True)
    return tool


def test_masked_training_is_that_of_a_masked_model():
    mask = (RANDOM.rand(3, 3, 3, 4) > 0.5).astype(np.float32)
    model, by_hand = convolutional(), convolutional()
    start = model.layers[0].kernel.numpy()
    with amanda.apply(masks(mask)):
        losses = [float(model.train_on_batch(IMAGES, LABELS)[0]) for _ in range(3)]
    expected = []
    for _ in range(3):
        by_hand.layers[0].kernel.assign(by_hand.layers[0].kernel * mask)
        expected.append(float(by_hand.train_on_batch(IMAGES, LABELS)[0]))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy()[mask == 0], start[mask == 0])


class Scaled(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])

    @tf.function
    def f(self, x):
        return tf.nn.relu(x * self.w)


def node_names(path):
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return sorted(f"{node.op} {node.name}" for node in nodes if not node.op.endswith("PartitionedCall"))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # TensorFlow's own, when it exports
def test_what_is_saved_in_a_scope_is_vanilla(tmp_path):
    tool = looks()
    for kind in ("plain", "scope"):
        model = convolutional()
        module = Scaled()
        with amanda.apply(tool) if kind == "scope" else amanda.disabled():
            module.f(tf.constant([1.0, -1.0]))
            model.train_on_batch(IMAGES, LABELS)
            model.save(tmp_path / f"{kind}.keras")
            model.export(tmp_path / f"{kind}_export", verbose=False)
            tf.saved_model.save(
                module, tmp_path / f"{kind}_module", signatures=module.f.get_concrete_function(tf.TensorSpec([2]))
            )
            tf.train.Checkpoint(module=module).write(str(tmp_path / f"{kind}_checkpoint"))
    assert node_names(tmp_path / "scope_module") == node_names(tmp_path / "plain_module")
    assert node_names(tmp_path / "scope_export") == node_names(tmp_path / "plain_export")
    assert not any("manda" in name for name in node_names(tmp_path / "scope_export"))
    with zipfile.ZipFile(tmp_path / "scope.keras") as scope, zipfile.ZipFile(tmp_path / "plain.keras") as plain:
        configs = [re.sub(rb'"shared_object_id": \d+', b"", saved.read("config.json")) for saved in (scope, plain)]
        assert configs[0] == configs[1]
    names = [tf.train.list_variables(str(tmp_path / f"{kind}_checkpoint")) for kind in ("plain", "scope")]
    assert names[0] == names[1]
    restored = tf.saved_model.load(tmp_path / "scope_module")
    assert restored.f(tf.constant([1.0, -1.0])).numpy().tolist() == [1.0, 0.0]


def test_captured_results_and_gradients_of_layers_are_those_of_keras():
    model = convolutional()
    inner = keras.Model(model.inputs[0], [model.layers[0].output, model.layers[-1].output])
    expected = [np.asarray(each) for each in inner(IMAGES, training=False)]
    capture = Capture(ops=["Relu", "BiasAdd", "AddV2"])
    with amanda.apply(capture):
        model.predict(IMAGES, batch_size=16, verbose=0)
    by_name = {name: capture[name] for name in capture}
    (hidden,) = (value for name, value in by_name.items() if name.endswith(":Relu"))
    (scores,) = (value for value in by_name.values() if value.shape == (16, 5))
    np.testing.assert_allclose(hidden, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, expected[1], rtol=1e-4, atol=1e-5)

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            hidden = model.layers[0](images)
            tape.watch(hidden)
            loss = tf.reduce_sum(hidden**2)
        return hidden, *tape.gradient(loss, [hidden, model.layers[0].kernel.value])

    capture = Capture(ops="Relu", grad=True)
    with amanda.apply(capture):
        hidden, gradient, _ = step(IMAGES)
    np.testing.assert_array_equal(capture.grad(*capture), gradient)
    np.testing.assert_array_equal(capture[next(iter(capture))], hidden)


def test_a_patched_layer_is_the_model_without_it():
    model = convolutional()
    expected = model.predict(IMAGES, verbose=0)
    with amanda.apply(Patch({"*:Relu": lambda result: np.zeros_like(result)})):
        found = model.predict(IMAGES, verbose=0)
    assert np.array_equal(found, np.broadcast_to(found[0], found.shape))
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)


def test_a_gradient_through_a_function_of_a_result_is_an_error():
    model = convolutional()
    with (
        pytest.raises(
            Exception, match=r"\[patch\] the gradient of '.*:Relu' is not known: a function in numpy has changed"
        ),
        amanda.apply(Patch({"*:Relu": lambda result: result * 2})),
    ):
        model.fit(IMAGES, LABELS, verbose=0)


class Paths(amanda.Tool):
    """The module paths of forward and backward operators."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = set(), set()
        self.add_inst_for_op(lambda context: self.forward.add(context.module_path))
        self.add_inst_for_op(lambda context: self.backward.add(context.module_path), backward=True)


def named():
    """A model in a model, and a layer that it calls twice."""
    keras.backend.clear_session()
    shared = keras.layers.Dense(8, name="shared")
    inner = keras.Sequential([keras.layers.Dense(8, activation="relu", name="hidden")], name="inner")
    images = keras.Input((8,))
    scores = keras.layers.Dense(1, name="head")(shared(inner(shared(images))))
    model = keras.Model(images, scores, name="outer")
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_modules_are_the_layers():
    model, x = named(), np.ones((4, 8), np.float32)
    enter = keras.src.backend.tensorflow.core.name_scope.__enter__
    with amanda.apply(paths := Paths()):
        model.fit(x, np.ones((4, 1)), verbose=0)
    layers = {"outer.shared", "outer.inner.hidden", "outer.head"}
    assert layers < paths.forward
    assert layers < paths.backward
    assert not [
        path for path in paths.forward | paths.backward if re.search(r"(outer|inner|shared|hidden|head)_\d", path)
    ]
    assert keras.src.backend.tensorflow.core.name_scope.__enter__ is enter
    with amanda.apply(eager := Paths()):
        model(x)
    assert layers <= eager.forward


def test_layers_can_be_asked_for_by_their_names():
    model, x = named(), np.ones((4, 8), np.float32)
    capture = Capture(ops="Relu", modules="*.hidden")
    with amanda.apply(capture):
        model.predict(x, verbose=0)
    assert [*capture] == ["outer.inner.hidden:Relu"]
    assert capture["outer.inner.hidden"].shape == (4, 8)


def test_scopes_of_the_program_around_layers_keep_their_names():
    layer = keras.layers.Dense(2, name="dense")

    @tf.function
    def twice(x):
        with tf.name_scope("tower"):
            first = layer(x)
        with tf.name_scope("tower"):
            return first + layer(x)

    with amanda.apply(paths := Paths()):
        twice(tf.ones((1, 4)))
    assert {path for path in paths.forward if path.endswith("dense")} == {"tower.dense", "tower_1.dense"}
