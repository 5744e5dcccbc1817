"""Small ONNX models, and ONNX Runtime's sessions of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import amanda
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

drawn = np.random.default_rng(0)
WEIGHT, BIAS = drawn.standard_normal((8, 8)).astype(np.float32), drawn.standard_normal(8).astype(np.float32)
X = drawn.standard_normal((3, 8)).astype(np.float32)
NODES = (
    helper.make_node("MatMul", ["x", "W"], ["m"], "/fc/MatMul"),
    helper.make_node("Add", ["m", "b"], ["a"], "/fc/Add"),
    helper.make_node("Relu", ["a"], ["r"], "/act/Relu"),
    helper.make_node("Concat", ["r", "a"], ["y"], "/cat/Concat", axis=1),
)


def model(
    nodes: Iterable[Any] = NODES,
    *,
    inputs: dict[str, Any] | None = None,
    outputs: Iterable[str] = ("y",),
    constants: dict[str, Any] | None = None,
    opset: int = 17,
) -> Any:
    """A model of these nodes. `inputs`: their element types."""
    kinds = {"x": TensorProto.FLOAT} if inputs is None else inputs
    arrays = {"W": WEIGHT, "b": BIAS} if constants is None else constants
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def session(source: Any = None, level: str = "ALL", **options: Any) -> Any:
    """A session of a model, of its path or of its bytes."""
    given = onnxruntime.SessionOptions()
    name = "ORT_DISABLE_ALL" if level == "DISABLED" else f"ORT_ENABLE_{level}"
    given.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, name)
    for key, value in options.items():
        setattr(given, key, value)
    source = model() if source is None else source
    return onnxruntime.InferenceSession(
        source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source), given
    )


def bits(results: Iterable[Any]) -> list[Any]:
    """Their dtypes, shapes and bytes."""
    return [bits(one) if isinstance(one, list) else (str(one.dtype), one.shape, one.tobytes()) for one in results]


class Every(amanda.Tool):
    """A routine at every operator: "look", "before", "after", "replace"; the last three give back what they got."""

    def __init__(self, regime: str = "look") -> None:
        super().__init__()
        self.regime = regime
        self.values = 0
        self.places: dict[str, tuple[str, str]] = {}
        self.add_inst_for_op(self.analyze)

    def analyze(self, context: amanda.OpContext) -> None:
        if not context.namespace.startswith("onnxruntime/"):
            return  # of PyTorch, as `tensor.numpy()`
        made = next(one for one in flat(context.outputs) if one is not None)
        self.places[made.name] = (context.module_path, context.source or "")
        schedule: dict[str, Callable[[], object]] = {
            "look": lambda: (context.insert_before_op(self.look), context.insert_after_op(self.look)),
            "before": lambda: context.insert_before_op(self.give_back),
            "after": lambda: context.insert_after_op(self.give_back),
            "replace": lambda: context.replace_op(self.run, op=context.op),
        }
        schedule[self.regime]()

    def look(self, *values: Any) -> None:
        self.values += sum(isinstance(one, np.ndarray) for one in flat(values))

    def give_back(self, *values: Any) -> Any:
        self.look(*values)
        return values

    def run(self, *values: Any, op: Any) -> Any:
        self.look(*values)
        return op(*values)


REGIMES = ("look", "before", "after", "replace")


def flat(values: Iterable[Any]) -> list[Any]:
    return [one for value in values for one in (value if isinstance(value, list | tuple) else (value,))]
