"""Programs of Keras and TensorFlow with a mistake, each with a right twin, and right programs.

Those with a number are made after questions on Stack Overflow that benchmarks of faults collect: the layers, the
activations and the loss are the question's, and the data are random numbers of that kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Faulty(NamedTuple):
    """A program with a mistake: `run(True)`; `run(False)` is its twin."""

    run: Callable[[bool], None]
    rule: str

    @property
    def name(self) -> str:
        return self.run.__name__


FAULTY: list[Faulty] = []
NOT_NAMED: list[Callable[[], None]] = []
"""Programs with a mistake that no rule names."""


def named_by(rule: str) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    def add(run: Callable[[bool], None]) -> Callable[[bool], None]:
        FAULTY.append(Faulty(run, rule))
        return run

    return add


def not_named(run: Callable[[], None]) -> Callable[[], None]:
    NOT_NAMED.append(run)
    return run


def data(features: int, *, examples: int = 32) -> Any:
    return np.random.RandomState(0).rand(examples, features).astype("float32")


def classes(count: int, *, examples: int = 32) -> Any:
    return np.arange(examples) % count


def one_hot(count: int) -> Any:
    return keras.utils.to_categorical(classes(count), count)


def dense(*units: int, inputs: int, hidden: str | None = "relu", last: str | None = None) -> keras.Sequential:
    made = [layers.Dense(each, activation=hidden) for each in units[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *made, layers.Dense(units[-1], activation=last)])


def compiled(model: Any, loss: Any, optimizer: Any = "sgd", **more: Any) -> Any:
    model.compile(optimizer, loss, jit_compile=False, **more)
    return model


# ---- Keras: fit -----------------------------------------------------------------------------------------------------


@named_by("one-class")
def stackoverflow_31880720(wrong: bool) -> None:
    """The loss of Keras 3 takes the logits; the metric gets the softmax."""
    model = dense(50, 50, 1, inputs=128, last="softmax" if wrong else "sigmoid")
    compiled(model, "binary_crossentropy", metrics=["accuracy"]).fit(data(128), classes(2), verbose=0)


@named_by("one-class")
def stackoverflow_34311586(wrong: bool) -> None:
    model = dense(2, 3, 1, inputs=2, hidden="sigmoid", last="softmax" if wrong else "sigmoid")
    compiled(model, "mean_squared_error").fit(data(2), classes(2), verbose=0)


@named_by("one-class")
def stackoverflow_45442843(wrong: bool) -> None:
    model = dense(1, 1, inputs=1, hidden="sigmoid", last="softmax" if wrong else "sigmoid")
    compiled(model, "mean_absolute_error").fit(data(1), classes(2).astype(bool), verbose=0)


@named_by("target-out-of-reach")
def stackoverflow_48221692(wrong: bool) -> None:
    x = data(1)
    model = dense(5, 1, inputs=1, hidden="sigmoid", last="sigmoid" if wrong else None)
    compiled(model, "mean_squared_error").fit(x, 3 * x + 20, verbose=0)


@named_by("target-out-of-reach")
def stackoverflow_48251943(wrong: bool) -> None:
    x = data(2)
    model = dense(4, 1, inputs=2, last="relu" if wrong else None)
    compiled(model, "mean_squared_error").fit(x, x[:, :1] - 0.5, batch_size=10, verbose=0)


@named_by("not-probabilities")
def stackoverflow_44066044(wrong: bool) -> None:
    model = dense(12, 12, 1, inputs=11, last="relu" if wrong else "sigmoid")
    compiled(model, "binary_crossentropy").fit(data(11), classes(2), verbose=0)


@named_by("not-probabilities")
def stackoverflow_47352366(wrong: bool) -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(10, activation=None if wrong else "softmax"),
        ]
    )
    compiled(model, keras.losses.categorical_crossentropy).fit(data(64).reshape(-1, 8, 8, 1), one_hot(10), verbose=0)


@named_by("linear-chain")
def stackoverflow_48385830(wrong: bool) -> None:
    model = dense(30, 10, inputs=64, hidden=None if wrong else "sigmoid")
    compiled(model, "mean_squared_error").fit(data(64), one_hot(10), verbose=0)


@named_by("linear-chain")
def stackoverflow_55328966(wrong: bool) -> None:
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation=None if wrong else "relu")])
    model.add(layers.Dense(32, kernel_regularizer="l2"))
    model.add(layers.Activation("relu"))
    model.add(layers.Dense(10, kernel_regularizer="l2", activation="softmax"))
    compiled(model, "categorical_crossentropy").fit(data(64), one_hot(10), verbose=0)


@named_by("unscaled-input")
def stackoverflow_48594888(wrong: bool) -> None:
    """Bytes of images, which the answer divides by 255."""
    x = np.random.RandomState(0).randint(256, size=(16, 8, 8, 3)).astype("float32") / (1 if wrong else 255)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    compiled(model, "categorical_crossentropy").fit(x, one_hot(10)[:16], verbose=0)


@named_by("labels")
def classes_from_one(wrong: bool) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with contextlib.suppress(tf.errors.InvalidArgumentError):  # on a CPU, TensorFlow itself finds it
        compiled(dense(8, 3, inputs=4), loss).fit(data(4), classes(3) + wrong, verbose=0)


@named_by("labels")
def labels_of_a_hinge_loss(wrong: bool) -> None:
    model = dense(8, 1, inputs=4, last="sigmoid")
    compiled(model, "binary_crossentropy").fit(data(4), 2 * classes(2) - 1 if wrong else classes(2), verbose=0)


@named_by("labels")
def several_labels_of_one_softmax(wrong: bool) -> None:
    y = np.ones((32, 3), "float32") - np.eye(3, dtype="float32")[classes(3)] if wrong else one_hot(3)
    compiled(dense(8, 3, inputs=4, last="softmax"), "categorical_crossentropy").fit(data(4), y, verbose=0)


@named_by("dead-units")
def dead_units(wrong: bool) -> None:
    model = dense(8, 1, inputs=4)
    model.layers[0].bias.assign(np.full(8, -100.0 if wrong else 1.0))
    compiled(model, "mse").fit(data(4), classes(2), batch_size=8, epochs=10, verbose=0)


@named_by("learning-rate-zero")
def steps_of_a_schedule(wrong: bool) -> None:
    """The learning rate falls to zero over as many steps as there are epochs."""
    epochs, x = 4, data(4)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=epochs if wrong else epochs * 4)
    model = compiled(dense(8, 1, inputs=4), "mse", keras.optimizers.Adam(schedule))
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=epochs, verbose=0)


@named_by("learning-rate-zero")
def steps_of_a_schedule_in_a_loop(wrong: bool) -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 3 if wrong else 6, end_learning_rate=0.0)
    weight, optimizer = tf.Variable(tf.ones((4, 1))), keras.optimizers.SGD(schedule)
    for _ in range(6):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.constant(data(4)) @ weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


@named_by("same-weights")
def constant_weights(wrong: bool) -> None:
    first = layers.Dense(8, "relu", kernel_initializer=keras.initializers.Constant(0.1) if wrong else "he_normal")
    model = keras.Sequential(
        [keras.Input((4,)), first, layers.Dense(2, kernel_initializer="ones" if wrong else "zeros")]
    )
    compiled(model, "mse", "adam").fit(data(4), data(4)[:, :2], batch_size=8, verbose=0)


@named_by("frozen-still-trained")
def frozen_without_compiling_again(wrong: bool) -> None:
    """`fit` goes on with the function that it has made for all layers."""
    x, model = data(4), compiled(dense(8, 3, inputs=4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, classes(3), batch_size=8, verbose=0)
    model.layers[0].trainable = False
    if not wrong:
        compiled(model, model.loss)
    model.fit(x, classes(3), batch_size=8, verbose=0)


class OwnStep(keras.Sequential):
    """With a `train_step` whose parts the twins choose."""

    def __init__(self, *made: Any, adds_losses: bool = False, scales: bool = False, **training: bool) -> None:
        super().__init__([*made])
        self.adds_losses, self.scales, self.training = adds_losses, scales, training

    def train_step(self, given: Any) -> Any:
        x, y = given
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(self(x, **self.training), tf.float32) - tf.cast(y, tf.float32)))
            if self.adds_losses:
                loss += tf.add_n(self.losses)
            scaled = self.optimizer.scale_loss(loss) if self.scales else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def fitted(model: Any, *, eagerly: bool = False, optimizer: Any = "sgd") -> None:
    compiled(model, None, optimizer, run_eagerly=eagerly).fit(data(4), data(1), batch_size=8, verbose=0)


def _eager_too(rule: str) -> Callable[[Callable[[bool, bool], None]], None]:
    """Registers a program of `fit` twice: as a function, and with `run_eagerly=True`."""

    def add(made: Callable[[bool, bool], None]) -> None:
        for eagerly in (False, True):

            def run(wrong: bool, eagerly: bool = eagerly) -> None:
                made(wrong, eagerly)

            run.__name__ = f"{made.__name__}_run_eagerly" if eagerly else made.__name__
            FAULTY.append(Faulty(run, rule))

    return add


@_eager_too("regularizer-left-out")
def losses_of_layers_are_left_out(wrong: bool, eagerly: bool) -> None:
    first = layers.Dense(8, "relu", kernel_regularizer="l2", bias_regularizer="l1")
    fitted(OwnStep(first, layers.Dense(1, kernel_regularizer="l1"), adds_losses=not wrong), eagerly=eagerly)


@_eager_too("loss-not-scaled")
def loss_of_mixed_precision(wrong: bool, eagerly: bool) -> None:
    """`compile` puts the optimizer of such a model into one that divides."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        fitted(OwnStep(layers.Dense(8, "relu"), layers.Dense(1, dtype="float32"), scales=not wrong), eagerly=eagerly)
    finally:
        keras.mixed_precision.set_global_policy("float32")


@named_by("loss-not-scaled")
def factor_of_an_optimizer(wrong: bool) -> None:
    optimizer, weight = keras.optimizers.SGD(0.1, loss_scale_factor=1024.0), tf.Variable(1.0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = weight**2
            scaled = loss if wrong else optimizer.scale_loss(loss)
        optimizer.apply_gradients([(tape.gradient(scaled, weight), weight)])


class Experts(layers.Layer):
    """With weights that Keras does not track: those of TensorFlow itself."""

    def __init__(self, kept_in: str) -> None:
        super().__init__()
        self.kept_in = kept_in

    def build(self, shape: Any) -> None:
        def made(number: int) -> Any:
            start = np.full((shape[-1], 4), 0.1 * (number + 1), "float32")
            if self.kept_in == "weights":
                return self.add_weight(shape=start.shape, initializer=keras.initializers.Constant(start))
            return tf.Variable(start, trainable=self.kept_in != "constants")

        found = [made(0), made(1)]
        if self.kept_in == "dictionary":
            self.kernels = dict(enumerate(found))
        elif self.kept_in == "attributes":
            self.first, self.second = found
        else:
            self.kernels = [*found]

    def call(self, x: Any) -> Any:
        used = [self.first, self.second] if self.kept_in == "attributes" else [self.kernels[i] for i in (0, 1)]
        return tf.add_n([tf.nn.relu(x @ one) for one in used])


@_eager_too("parameter-not-in-optimizer")
def variables_in_a_list(wrong: bool, eagerly: bool) -> None:
    fitted(OwnStep(Experts("list" if wrong else "weights"), layers.Dense(1)), eagerly=eagerly)


@_eager_too("parameter-not-in-optimizer")
def variables_in_a_dictionary(wrong: bool, eagerly: bool) -> None:
    fitted(OwnStep(Experts("dictionary" if wrong else "constants"), layers.Dense(1)), eagerly=eagerly)


@named_by("parameter-not-in-optimizer")
def variables_as_attributes(wrong: bool) -> None:
    model = keras.Sequential([keras.Input((4,)), Experts("attributes" if wrong else "weights"), layers.Dense(1)])
    compiled(model, "mse").fit(data(4), data(1), verbose=0)


class Normalized(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.normalization = layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.normalization(x, training=training)


@_eager_too("eval-in-training")
def argument_that_is_passed_on(wrong: bool, eagerly: bool) -> None:
    training = {} if wrong else {"training": True}
    fitted(OwnStep(layers.Dense(8, "relu"), Normalized(), layers.Dense(1), **training), eagerly=eagerly)


@_eager_too("eval-in-training")
def a_false_that_is_for_something_else(wrong: bool, eagerly: bool) -> None:
    class Net(OwnStep):
        def train_step(self, given: Any) -> Any:
            with tf.GradientTape() as tape:
                y = self.called(given[0], verbose=False)
                loss = tf.reduce_mean(tf.square(y))
                str.format("{training}", training=False)  # another call
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

        def called(self, x: Any, verbose: bool) -> Any:
            return self(x) if wrong else self(x, training=True)

    fitted(Net(layers.Dense(8, "relu"), Normalized(), layers.Dense(1)), eagerly=eagerly)


@_eager_too("last-of-both-directions")
def last_step_of_both_directions(wrong: bool, eagerly: bool) -> None:
    inputs = keras.Input((4, 1))
    hidden = layers.Bidirectional(layers.LSTM(3, return_sequences=wrong))(inputs)
    last = layers.Dropout(0.2)(hidden[:, -1] if wrong else hidden)
    model = compiled(keras.Model(inputs, layers.Dense(1)(last)), "mse", run_eagerly=eagerly)
    model.fit(data(4, examples=8)[..., None], data(1, examples=8), verbose=0)


# ---- loops with a tape ----------------------------------------------------------------------------------------------


def train(step: Callable[[Any], Any], variables: Callable[[], list[Any]], x: Any, *, graph: bool) -> None:
    """Three steps; `step` gives the loss."""
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(variables())

    def stepped(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = step(batch)
        given = variables()
        optimizer.apply_gradients(zip(tape.gradient(loss, given), given, strict=True))
        return loss

    run = tf.function(stepped) if graph else stepped
    for i in range(3):
        run(tf.constant(x[8 * i : 8 * i + 8]))


def _in_both(rule: str) -> Callable[[Callable[[bool], Any]], None]:
    """Registers a program twice: eager, and with a step that is a tf.function."""

    def add(made: Callable[[bool], tuple[Callable[[Any], Any], Callable[[], list[Any]], Any]]) -> None:
        for graph in (False, True):

            def run(wrong: bool, graph: bool = graph) -> None:
                train(*made(wrong), graph=graph)

            run.__name__ = f"{made.__name__}_in_a_function" if graph else made.__name__
            FAULTY.append(Faulty(run, rule))

    return add


Y = tf.constant(np.arange(8) % 3)
HOT = tf.one_hot(Y, 3)


@_in_both("not-probabilities")
def logits_to_a_loss_of_probabilities(wrong: bool) -> Any:
    model, loss = dense(8, 3, inputs=4), keras.losses.SparseCategoricalCrossentropy(from_logits=not wrong)
    return lambda x: loss(Y, model(x, training=True)), lambda: model.trainable_variables, data(4)


@_in_both("not-probabilities")
def sigmoid_of_classes(wrong: bool) -> Any:
    """Keras' own activations remember their logits, which its losses take."""
    model, loss = dense(8, 3, inputs=4), keras.losses.SparseCategoricalCrossentropy()
    activation = tf.sigmoid if wrong else tf.nn.softmax
    return lambda x: loss(Y, activation(model(x, training=True))), lambda: model.trainable_variables, data(4)


@_in_both("softmax-before-loss")
def softmax_twice(wrong: bool) -> Any:
    model = dense(8, 3, inputs=4)

    def step(x: Any) -> Any:
        logits = model(x, training=True)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(HOT, tf.nn.softmax(logits) if wrong else logits))

    return step, lambda: model.trainable_variables, data(4)


@_in_both("softmax-before-loss")
def sigmoid_twice(wrong: bool) -> Any:
    weight = tf.Variable(np.full((4, 3), 0.1, "float32"))

    def step(x: Any) -> Any:
        logits = x @ weight
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(HOT, tf.sigmoid(logits) if wrong else logits))

    return step, lambda: [weight], data(4)


@_in_both("loss-broadcast")
def broadcast(wrong: bool) -> Any:
    model, target = dense(8, 1, inputs=4), tf.constant(np.arange(8, dtype="float32"))

    def step(x: Any) -> Any:
        predicted = model(x, training=True)
        return tf.reduce_mean(tf.square((predicted if wrong else tf.squeeze(predicted, -1)) - target))

    return step, lambda: model.trainable_variables, data(4)


@_in_both("labels")
def labels_of_a_sigmoid_loss(wrong: bool) -> Any:
    model, y = dense(8, 1, inputs=4), tf.constant((np.arange(8) % 2 + wrong)[:, None].astype("float32"))

    def step(x: Any) -> Any:
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=model(x, training=True)))

    return step, lambda: model.trainable_variables, data(4)


@_in_both("softmax-over-batch")
def softmax_of_the_batch(wrong: bool) -> Any:
    model, loss = dense(8, 3, inputs=4), keras.losses.CategoricalCrossentropy()

    def step(x: Any) -> Any:
        return loss(HOT, tf.nn.softmax(model(x, training=True), axis=0 if wrong else -1))

    return step, lambda: model.trainable_variables, data(4)


@_in_both("target-out-of-reach")
def target_of_a_tanh(wrong: bool) -> Any:
    model, y = dense(8, 1, inputs=4, last="tanh"), tf.constant(np.linspace(-4, 4, 8, dtype="float32")[:, None])
    loss = keras.losses.MeanAbsoluteError()
    return lambda x: loss(y if wrong else y / 4, model(x, training=True)), lambda: model.trainable_variables, data(4)


@_in_both("one-class")
def one_class_of_a_loss(wrong: bool) -> Any:
    model, y = dense(8, 1 if wrong else 3, inputs=4), tf.zeros(8, tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda x: loss(y, model(x, training=True)), lambda: model.trainable_variables, data(4)


@_in_both("eval-in-training")
def batch_normalization_in_inference(wrong: bool) -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.BatchNormalization()])
    model.add(layers.Dense(1))

    def step(x: Any) -> Any:
        if wrong:
            return tf.reduce_mean(model(x) ** 2)
        return tf.reduce_mean(model(x, training=True) ** 2)

    return step, lambda: model.trainable_variables, data(4)


@_in_both("cast-round-trip")
def cast_and_back(wrong: bool) -> Any:
    model, head = dense(8, 8, inputs=4, last="relu"), dense(1, inputs=8)

    def step(x: Any) -> Any:
        hidden = tf.cast(model(x, training=True), tf.bfloat16)
        return tf.reduce_mean(head(tf.cast(hidden if wrong else tf.nn.relu(hidden), tf.float32)) ** 2)

    return step, lambda: [*model.trainable_variables, *head.trainable_variables], data(4)


@_in_both("linear-chain")
def two_linear_layers(wrong: bool) -> Any:
    model = dense(8, 1, inputs=4, hidden=None if wrong else "relu")
    return lambda x: tf.reduce_mean(model(x, training=True) ** 2), lambda: model.trainable_variables, data(4)


@named_by("dead-units")
def dead_units_of_eager_code(wrong: bool) -> None:
    x = tf.constant(data(4) - (5 if wrong else 0.5))
    for _ in range(40):
        tf.nn.relu(x)


@named_by("softmax-before-loss")
def softmax_twice_in_a_session(wrong: bool) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        logits = tf.constant(data(4, examples=8)) @ v1.get_variable("weight", (4, 3))
        scores = tf.nn.softmax(logits) if wrong else logits
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(HOT.numpy(), scores))
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run([loss, step])


# ---- mistakes that no rule names ------------------------------------------------------------------------------------


@not_named
def stackoverflow_38648195() -> None:
    """The mean squared error of a softmax: classes are learned, and slowly."""
    compiled(dense(20, 3, inputs=20, last="softmax"), "mean_squared_error").fit(data(20), one_hot(3), verbose=0)


@not_named
def stackoverflow_59278771() -> None:
    """Classes by sigmoids: the loss of Keras 3 takes their logits, and applies a softmax."""
    compiled(dense(4, 3, inputs=4, last="sigmoid"), "categorical_crossentropy").fit(data(4), one_hot(3), verbose=0)


@not_named
def stackoverflow_48934338() -> None:
    """A learning rate that is too high."""
    x = data(1)
    optimizer = keras.optimizers.SGD(0.1)
    compiled(dense(50, 30, 1, inputs=1), "mse", optimizer).fit(5 * x, 125 * x**2, verbose=0)


@not_named
def softmax_and_a_loss_of_logits() -> None:
    """The loss of Keras 3 takes the logits of the softmax, and warns."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled(dense(4, 3, inputs=4, last="softmax"), loss).fit(data(4), classes(3), verbose=0)


@not_named
def nothing_to_train() -> None:
    """Keras warns."""
    model = dense(4, 1, inputs=4)
    model.trainable = False
    compiled(model, "mse").fit(data(4), classes(2), verbose=0)


@not_named
def forward_pass_outside_of_the_tape() -> None:
    """Keras raises an error."""
    model = dense(4, 1, inputs=4)
    loss = tf.reduce_mean(model(data(4), training=True) ** 2)
    with tf.GradientTape() as tape:
        loss = loss * 1
    with contextlib.suppress(ValueError):
        keras.optimizers.SGD().apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


# ---- right programs that look like mistakes -------------------------------------------------------------------------

RIGHT: list[Callable[[], Any]] = []


def right(run: Callable[[], Any]) -> Callable[[], Any]:
    RIGHT.append(run)
    return run


@right
def layers_that_are_frozen_in_turns() -> None:
    """As in adversarial networks: each is unfrozen for its own steps."""
    first, second = dense(8, inputs=4), dense(3, inputs=8)
    optimizers = {id(one): keras.optimizers.SGD(0.1, momentum=0.9) for one in (first, second)}
    for i in range(8):
        one, other = (first, second) if i % 2 else (second, first)
        one.trainable, other.trainable = True, False
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(second(first(data(4), training=True), training=True) ** 2)
        gradients = tape.gradient(loss, one.trainable_variables)
        optimizers[id(one)].apply_gradients(zip(gradients, one.trainable_variables, strict=True))


@right
def frozen_statistics_that_are_meant() -> None:
    """Fine-tuning, as Keras' guide does it."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, activation="relu"), layers.BatchNormalization()])
    train(
        lambda x: tf.reduce_mean(model(x, training=False) ** 2),
        lambda: model.trainable_variables,
        data(4),
        graph=False,
    )


@right
def quantiles() -> None:
    """Three predictions for each target."""
    model, y = dense(8, 3, inputs=4), tf.constant(data(1, examples=8))
    train(lambda x: tf.reduce_mean(tf.abs(y - model(x))), lambda: model.trainable_variables, data(4), graph=False)


@right
def logarithm_of_energies() -> None:
    """No probabilities: they are clipped far above 1."""
    tf.math.log(tf.clip_by_value(tf.constant(data(4)) @ tf.Variable(data(4, examples=4)), 1e-5, 1e8))


@right
def labels_that_are_missing() -> None:
    model, y = dense(8, 3, inputs=4), tf.constant(np.arange(24).reshape(8, 3) % 3 - 1, tf.float32)

    def step(x: Any) -> Any:
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
        return tf.reduce_mean(tf.where(y < 0, 0.0, each))

    train(step, lambda: model.trainable_variables, data(4), graph=False)


@right
def attention_over_time() -> None:
    """One unit scores each step, and the softmax is over the steps, of which there may be one."""
    scores = layers.Dense(1)
    for steps in (4, 1):
        x = tf.constant(data(4).reshape(-1, steps, 4))
        tf.reduce_sum(tf.nn.softmax(scores(x), axis=1) * x, axis=1)


@right
def factorized_weights() -> None:
    dense(2, 8, inputs=8, hidden=None)(data(8))


@right
def regularizers_that_are_called() -> None:
    """Without `losses`, and next to gradients of the loss alone, as to look at their norm."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu", kernel_regularizer="l2"), layers.Dense(1)])

    @tf.function
    def step(x: Any) -> Any:
        trained = model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
            whole = loss + sum(one.regularizer(one) for one in trained if one.regularizer is not None)
        norms = [tf.norm(one) for one in tape.gradient(loss, trained)]
        optimizer.apply_gradients(zip(tape.gradient(whole, trained), trained, strict=True))
        return norms

    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    for _ in range(2):
        step(tf.constant(data(4)))


@right
def variables_that_a_layer_writes_itself() -> None:
    class Centered(layers.Layer):
        def build(self, shape: Any) -> None:
            self.center = tf.Variable(tf.zeros(shape[-1]))

        def call(self, x: Any) -> Any:
            self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(x, 0))
            return x - self.center

    fitted(OwnStep(layers.Dense(4, "relu"), Centered(), layers.Dense(1)))


@right
def inference_that_an_outer_call_means() -> None:
    normalized = Normalized()

    class Net(layers.Layer):
        def build(self, shape: Any) -> None:
            normalized.build(shape)

        def call(self, x: Any) -> Any:
            return normalized(x, training=False)

    fitted(OwnStep(layers.Dense(8, "relu"), Net(), normalized, layers.Dense(1), training=True))


@right
def inference_that_an_outer_call_means_by_a_name() -> None:
    class Net(layers.Layer):
        def __init__(self, train_bn: bool) -> None:
            super().__init__()
            self.train_bn, self.normalized = train_bn, Normalized()

        def call(self, x: Any) -> Any:
            return self.normalized(x, training=self.train_bn)

    for eagerly in (False, True):
        net = Net(train_bn=False)
        fitted(OwnStep(layers.Dense(8, "relu"), net, layers.Dense(1), training=True), eagerly=eagerly)


class HeadOnly(keras.Model):
    """The backbone keeps the values of its tf.Variables, as after a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = keras.Sequential([layers.Dense(8, "relu"), Experts("list")])
        self.head = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.backbone(x))

    def train_step(self, given: Any) -> Any:
        x, y = given
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - tf.cast(y, tf.float32)))
        gradients = tape.gradient(loss, self.head.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.head.trainable_variables, strict=True))
        return {"loss": loss}


@right
def a_head_that_is_trained_alone() -> None:
    for eagerly in (False, True):
        fitted(HeadOnly(), eagerly=eagerly)


@right
def halves_of_both_directions() -> None:
    """Each direction's last step; a mean of all steps; a sequence next to its reverse."""
    inputs = keras.Input((4, 1))
    hidden = layers.Bidirectional(layers.GRU(3, return_sequences=True))(inputs)
    ends = layers.Concatenate()([hidden[:, -1, :3], hidden[:, 0, 3:]])
    both = layers.Concatenate()([inputs, keras.ops.flip(inputs, axis=1)])[:, -1]
    found = [ends, keras.ops.mean(hidden, 1), hidden[:, 0], layers.Dense(2)(both)]
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(found)))
    compiled(model, "mse").fit(data(4, examples=8)[..., None], data(1, examples=8), verbose=0)


@right
def pairs_of_examples() -> None:
    encode, other = dense(4, 4, inputs=4), tf.constant(data(4, examples=8))
    tf.reduce_sum(tf.square(encode(data(4, examples=8))[:, None] - other[None]), -1)


@right
def probabilities_of_a_mixture() -> None:
    """Their logarithm is taken after a clip, and a softmax has made them."""
    model, loss = dense(8, 3, inputs=4, last="softmax"), keras.losses.SparseCategoricalCrossentropy()
    train(lambda x: loss(Y, 0.5 * model(x) + 0.5 / 3), lambda: model.trainable_variables, data(4), graph=True)
