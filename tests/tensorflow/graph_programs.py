"""Programs of TensorFlow 1: graphs and sessions. `legacy` has tf.compat.v1's layers and cells, which Keras 3 hides."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from real_programs import Arrays, Program, digits, in_session
from tf_keras.api._v1.keras.__internal__ import legacy

v1 = tf.compat.v1
X, Y = digits(24)


class Classifier:
    """A graph with a batch of digits coming in, and what trains on it."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(0)
            self.image, self.label = v1.placeholder(tf.float32, (8, 8, 8, 1)), v1.placeholder(tf.int32, (8,))
        self.feeds = [{self.image: X[i : i + 8], self.label: Y[i : i + 8]} for i in (0, 8, 16)]

    def trained(self, logits: tf.Tensor, optimizer: Any, *more: Any) -> Program:
        loss = v1.losses.sparse_softmax_cross_entropy(self.label, logits)
        pairs = optimizer.compute_gradients(loss)
        gradients, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train = optimizer.apply_gradients(zip(gradients, [variable for _, variable in pairs], strict=True))
        return in_session(self.graph, [loss, logits, norm, train, *more], self.feeds)


def weights(name: str, *shape: int) -> Any:
    return v1.get_variable(name, shape, initializer=tf.initializers.glorot_uniform(seed=len(name)))


def rnn() -> Program:
    """A recurrent network that is written as a loop; its gradients are one, too."""
    it = Classifier()
    with it.graph.as_default():
        rows, recurrent, out = weights("rows", 8, 16), weights("recurrent", 16, 16), weights("out", 16, 10)
        tokens = tf.transpose(it.image[..., 0], [1, 0, 2])

        def body(i: tf.Tensor, state: tf.Tensor) -> list[tf.Tensor]:
            return [i + 1, tf.tanh(tokens[i] @ rows + state @ recurrent)]

        _, state = tf.while_loop(lambda i, _: i < 8, body, [tf.constant(0), tf.zeros((8, 16))])
        return it.trained(state @ out, v1.train.MomentumOptimizer(0.1, 0.9))


def rnn_in_frames() -> Program:
    """The same, with TensorFlow 1's own loops: Enter, Switch, Merge, Exit."""
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        return rnn()
    finally:
        if enabled:
            v1.enable_control_flow_v2()


def dynamic_rnn() -> Program:
    it = Classifier()
    with it.graph.as_default():
        cell = legacy.rnn_cell.LSTMCell(8)
        outputs, _ = v1.nn.dynamic_rnn(cell, it.image[..., 0], sequence_length=tf.fill((8,), 6), dtype=tf.float32)
        return it.trained(outputs[:, 5] @ weights("out", 8, 10), v1.train.AdamOptimizer(0.01))


def layers() -> Program:
    """v1's layers, with moving averages that are updated beside the training step, and dropout."""
    it = Classifier()
    with it.graph.as_default():
        x = legacy.layers.conv2d(it.image, 8, 3, use_bias=False)
        x = tf.nn.relu(legacy.layers.batch_normalization(x, training=True, fused=True))
        x = legacy.layers.max_pooling2d(x, 2, 2)
        x = tf.nn.dropout(legacy.layers.flatten(x), rate=0.2, seed=1)
        return it.trained(legacy.layers.dense(x, 10), v1.train.RMSPropOptimizer(0.01))


def reference_variables() -> Program:
    it = Classifier()
    with it.graph.as_default():
        with v1.variable_scope("old", use_resource=False):
            hidden, out = weights("hidden", 64, 16), weights("out", 16, 10)
        x = tf.nn.relu6(tf.reshape(it.image, (8, 64)) @ hidden)
        return it.trained(x @ out, v1.train.GradientDescentOptimizer(0.1))


def branches() -> Program:
    """tf.cond on a value, with gradients through both branches."""
    it = Classifier()
    with it.graph.as_default():
        w, out = weights("w", 64, 16), weights("out", 16, 10)
        x = tf.reshape(it.image, (8, 64)) @ w
        x = tf.cond(tf.reduce_mean(it.image) > 0.3, lambda: tf.nn.elu(x), lambda: tf.sin(x) * 2.0)
        return it.trained(x @ out, v1.train.AdagradOptimizer(0.1))


def sparse_embedding() -> Program:
    """Gradients that are IndexedSlices, of a partitioned variable."""
    it = Classifier()
    with it.graph.as_default():
        pieces = v1.fixed_size_partitioner(2)
        table = v1.get_variable("table", (17, 6), partitioner=pieces, initializer=tf.initializers.ones())
        words = tf.cast(it.image[..., 0] * 16, tf.int32)
        x = tf.reshape(tf.nn.embedding_lookup(list(table), words), (8, 384))
        loss = v1.losses.sparse_softmax_cross_entropy(it.label, x @ weights("out", 384, 10))
        train = v1.train.AdamOptimizer(0.01).minimize(loss)
        return in_session(it.graph, [loss, train], it.feeds)


def dataset() -> Program:
    """Batches come from a dataset's iterator, and nothing is fed."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        data = tf.data.Dataset.from_tensor_slices((X.reshape(-1, 64), Y)).map(lambda x, y: (x * 2.0 - 1.0, y))
        x, y = v1.data.make_one_shot_iterator(data.shuffle(24, seed=1).batch(8).prefetch(1)).get_next()
        loss = v1.losses.sparse_softmax_cross_entropy(y, x @ weights("w", 64, 10))
        return in_session(graph, [loss, v1.train.GradientDescentOptimizer(0.1).minimize(loss)], [{}, {}, {}])


def array_loops() -> Program:
    """scan and map_fn, which write to TensorArrays."""
    it = Classifier()
    with it.graph.as_default():
        w = weights("w", 8, 8)
        rows = tf.transpose(it.image[..., 0], [1, 0, 2])
        states = tf.scan(lambda state, row: tf.tanh(state @ w + row), rows, tf.zeros((8, 8)))
        squares = tf.map_fn(tf.square, states)
        return it.trained(tf.reduce_sum(squares, 0) @ weights("out", 8, 10), v1.train.GradientDescentOptimizer(0.1))


def python_operators() -> Program:
    """py_func, and a gradient that Python defines."""
    it = Classifier()
    with it.graph.as_default():

        @tf.custom_gradient
        def halved(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return x * 0.5, lambda upstream: upstream * 3.0

        x = halved(tf.reshape(it.image, (8, 64)) @ weights("w", 64, 10))
        mean = v1.py_func(lambda values: values.mean(), [x], tf.float32)
        return it.trained(x, v1.train.GradientDescentOptimizer(0.1), mean)


def estimator() -> Program:
    """A model function in a monitored session with hooks and a global step; it saves and restores checkpoints."""

    def model_fn(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Operation]:
        hidden = tf.nn.relu(legacy.layers.dense(x, 16))
        loss = v1.losses.sparse_softmax_cross_entropy(y, legacy.layers.dense(hidden, 10))
        step = v1.train.get_or_create_global_step()
        return loss, v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)

    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        data = tf.data.Dataset.from_tensor_slices((X.reshape(-1, 64), Y)).batch(8).repeat()
        loss, train = model_fn(*v1.data.make_one_shot_iterator(data).get_next())
        v1.summary.scalar("loss", loss)
        variables, saver = v1.global_variables(), v1.train.Saver()

    def run() -> Arrays:
        losses: list[float] = []
        with graph.as_default(), tempfile.TemporaryDirectory() as folder:
            scaffold = v1.train.Scaffold(saver=saver)
            hooks = [v1.train.StopAtStepHook(3), v1.train.NanTensorHook(loss)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, scaffold=scaffold, hooks=hooks, save_summaries_steps=1
            ) as session:
                while not session.should_stop():
                    losses.append(session.run([loss, train])[0])
            path = v1.train.latest_checkpoint(folder)
            saved = v1.train.load_checkpoint(path)
            left = {variable.name: saved.get_tensor(variable.op.name) for variable in variables}
        return {"losses": np.array(losses)} | left

    run()  # it adds what monitors it to the graph, and finalizes that
    return Program(run, graph=graph)


def functions() -> Program:
    """A network of functions in functions, with a gradient that Python defines, and one that is computed in a function."""
    it = Classifier()
    with it.graph.as_default():
        hidden, out, bias = weights("hidden", 64, 16), weights("out", 16, 10), weights("b", 10)

        @tf.custom_gradient
        def halved(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return x * 0.5, lambda upstream: upstream * 3.0

        @tf.function
        def dense(x: tf.Tensor, w: Any) -> tf.Tensor:
            return tf.nn.relu(x @ w) + halved(tf.sin(x @ w))

        @tf.function
        def slope(x: tf.Tensor) -> tf.Tensor:
            return tf.gradients(tf.reduce_sum(tf.tanh(x) ** 3), x)[0]

        @tf.function
        def network(x: tf.Tensor) -> tf.Tensor:
            return slope(dense(tf.reshape(x, (8, 64)), hidden)) @ out + bias

        return it.trained(network(it.image), v1.train.AdamOptimizer(0.01))


def second_order() -> Program:
    """A penalty on the gradient of a function, which is differentiated again."""
    it = Classifier()
    with it.graph.as_default():
        w, out = weights("w", 64, 16), weights("out", 16, 10)
        x = tf.reshape(it.image, (8, 64))
        logits = tf.function(lambda x: tf.tanh(x @ w) @ out)(x)
        penalty = tf.reduce_sum(tf.square(tf.gradients(logits, x)[0]))
        return it.trained(logits + penalty, v1.train.GradientDescentOptimizer(0.01), penalty)


def branches_in_loops() -> Program:
    """AutoGraph makes them of Python's statements, in a function; rows of a table are gathered in it."""
    it = Classifier()
    with it.graph.as_default():
        table, out = weights("table", 17, 8), weights("out", 8, 10)

        @tf.function
        def network(words: tf.Tensor) -> tf.Tensor:
            state, longest = tf.zeros((8, 8)), tf.constant(0.0)
            for i in tf.range(6):
                row = tf.gather(table, words[:, i])
                if i % 2 == 0:
                    state = tf.tanh(state + row)
                elif i > 3:
                    state = tf.nn.relu(state * row)
                longest = tf.maximum(longest, tf.reduce_max(state))
            while tf.reduce_sum(tf.abs(state)) > 1.0:
                state = state * 0.7
            return state @ out + longest

        return it.trained(network(tf.cast(it.image[:, :, 3, 0] * 16, tf.int32)), v1.train.AdamOptimizer(0.01))


def choices() -> Program:
    """tf.switch_case whose branches share weights, and write to a variable."""
    it = Classifier()
    with it.graph.as_default():
        w, out = weights("w", 64, 16), weights("out", 16, 10)
        count = v1.get_variable("count", initializer=0.0, use_resource=True)
        x = tf.reshape(it.image, (8, 64))

        def counted() -> tf.Tensor:
            with tf.control_dependencies([count.assign_add(1.0)]):
                return tf.nn.elu(x @ w)

        choice = tf.cast(tf.reduce_sum(x), tf.int32) % 3
        x = tf.switch_case(choice, [counted, lambda: tf.sin(x @ w), lambda: tf.nn.softplus(x @ w) * count])
        return it.trained(x @ out, v1.train.MomentumOptimizer(0.1, 0.9))


def keras_2() -> Program:
    """Layers of Keras 2, of which the recurrent ones are functions."""
    import tf_keras

    it = Classifier()
    with it.graph.as_default():
        x = tf_keras.layers.LSTM(8, return_sequences=True)(it.image[..., 0])
        x = tf_keras.layers.GRU(8)(tf_keras.layers.BatchNormalization()(x, training=True))
        return it.trained(tf_keras.layers.Dense(10)(x), v1.train.AdamOptimizer(0.01))


def keras_3() -> Program:
    """Layers of Keras 3, which know nothing of sessions: one that repeats a body, statistics, and random numbers."""
    it = Classifier()
    keras.backend.clear_session()  # it counts layers through the process
    with it.graph.as_default():
        x = keras.layers.Conv2D(4, 3, activation="relu")(it.image)
        x = keras.layers.BatchNormalization()(x, training=True)
        x = keras.layers.LSTM(8)(tf.reshape(x, (-1, 6, 24)))
        x = keras.layers.Dropout(0.25, seed=3)(x, training=True)
        return it.trained(keras.layers.Dense(10)(x), v1.train.AdamOptimizer(0.01))


PROGRAMS = [rnn, rnn_in_frames, dynamic_rnn, layers, reference_variables, branches, sparse_embedding, dataset]
PROGRAMS += [array_loops, python_operators, estimator]
PROGRAMS += [functions, second_order, branches_in_loops, choices, keras_2, keras_3]
