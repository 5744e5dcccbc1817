"""Programs: each returns what runs it once, and how often a measurement runs it."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
_images = np.random.default_rng(0).random((8, 16, 16, 3), np.float32)


def _cnn(x, weights):
    first, second, dense = weights
    h = tf.nn.relu(tf.nn.conv2d(x, first, 1, "SAME"))
    h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(h, second, 1, "SAME")), 2, 2, "SAME")
    return tf.reduce_mean(tf.square(tf.reshape(h, (8, -1)) @ dense))


def _weights():
    generator = np.random.default_rng(1)
    shapes = [(3, 3, 3, 16), (3, 3, 16, 16), (8 * 8 * 16, 10)]
    return [0.1 * generator.standard_normal(shape, np.float32) for shape in shapes]


def small_in_session():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, _images.shape)
        weights = [v1.get_variable(f"w{i}", initializer=value) for i, value in enumerate(_weights())]
        train = v1.train.GradientDescentOptimizer(1e-6).minimize(_cnn(x, weights))
        start = v1.global_variables_initializer()
    session = v1.Session(graph=graph)
    session.run(start)
    return lambda: session.run(train, {x: _images}), 20


def small_function():
    return _train_step(_cnn, [tf.Variable(value) for value in _weights()], _images), 20


def resnet50_function():
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3))
    images = np.random.default_rng(0).random((2, 64, 64, 3), np.float32)
    loss = lambda x, _: tf.reduce_mean(tf.square(model(x, training=True)))  # noqa: E731
    return _train_step(loss, [variable.value for variable in model.trainable_variables], images), 1


def _train_step(loss, weights, images):
    x = tf.constant(images)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = loss(x, weights)
        for weight, gradient in zip(weights, tape.gradient(y, weights), strict=True):
            weight.assign_sub(1e-6 * gradient)
        return y

    return lambda: step(x)


STEPS = {
    "Session, 2 convolutions": small_in_session,
    "function, 2 convolutions": small_function,
    "function, ResNet-50 of Keras": resnet50_function,
}


CHAIN = 500  # so many that the price of a run in a scope itself does not show in theirs


def _chain(x, call):
    for _ in range(CHAIN):
        x = x + 1.0
        if call:
            x = call(x)
    return x


def chain_in_session(call):
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, (64,))
        y = _chain(x, call)
    session = v1.Session(graph=graph, config=v1.ConfigProto(graph_options=_no_rewrites()))
    value = np.ones(64, np.float32)
    return lambda: session.run(y, {x: value}), 20


def _no_rewrites():
    """Without them TensorFlow makes one sum of all."""
    options = v1.GraphOptions()
    options.rewrite_options.disable_meta_optimizer = True
    return options


def chain_function(call):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    x = tf.ones(64)
    run = tf.function(lambda x: _chain(x, call))
    return lambda: run(x), 20


CHAINS = {"Session": chain_in_session, "function": chain_function}
