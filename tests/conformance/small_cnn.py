"""One small CNN, written once for numpy and once for each regime that is installed, with the same weights.

Images are NHWC here, and filters HWIO; PyTorch's are transposed.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import amanda
import numpy as np

WORDS = ["conv2d", "relu", "mean", "matmul", "add"]
"""Its operators in order, as `amanda.tools.mapping` calls them."""

assert amanda.__version__


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


IMAGES = drawn(0, 4, 6, 6, 3)
WEIGHTS = {"filters": drawn(1, 3, 3, 3, 5), "matrix": drawn(2, 5, 4), "bias": drawn(3, 4)}


class Forward(NamedTuple):
    """What each operator returns, by its word."""

    conv2d: Any
    relu: Any
    mean: Any
    matmul: Any
    add: Any


def by_numpy(images: Any = IMAGES, **changed: Any) -> Forward:
    """In float64. `changed`: weights, or what an operator returns, to go on with."""
    given = {name: value.astype(np.float64) for name, value in WEIGHTS.items()} | changed
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), (1, 2))
    conv2d = np.asarray(given.get("conv2d", np.einsum("nyxihw,hwio->nyxo", windows, given["filters"])))
    relu = given.get("relu", conv2d.clip(0))
    mean = given.get("mean", relu.mean((1, 2)))
    matmul = given.get("matmul", mean @ given["matrix"])
    return Forward(conv2d, relu, mean, matmul, given.get("add", matmul + given["bias"]))


def gradients_by_numpy() -> dict[str, Any]:
    """Of the sum of all scores: by the weights, and by what operators return."""
    forward = by_numpy()
    ones = np.ones_like(forward.add)
    windows = np.lib.stride_tricks.sliding_window_view(IMAGES.astype(np.float64), (3, 3), (1, 2))
    mean = ones @ WEIGHTS["matrix"].T.astype(np.float64)
    relu = np.broadcast_to(mean[:, None, None] / (4 * 4), forward.relu.shape)
    conv2d = relu * (forward.conv2d > 0)
    return {
        "filters": np.einsum("nyxihw,nyxo->hwio", windows, conv2d),
        "matrix": forward.mean.T @ ones,
        "bias": ones.sum(0),
        **{"add": ones, "matmul": ones, "mean": mean, "relu": relu, "conv2d": conv2d},
    }


class Regime(Protocol):
    """The CNN in one framework and mode."""

    name: str
    """What `OpContext.namespace` is."""
    edits: bool
    """Can tools change values there?"""
    trains: bool
    """Can tools change values there, and does the framework compute gradients?"""

    def build(self) -> Model: ...

    def apply(self, *tools: amanda.Tool) -> amanda.Scope:
        """A scope whose tools reach the CNN."""

    def from_nhwc(self, array: Any) -> Any:
        """Images or activations, in the order in which this framework has them."""


class Model(Protocol):
    def run(self) -> Any:
        """The scores, as an array."""

    def step(self) -> dict[str, Any]:
        """The scores, and the gradients of their sum by the weights' names; filters are HWIO."""


def regimes() -> Iterator[Regime]:
    if importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None:
        yield from _of_onnxruntime()
    if importlib.util.find_spec("torch") is not None:
        yield from _of_torch()
    elif importlib.util.find_spec("tensorflow") is not None:  # never both in one process
        yield from _of_tensorflow()


def _of_onnxruntime() -> Iterator[Regime]:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    filters = np.ascontiguousarray(WEIGHTS["filters"].transpose(3, 2, 0, 1))
    images = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "filters"], ["convolved"]),
            helper.make_node("Relu", ["convolved"], ["features"]),
            helper.make_node("ReduceMean", ["features"], ["pooled"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["pooled", "matrix"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["scores"]),
        ],
        "cnn",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, images.shape)],
        [onnx.ValueInfoProto(name="scores")],
        [numpy_helper.from_array(value, name) for name, value in (WEIGHTS | {"filters": filters}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    class Built:
        def __init__(self) -> None:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # or it fuses words
            self.session = onnxruntime.InferenceSession(model.SerializeToString(), options)

        def run(self) -> Any:
            return self.session.run(None, {"images": images})[0]

        def step(self) -> dict[str, Any]:
            raise NotImplementedError

    class Sessions:
        name = f"onnxruntime/{'.'.join(onnxruntime.__version__.split('.')[:2])}/graph"
        edits = True
        trains = False
        build: Any = staticmethod(Built)
        apply = staticmethod(amanda.apply)

        def from_nhwc(self, array: Any) -> Any:
            return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array

    yield Sessions()


def _of_torch() -> Iterator[Regime]:
    import torch

    class Cnn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = torch.nn.Parameter(torch.tensor(WEIGHTS["filters"]).permute(3, 2, 0, 1).contiguous())
            self.matrix = torch.nn.Parameter(torch.tensor(WEIGHTS["matrix"]))
            self.bias = torch.nn.Parameter(torch.tensor(WEIGHTS["bias"]))

        def forward(self, images: Any) -> Any:
            features = torch.relu(torch.conv2d(images, self.filters)).mean((2, 3))
            return torch.matmul(features, self.matrix) + self.bias

    images = torch.tensor(IMAGES).permute(0, 3, 1, 2).contiguous()

    @amanda.disabled()
    def array(tensor: torch.Tensor) -> Any:
        return tensor.detach().numpy()

    class Built:
        def __init__(self) -> None:
            self.model = self.call = Cnn()

        def run(self) -> Any:
            return array(self.call(images))

        def step(self) -> dict[str, Any]:
            self.model.zero_grad()
            scores = self.call(images)
            scores.backward(torch.ones(4, 4))
            found = {name: weight.grad.numpy() for name, weight in self.model.named_parameters()}
            return found | {"filters": found["filters"].transpose(2, 3, 1, 0), "scores": array(scores)}

    class Eager:
        name = f"pytorch/{'.'.join(torch.__version__.split('.')[:2])}/eager"
        edits = trains = True
        build: Any = staticmethod(Built)
        apply = staticmethod(amanda.apply)

        def from_nhwc(self, array: Any) -> Any:
            return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array

    class BuiltCompiled(Built):
        def __init__(self) -> None:
            super().__init__()
            torch._dynamo.reset()
            self.call = torch.compile(self.model, backend="aot_eager")

    class Compiled(Eager):
        name = Eager.name.replace("eager", "compile")
        build = staticmethod(BuiltCompiled)
        apply = staticmethod(functools.partial(amanda.apply, compiled="graph"))

    yield Eager()
    if importlib.util.find_spec("amanda._torch_compile") is not None:
        yield Compiled()


def _of_tensorflow() -> Iterator[Regime]:
    import tensorflow as tf

    v1 = tf.compat.v1

    def scores(images: Any, weights: dict[str, Any]) -> Any:
        features = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(images, weights["filters"], 1, "VALID")), [1, 2])
        return tf.matmul(features, weights["matrix"]) + weights["bias"]

    class Graph:
        def __init__(self) -> None:
            with tf.Graph().as_default():
                self.images = v1.placeholder(tf.float32, IMAGES.shape)
                weights = {name: v1.get_variable(name, initializer=value) for name, value in WEIGHTS.items()}
                self.scores = scores(self.images, weights)
                self.gradients = dict(zip(WEIGHTS, tf.gradients(self.scores, list(weights.values())), strict=True))
                self.session = v1.Session()
                self.session.run(v1.global_variables_initializer())

        def run(self) -> Any:
            return self.session.run(self.scores, {self.images: IMAGES})

        def step(self) -> dict[str, Any]:
            return self.session.run(self.gradients | {"scores": self.scores}, {self.images: IMAGES})

    class Eager:
        def __init__(self) -> None:
            self.weights = {name: tf.Variable(value, name=name) for name, value in WEIGHTS.items()}
            self.images = tf.constant(IMAGES)

        def run(self) -> Any:
            return self.scores(self.images).numpy()

        def step(self) -> dict[str, Any]:
            found = self.gradients(self.images)
            return {name: gradient.numpy() for name, gradient in found.items()}

        def scores(self, images: Any) -> Any:
            return scores(images, self.weights)

        def gradients(self, images: Any) -> Any:
            with tf.GradientTape() as tape:
                result = scores(images, self.weights)
            return tape.gradient(result, self.weights) | {"scores": result}

    class Function(Eager):
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.gradients = tf.function(super().scores), tf.function(super().gradients)

    class OfTensorFlow:
        def __init__(self, mode: str, model: type[Model], edits: bool = True) -> None:
            self.name, self.build = f"tensorflow/2.21/{mode}", model
            self.edits = self.trains = edits
            self.apply = amanda.apply

        def from_nhwc(self, array: Any) -> Any:
            return array

    yield OfTensorFlow("graph", Graph)
    yield OfTensorFlow("function", Function)
    yield OfTensorFlow("eager", Eager, edits=False)
