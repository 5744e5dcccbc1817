"""Small models of Keras 3, trained with `fit` or by hand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from real_programs import Program, digits, fitted, trained

X, Y = digits(32)


def transformer() -> Program:
    """Each row of an image is a token."""
    x = inputs = keras.Input((8, 8))
    x = layers.Dense(16)(x) + layers.Embedding(8, 16)(np.arange(8)[None])
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.Dropout(0.1)(layers.MultiHeadAttention(4, 4)(y, y))
        y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(16)(y)
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    return fitted(keras.Model(inputs, outputs), X[..., 0], Y, metrics=["accuracy"])


def recurrent(layer: Any) -> Program:
    model = keras.Sequential([keras.Input((8, 8)), layers.Masking(), layer, layers.Dense(10, activation="softmax")])
    return fitted(model, X[..., 0], Y)


def lstm() -> Program:
    return recurrent(layers.LSTM(8, dropout=0.1))


def gru() -> Program:
    return recurrent(layers.GRU(8, recurrent_dropout=0.1))


def bidirectional_lstm() -> Program:
    return recurrent(layers.Bidirectional(layers.LSTM(4, return_sequences=False)))


def convolutions() -> Program:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomFlip("horizontal", seed=3),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.SeparableConv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2DTranspose(4, 3),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    return fitted(model, X, Y, optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))


def embedding() -> Program:
    """Pixels are words; the embedding's gradients are IndexedSlices."""
    layer = [keras.Input((64,), dtype="int32"), layers.Embedding(17, 8), layers.GlobalAveragePooling1D()]
    model = keras.Sequential([*layer, layers.Dense(10, activation="softmax")])
    return fitted(model, (X * 16).astype(np.int32).reshape(-1, 64), Y)


def bfloat16() -> Program:
    policy = keras.DTypePolicy("mixed_bfloat16")
    x = inputs = keras.Input((8, 8, 1))
    x = layers.Flatten(dtype=policy)(layers.Conv2D(4, 3, dtype=policy, activation="relu")(x))
    return fitted(keras.Model(inputs, layers.Dense(10, activation="softmax", dtype="float32")(x)), X, Y)


def several_steps_at_once() -> Program:
    """The steps of an execution are a loop in the graph."""
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(10, activation="softmax")])
    return fitted(model, X, Y, steps_per_execution=3)


class PenalizesGradients(keras.Model):
    """A derivative of a derivative: one tape inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(8, activation="tanh"), layers.Dense(10)

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            loss = loss + tf.reduce_sum(inner.gradient(loss, x) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(outer.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def gradient_penalty() -> Program:
    model = PenalizesGradients()
    model(X.reshape(-1, 64))  # makes the variables
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fitted(model, X.reshape(-1, 64), Y, loss=loss)


def adversarial() -> Program:
    """Two models, two optimizers, two tapes in one tf.function."""
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, activation="relu"), layers.Dense(64)])
    critic = keras.Sequential([keras.Input((64,)), layers.Dense(16, activation="leaky_relu"), layers.Dense(1)])
    optimizers = [keras.optimizers.RMSprop(0.01), keras.optimizers.Adam(0.01, clipnorm=1.0)]
    for optimizer, model in zip(optimizers, (generator, critic), strict=True):
        optimizer.build(model.trainable_variables)
    traces: list[str] = []

    @tf.function(jit_compile=False)
    def step(real: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        traces.append("step")
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fake = generator(noise, training=True)
            made_up, seen = critic(fake, training=True), critic(real, training=True)
            critic_loss = tf.reduce_mean(tf.nn.softplus(made_up) + tf.nn.softplus(-seen))
            generator_loss = tf.reduce_mean(tf.nn.softplus(-made_up))
        pairs = [(one, generator_loss, generator), (other, critic_loss, critic)]
        for optimizer, (tape, loss, model) in zip(optimizers, pairs, strict=True):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return generator_loss, critic_loss

    noise = np.random.RandomState(0).randn(3, 8, 4).astype(np.float32)
    batches = [(tf.constant(X[8 * i : 8 * i + 8].reshape(-1, 64)), tf.constant(noise[i])) for i in range(3)]
    variables = [*generator.variables, *critic.variables, *optimizers[0].variables, *optimizers[1].variables]
    return trained(variables, step, batches, traces)


PROGRAMS = [transformer, lstm, gru, bidirectional_lstm, convolutions, embedding, bfloat16, several_steps_at_once]
PROGRAMS += [gradient_penalty, adversarial]
