"""Models of tf_keras.applications, with random weights, on real images made larger."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras
from real_programs import Program, digits, in_session

SIZE = 32


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = digits(count)
    return np.repeat(np.repeat(np.repeat(x, SIZE // 8, 1), SIZE // 8, 2), 3, 3), y


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


PROGRAMS = [resnet50_v1]
