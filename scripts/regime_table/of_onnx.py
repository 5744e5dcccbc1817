"""A program with a session of ONNX Runtime: a convolution, attention and products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from regime_table.program import Program, Regime

NODES = [
    helper.make_node("Conv", ["x", "w1"], ["h1"], "conv/Conv"),
    helper.make_node("Relu", ["h1"], ["h2"], "relu/Relu"),
    helper.make_node("MatMul", ["h2", "w2"], ["h3"], "linear/MatMul"),
    helper.make_node("Softmax", ["h3"], ["h4"], "softmax/Softmax"),
    helper.make_node("MatMul", ["h4", "h3"], ["y"], "attention/MatMul"),
]
X = np.ones((1, 2, 4, 4), np.float32)


@contextlib.contextmanager
def _session(network: str) -> Iterator[Program]:
    random = np.random.default_rng(0)
    shapes = {"w1": (2, 2, 1, 1), "w2": (4, 4)}
    graph = helper.make_graph(
        NODES,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(random.normal(size=each).astype(np.float32), name) for name, each in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    # Above, what a convolution becomes depends on the processor.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    yield Program(session.run, lambda x: session.run(None, {"x": x}), X, lambda result: None)


REGIMES = {"ONNX Runtime": Regime(_session)}
