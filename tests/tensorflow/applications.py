"""Models of keras.applications and tf_keras.applications, with random weights, on real images made larger."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from real_programs import Program, digits, fitted, in_session

SIZE = 32


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = digits(count)
    return np.repeat(np.repeat(np.repeat(x, SIZE // 8, 1), SIZE // 8, 2), 3, 3), y


def of_keras(name: str, **options: Any) -> Program:
    model = getattr(keras.applications, name)(weights=None, input_shape=(SIZE, SIZE, 3), classes=10, **options)
    return fitted(model, *images(6), batch=2, optimizer=keras.optimizers.SGD(0.001, momentum=0.9))


def of_tf_keras(name: str) -> Program:
    model = getattr(tf_keras.applications, name)(weights=None, input_shape=(SIZE, SIZE, 3), classes=10)
    return fitted(model, *images(6), batch=2, optimizer=tf_keras.optimizers.SGD(0.001, momentum=0.9))


def resnet50_v1() -> Program:
    """In a v1 graph, trained by a v1 optimizer in sessions."""
    x, y = images(6)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(0)
        image, label = (
            tf.compat.v1.placeholder(tf.float32, (2, SIZE, SIZE, 3)),
            tf.compat.v1.placeholder(tf.int32, (2,)),
        )
        model = tf_keras.applications.ResNet50(weights=None, input_tensor=image, classes=10, classifier_activation=None)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, model.output))
        optimizer = tf.compat.v1.train.MomentumOptimizer(0.001, 0.9)
        train = optimizer.minimize(loss, var_list=model.trainable_weights)
        updates = model.updates
        feeds = [{image: x[i : i + 2], label: y[i : i + 2]} for i in (0, 2, 4)]
        return in_session(graph, [loss, train, updates, model.output], feeds)


def _named(name: str, function: Any, *arguments: Any, **options: Any) -> Any:
    program = functools.partial(function, *arguments, **options)
    program.__name__ = name  # type: ignore[attr-defined]
    return program


PROGRAMS = [
    _named("resnet50", of_keras, "ResNet50"),
    _named("mobilenet_v3", of_keras, "MobileNetV3Small"),
    _named("efficientnet", of_keras, "EfficientNetB0"),
    _named("densenet", of_keras, "DenseNet121"),
    _named("convnext", of_keras, "ConvNeXtTiny"),
    _named("resnet50_of_tf_keras", of_tf_keras, "ResNet50"),
    resnet50_v1,
]
