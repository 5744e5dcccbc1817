"""Programs of Keras whose data, labels, masks or rates are wrong, each with a right twin, and right programs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from check_programs import classes, compiled, data, dense, named_by, right
from keras import layers, ops, random


def texts(*, steps: int = 6) -> Any:
    """Ids of other lengths, with 0 at the end."""
    lengths = 2 + np.arange(32) % (steps - 1)
    return np.where(np.arange(steps) < lengths[:, None], 1 + np.arange(steps) % 7, 0)


class Embedded(layers.Layer):
    """Tokens and positions."""

    def __init__(self, *, has_mask: bool) -> None:
        super().__init__()
        self.token, self.position = layers.Embedding(8, 4, mask_zero=True), layers.Embedding(6, 4)
        self.has_mask = has_mask

    def call(self, ids: Any) -> Any:
        return self.token(ids) * 2.0 + self.position(ops.arange(6))

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        return self.token.compute_mask(ids) if self.has_mask else None


def fit_texts(rows: Any, inputs: Any, layer: Any) -> None:
    model = compiled(keras.Model(inputs, layers.Dense(1)(layer(rows))), "mse")
    model.fit(texts(), data(1), batch_size=8, verbose=0)


@named_by("mask-lost")
def mask_of_a_layer_of_ones_own(wrong: bool) -> None:
    inputs = keras.Input((6,), dtype="int32")
    fit_texts(Embedded(has_mask=not wrong)(inputs), inputs, layers.GRU(3))


@named_by("mask-lost")
def mask_behind_an_operator(wrong: bool) -> None:
    inputs = keras.Input((6,), dtype="int32")
    rows = layers.Embedding(8, 4, mask_zero=True)(inputs)
    scaled = ops.sqrt(4.0) * rows if wrong else layers.Rescaling(2.0)(rows)
    attended = layers.MultiHeadAttention(2, 2)(scaled, scaled)
    fit_texts(attended, inputs, layers.GlobalAveragePooling1D())


@right
def masks_that_nothing_needs() -> None:
    """A layer that has no steps; a mask that is given; a recurrent layer that reads other data; no padding."""
    inputs = keras.Input((6,), dtype="int32")
    rows = layers.Embedding(8, 4, mask_zero=True)(inputs) * 2.0
    fit_texts(rows, inputs, layers.GlobalMaxPooling1D())
    given = layers.LSTM(3)(rows, mask=ops.not_equal(inputs, 0))
    fit_texts(given, inputs, layers.Dense(2, "relu"))
    other = layers.LSTM(3)(ops.cast(inputs, "float32")[..., None])
    fit_texts(layers.Concatenate()([layers.GlobalMaxPooling1D()(rows), other]), inputs, layers.Dense(2, "relu"))
    model = compiled(keras.Model(inputs, layers.GRU(1)(rows)), "mse")
    model.fit(1 + texts() % 7, data(1), batch_size=8, verbose=0)


@right
def masks_of_the_programs_own() -> None:
    """Computed from the ids, or given as an input; and layers that have the results of other steps before padding."""
    inputs, mask = keras.Input((6,), dtype="int32"), keras.Input((6,), dtype="bool")
    rows = layers.Embedding(8, 4, mask_zero=True)(inputs) * 2.0
    weights = ops.cast(inputs > 0, "float32")[..., None]
    attended = layers.MultiHeadAttention(2, 2, dropout=0.1)(rows, rows)
    fit_texts(ops.sum(attended * weights, 1) / ops.sum(weights, 1), inputs, layers.Dense(2, "relu"))
    attended = layers.MultiHeadAttention(2, 2)(rows, rows, attention_mask=mask[:, None, :])
    model = keras.Model([inputs, mask], layers.Dense(1)(layers.GlobalAveragePooling1D()(attended, mask=mask)))
    compiled(model, "mse").fit([texts(), texts() > 0], data(1), batch_size=8, verbose=0)
    causal = layers.MultiHeadAttention(2, 2)(rows, rows, use_causal_mask=True)
    for each in (causal, layers.LSTM(3, return_sequences=True)(rows)):
        model = compiled(keras.Model(inputs, layers.Dense(1)(each)), "mse")
        model.fit(texts(), texts()[..., None], sample_weight=(texts() > 0) * 1.0, batch_size=8, verbose=0)


@named_by("fractions-cut")
def ids_that_are_scaled(wrong: bool) -> None:
    ids = np.arange(32 * 4).reshape(32, 4) % 10
    model = keras.Sequential([keras.Input((4,)), layers.Embedding(10, 3), layers.GRU(2), layers.Dense(1)])
    compiled(model, "mse").fit(ids / 9 if wrong else ids, data(1), batch_size=8, verbose=0)


@named_by("fractions-cut")
def stackoverflow_59325381(wrong: bool) -> None:
    """Labels are divided by 255; Keras casts them to whole numbers, which are all 0."""
    model = dense(8, 10, inputs=64, last="softmax")
    labels = classes(10) / 255 if wrong else classes(10)
    compiled(model, "sparse_categorical_crossentropy").fit(data(64), labels, batch_size=8, verbose=0)


@right
def numbers_that_are_put_into_bins() -> None:
    """Ages with fractions, whose whole part is looked up."""
    ages = np.random.RandomState(0).rand(32, 4) * 90
    model = keras.Sequential([keras.Input((4,)), layers.Embedding(100, 3), layers.Flatten(), layers.Dense(1)])
    compiled(model, "mse").fit(ages, data(1), batch_size=8, verbose=0)


@named_by("scaled-twice")
def images_that_are_divided_twice(wrong: bool) -> None:
    x = np.random.RandomState(0).randint(256, size=(16, 8, 8, 3)).astype("float32") / (255 if wrong else 1)
    parts = [layers.Resizing(6, 6), layers.Rescaling(1 / 127.5, offset=-1), layers.Conv2D(2, 3), layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *parts, layers.Dense(1)])
    compiled(model, "mse").fit(x, data(1, examples=16), batch_size=8, verbose=0)


@right
def small_factors_of_what_is_computed() -> None:
    """Of a layer's result, of negative data, and of data that are almost zero."""
    x = data(4)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, "sigmoid"), layers.Rescaling(0.001), layers.Dense(1)])
    compiled(model, "mse").fit(x, data(1), batch_size=8, verbose=0)
    for given in (x - 0.5, x / 100):
        model = keras.Sequential([keras.Input((4,)), layers.Rescaling(1 / 255), layers.Dense(1)])
        compiled(model, "mse").fit(given, data(1), batch_size=8, verbose=0)


def fit_classes(labels: Any, *, shuffles: bool, **more: Any) -> None:
    examples = len(labels)
    model = compiled(dense(8, 4, inputs=4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    order = np.random.RandomState(1).permutation(examples) if shuffles else np.arange(examples)
    model.fit(data(4, examples=examples), labels[order], batch_size=8, verbose=0, **more)


@named_by("sorted-by-class")
def batches_of_one_class(wrong: bool) -> None:
    fit_classes(np.repeat(np.arange(4), 24), shuffles=not wrong, shuffle=False)


@named_by("sorted-by-class")
def validation_split_of_sorted_classes(wrong: bool) -> None:
    """The last quarter of the examples has the last class."""
    fit_classes(np.repeat(np.arange(4), 40), shuffles=not wrong, validation_split=0.25)


@right
def classes_that_are_evaluated_in_order() -> None:
    labels = np.repeat(np.arange(4), 24)
    fit_classes(labels, shuffles=True, validation_data=(data(4, examples=96), labels))


@right
def real_and_generated_examples_in_turns() -> None:
    model = compiled(dense(8, 2, inputs=4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for i in range(12):
        model.train_on_batch(data(4, examples=8), np.full(8, i % 2))


@named_by("rows-and-columns-mixed")
def columns_of_images(wrong: bool) -> None:
    parts = [layers.Conv2D(3, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
    exchange = [] if wrong else [layers.Permute((2, 1, 3))]
    model = keras.Sequential(
        [keras.Input((8, 16, 1)), *parts, *exchange, layers.Reshape((8, 12)), layers.GRU(3), layers.Dense(1)]
    )
    compiled(model, "mse").fit(data(128).reshape(32, 8, 16, 1), data(1), batch_size=8, verbose=0)


@right
def rows_of_images() -> None:
    """Each step is a row."""
    model = keras.Sequential([keras.Input((8, 16, 2)), layers.Reshape((8, 32)), layers.GRU(3), layers.Dense(1)])
    compiled(model, "mse").fit(data(256).reshape(32, 8, 16, 2), data(1), batch_size=8, verbose=0)


def focal(is_mean: bool) -> Any:
    def loss(y: Any, predicted: Any) -> Any:
        given = ops.clip(predicted, 1e-6, 1 - 1e-6)
        right = y * given + (1 - y) * (1 - given)
        return ops.mean(-((1 - right) ** 2) * ops.log(right), axis=None if is_mean else -1)

    return loss


@named_by("weights-of-a-mean")
def class_weights_and_a_mean(wrong: bool) -> None:
    model = compiled(dense(8, 1, inputs=4, last="sigmoid"), focal(wrong))
    y = classes(2)[:, None].astype("float32")
    model.fit(data(4), y, batch_size=8, class_weight={0: 0.5, 1: 3.0}, verbose=0)


def scale_invariant(y: Any, predicted: Any) -> Any:
    y, predicted = ops.reshape(y, (-1,)), ops.reshape(predicted, (-1,))
    scale = ops.mean(y * predicted) / ops.mean(y * y)
    return ops.mean((predicted - scale * y) ** 2)


def weighted_by_labels(y: Any, predicted: Any) -> Any:
    return ops.mean((y / 130 + (1 - y) / 150) * (predicted - y) ** 2, -1)


@right
def labels_in_a_product() -> None:
    """With a number that is computed from all examples; and with a small one, as a weight of the class."""
    y = classes(2)[:, None].astype("float32")
    for loss in (scale_invariant, weighted_by_labels):
        compiled(dense(8, 1, inputs=4), loss).fit(data(4), y, batch_size=8, verbose=0)


@right
def a_mean_without_weights() -> None:
    model = compiled(dense(8, 1, inputs=4, last="sigmoid"), focal(True), loss_weights=0.5)
    model.fit(data(4), classes(2)[:, None].astype("float32"), batch_size=8, verbose=0)


@named_by("learning-rate-zero")
def decay_of_a_step_that_was_meant_for_an_epoch(wrong: bool) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1 if wrong else 16, decay_rate=0.5)
    model = compiled(dense(8, 1, inputs=4, hidden="tanh"), "mse", keras.optimizers.Adam(schedule))
    model.fit(data(4), data(1), batch_size=8, epochs=16, verbose=0)


@named_by("learning-rate-zero")
def factors_that_are_multiplied(wrong: bool) -> None:
    """A callback gets the rate of now, not the first one."""
    scheduled = keras.callbacks.LearningRateScheduler(lambda epoch, lr: (lr if wrong else 0.1) * 0.1**epoch)
    model = compiled(dense(8, 1, inputs=4, hidden="tanh"), "mse", keras.optimizers.Adam(0.1))
    model.fit(data(4), data(1), batch_size=8, epochs=6, verbose=0, callbacks=[scheduled])


@right
def a_schedule_without_the_last_batch_of_each_epoch() -> None:
    rates = keras.optimizers.schedules.CosineDecay(0.1, 4 * (252 // 5))
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    x = np.tile(data(4), (8, 1))[:252]
    model.compile(keras.optimizers.SGD(rates), "mse", jit_compile=False)
    model.fit(x, x[:, :1], batch_size=5, epochs=4, verbose=0)


@right
def a_rate_that_is_small_at_both_ends() -> None:
    """A warm-up, and a cosine."""
    schedule = keras.optimizers.schedules.CosineDecay(0.0, 12, warmup_target=0.1, warmup_steps=4, alpha=1e-7)
    model = compiled(dense(8, 1, inputs=4), "mse", keras.optimizers.SGD(schedule))
    model.fit(data(4), data(1), batch_size=8, epochs=4, verbose=0)


@named_by("same-weights")
def branches_with_one_seed(wrong: bool) -> None:
    inputs, shared = keras.Input((4,)), keras.initializers.HeNormal(seed=1)
    parts = [layers.Dense(6, "relu", kernel_initializer=shared if wrong else "he_normal")(inputs) for _ in range(3)]
    model = compiled(keras.Model(inputs, layers.Dense(1)(layers.Average()(parts))), "mse", "adam")
    model.fit(data(4), data(1), batch_size=8, verbose=0)


@right
def layers_that_begin_alike_and_learn_other_things() -> None:
    """One seed, in layers behind each other; and a target network."""
    seeded = [layers.Dense(4, "tanh", kernel_initializer=keras.initializers.HeNormal(seed=1)) for _ in range(3)]
    model = compiled(keras.Sequential([keras.Input((4,)), *seeded, layers.Dense(1)]), "mse", "adam")
    target = keras.models.clone_model(model)
    target.set_weights(model.get_weights())
    model.fit(data(4), target(data(4)) + 1, batch_size=8, verbose=0)


@named_by("frozen-around")
def last_layers_of_a_frozen_model(wrong: bool) -> None:
    """As in keras-team/keras #18092."""
    base = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(4)])
    model = keras.Sequential([keras.Input((4,)), base, layers.ReLU(), layers.Dense(1)])
    base.trainable = False
    compiled(model, "mse").fit(data(4), data(1), batch_size=8, verbose=0)
    base.trainable = not wrong
    for layer in base.layers[:-1]:
        layer.trainable = False
    base.layers[-1].trainable = True
    compiled(model, "mse").fit(data(4), data(1), batch_size=8, verbose=0)


class Block(layers.Layer):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.first, self.second = layers.Dense(4), layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.second(tf.nn.relu(self.first(x)))


@right
def a_block_that_is_made_frozen() -> None:
    """The layers in it do not know."""
    model = keras.Sequential([keras.Input((4,)), Block(trainable=False), layers.ReLU(), layers.Dense(1)])
    compiled(model, "mse").fit(data(4), data(1), batch_size=8, verbose=0)


class NoisyByKeras(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        noise = random.normal((1, 4), seed=self.seeds) + tf.random.normal((1, 4), seed=np.random.randint(9))
        return x + random.uniform((1, 4), seed=self.seeds) * noise


@right
def numbers_of_keras_random() -> None:
    """Its name is that of a module of Python; and a seed may be drawn once."""
    model = keras.Sequential([keras.Input((4,)), NoisyByKeras(), layers.Dense(1)])
    compiled(model, "mse").fit(data(4), data(1), batch_size=8, verbose=0)
