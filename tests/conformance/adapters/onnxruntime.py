"""ONNX Runtime's sessions. They compute no gradients."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import amanda
from adapter import Capabilities, NotInstalled
from description import If, Nested, Op, Program

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    raise NotInstalled(str(error)) from error

OPS = {
    "mul": "Mul",
    "add": "Add",
    "sub": "Sub",
    "neg": "Neg",
    "relu": "Relu",
    "matmul": "MatMul",
    "sum": "ReduceSum",
    "flatten": "Flatten",
}
FLOAT, INT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def array(value: Nested) -> Any:
    return np.asarray(value, np.float32)


def info(name: str, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, None if kind == FLOAT else [])


class Graph:
    """The nodes of a program, or of a body: its own values have names of their own in the whole model."""

    def __init__(self, program: Program, prefix: str = "", path: str = "") -> None:
        self.nodes: list[Any] = []
        self.prefix = prefix
        self.path = path  # of its operators: "loop/"
        self.names = {name: prefix + name for name in program.inputs}
        self.program = program

    def built(self) -> Graph:
        for step in self.program.steps:
            given = [self.names[name] for name in step.inputs]
            made = self.names[step.name] = self.prefix + step.name
            if isinstance(step, Op):
                options = {"axis": 0} if step.kind == "flatten" else {}
                self.add(OPS[step.kind], given, made, f"{self.path}{step.name}/{OPS[step.kind]}", **options)
            elif isinstance(step, If):
                self.add_if(step, made)
            else:
                self.add_loop(step, given, made)
        return self

    def add_if(self, step: If, made: str) -> None:
        self.add("Cast", [self.names[step.condition]], f"{made}.bool", to=BOOL)
        self.add("Squeeze", [f"{made}.bool"], f"{made}.condition")
        path = f"{self.path}{step.name}/"
        bodies = [Graph(body, f"{made}.{i}.", path) for i, body in enumerate((step.taken, step.other))]
        for body in bodies:
            body.names = dict(zip(body.program.inputs, [self.names[name] for name in step.inputs], strict=True))
        taken, other = (body.built().proto() for body in bodies)
        self.add("If", [f"{made}.condition"], made, f"{path}If", then_branch=taken, else_branch=other)

    def add_loop(self, step: Any, given: list[str], made: str) -> None:
        self.constant(f"{made}.times", np.asarray(step.times, np.int64))
        body = Graph(step.body, f"{made}.0.", f"{self.path}{step.name}/").built()
        body.add("Identity", [f"{made}.0.on"], f"{made}.0.goes_on")
        inputs = [info(f"{made}.0.i", INT), info(f"{made}.0.on", BOOL), *map(info, body.prefixed(step.body.inputs))]
        results = [body.names[name] for name in step.body.outputs]
        # An output of a body needs a node of the body, also where the loop carries a value on unchanged.
        for i, name in enumerate(results):
            body.add("Identity", [name], f"{made}.0.out{i}")
        outputs = [info(f"{made}.0.goes_on", BOOL), *(info(f"{made}.0.out{i}") for i in range(len(results)))]
        graph = onnx.helper.make_graph(body.nodes, f"{made}.body", inputs, outputs)
        others = [f"{made}.{i}" for i in range(1, len(given))]
        node = onnx.helper.make_node("Loop", [f"{made}.times", "", *given], [made, *others], body=graph)
        self.nodes.append(node)

    def prefixed(self, names: Any) -> list[str]:
        return [self.prefix + name for name in names]

    def constant(self, name: str, value: Any) -> None:
        self.nodes.append(onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value)))

    def add(self, op: str, inputs: list[str], output: str, name: str = "", **attributes: Any) -> None:
        self.nodes.append(onnx.helper.make_node(op, inputs, [output], name, **attributes))

    def proto(self, inputs: Any = (), initializers: Any = ()) -> Any:
        outputs = [info(self.names[name]) for name in self.program.outputs]
        return onnx.helper.make_graph(self.nodes, "program", inputs, outputs, initializers)


class Model:
    """A session of the bytes of a model."""

    def __init__(self, program: Program, beside: Any = None) -> None:
        self.program = program
        graph = Graph(program)
        graph.names |= {name: name for name in program.parameters}
        weights = [onnx.numpy_helper.from_array(array(value), name) for name, value in program.parameters.items()]
        proto = graph.built().proto([info(name) for name in program.inputs], weights)
        model = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        self.session = onnxruntime.InferenceSession(model.SerializeToString())

    def run(self, *inputs: Nested) -> list[Nested]:
        feeds = dict(zip(self.program.inputs, map(array, inputs), strict=True))
        return [each.tolist() for each in self.session.run(None, feeds)]

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        return self.run(*inputs), {}

    def saved(self) -> bytes:
        found: bytes = self.session._model_bytes
        return found

    def exported(self) -> str:
        """The graph that ONNX Runtime makes of it."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory() as folder:
            options.optimized_model_filepath = str(Path(folder, "model.onnx"))
            onnxruntime.InferenceSession(self.saved(), options)
            return str(onnx.load(options.optimized_model_filepath))

    def builds(self) -> int:
        known = self.session.__dict__.get("_amanda_program")
        return known[1].cache.info().builds if known else 0


class OnnxRuntime:
    name = f"onnxruntime/{'.'.join(onnxruntime.__version__.split('.')[:2])}/graph"
    capabilities = Capabilities(backward="none", symbolic=True, both_sides=True, has_views=False)
    same_ids_as = None
    namespace = "onnx"
    ops = OPS
    backward_ops: dict[str, set[str]] = {}
    leaf_ops: set[str] = set()

    apply = staticmethod(amanda.apply)
    build = staticmethod(Model)

    @staticmethod
    def nested(value: Any) -> Nested:
        found: Nested = value.tolist()
        return found

    @staticmethod
    def times(value: Any, factors: list[float]) -> Any:
        return value * array(factors)


ADAPTER = OnnxRuntime()
