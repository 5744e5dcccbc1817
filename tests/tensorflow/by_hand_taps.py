"""Nodes of the op AmandaTap that are made by hand, without a front: in a graph of version 1, or in a function."""

import amanda
import numpy as np
import tensorflow as tf
from amanda import _core, _tensorflow
from tensorflow.python.framework import op_def_library

tf.load_op_library(_tensorflow.library_path())
shown = [getattr(tf, name) for name in ("float32", "float64", "int32", "int64", "uint8", "bool", "bfloat16", "half")]
_tensorflow.set_dtypes({dtype.as_datatype_enum: (np.dtype(dtype.as_numpy_dtype), dtype.name) for dtype in shown})

BACKEND = _core.GraphBackend("taps/1/graph", backward="operators", keeps_gradients=True, both_sides=True)
ADD = BACKEND.intern("taps", "Add", inputs=["x", "y"], outputs=["z"])
CONCAT = BACKEND.intern("taps", "Concat", inputs=["values", "axis"], outputs=["output"])
SPLIT = BACKEND.intern("taps", "Split", inputs=["axis", "value"], outputs=["output"])
ADD_GRADIENT = BACKEND.intern("taps", "AddGradient")

X, Y = np.float32([[1, 2], [3, 4]]), np.float32([[10, 20], [30, 40]])


class Graph:
    """Graphs of one operator, with its gradient if `backward`, as the core sees them."""

    def __init__(self, type=ADD, inputs=("x", "y"), outputs=("z",), refuse=None, backward=False):
        self.site = _core.OpSite(
            BACKEND, type, 7, inputs, outputs, refuse=refuse, module_path="net.add", source="a.py:1"
        )
        self.sites = [self.site]
        if backward:
            self.sites.append(_core.OpSite(BACKEND, ADD_GRADIENT, 8, ("dz",), ("dx", "dy"), forward=self.site))

    def each_op(self, visitor):
        for site in self.sites:
            visitor.op(site)

    def lower(self, sites):
        return dict(sites)


def tool(analysis, name="tool", **options):
    made = amanda.Tool(name)
    made.add_inst_for_op(analysis, **options)
    return made


def taps(graph, *tools):
    """(scope, artifact): taps by the operator's number."""
    scope = amanda.apply(*tools)
    with scope:
        return scope, _core.instrument(BACKEND.toolset(), BACKEND, graph)


def operator(type=ADD, num_inputs=2, num_outputs=1, **options):
    return _tensorflow.Operator("taps/1/graph", type, 7, num_inputs, num_outputs, module_path="net.add", **options)


def emit(node, args, types):
    """The results of a node AmandaTap with these arguments; its operation if it has none."""
    *_, op, _outputs = op_def_library._apply_op_helper("AmandaTap", args=args, Tout=types, node=node.number)
    return list(op.outputs) if types else op


def run_v1(build, **feeds):
    with tf.Graph().as_default() as graph:
        symbols = {name: tf.constant(value) for name, value in feeds.items()}
        with tf.compat.v1.Session(graph=graph) as session:
            return translated(lambda: session.run(build(**symbols)))


def run_function(build, **feeds):
    function = tf.function(build)
    results = translated(lambda: function(**{name: tf.constant(value) for name, value in feeds.items()}))
    return tf.nest.map_structure(lambda result: result.numpy(), results)


def translated(run):
    _tensorflow.begin_run()
    try:
        return run()
    except tf.errors.OpError as error:
        _tensorflow.raise_error(error.message)
        raise
    finally:
        _tensorflow.end_run()


def before(run, routine, x=X, y=Y, *, results=((0, -1), (1, -1)), inputs=None, scope=None, **options):
    """x + y with a tap before it that returns `results`; None for a result that the tap does not return."""
    _scope, artifact = scope or taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=inputs, **options)))
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1), ("input", 1, -1)], list(results))

    def build(x, y):
        now = {0: x, 1: y}
        made = emit(node, [x, y], [now[position].dtype for position, _ in results])
        if not results:
            with tf.control_dependencies([made]):
                return x + y
        now |= {position: value for (position, _), value in zip(results, made, strict=True)}
        return now[0] + now[1]

    return run(build, x=x, y=y)
