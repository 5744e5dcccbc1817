"""Everything that may differ between minor versions of TensorFlow: the undocumented names that we use. No other file
names them.

Checked against TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from amanda.drivers.tensorflow.version import VERSION

_missing: list[str] = []


def _get(module: str, name: str) -> Any:
    try:
        return operator.attrgetter(name)(importlib.import_module(f"tensorflow.{module}"))
    except (ImportError, AttributeError):
        _missing.append(f"tensorflow.{module}.{name}")
        return None  # all missing names are reported together


class Patchable(NamedTuple):
    """An attribute of TensorFlow that we replace: permanently at load, or while scopes are open."""

    owner: Any
    name: str
    original: Callable[..., Any]

    def replace(self, replacement: Any) -> None:
        setattr(self.owner, self.name, replacement)

    def restore(self) -> None:
        setattr(self.owner, self.name, self.original)


def _patchable(module: str, name: str) -> Patchable:
    owner, _, attribute = name.rpartition(".")
    original = _get(module, name)
    if original is None:
        return Patchable(None, name, lambda: None)
    found = importlib.import_module(f"tensorflow.{module}")
    return Patchable(operator.attrgetter(owner)(found) if owner else found, attribute, original)


def _check() -> None:
    """Raises an ImportError if something is missing."""
    if _missing:
        raise ImportError(
            f"[tensorflow] TensorFlow {tf.__version__} has no {', '.join(_missing)}, which this version of amanda relies "
            f"on; install another build of TensorFlow {VERSION}, or a newer amanda"
        )


# Graphs.
Operation = _get("python.framework.ops", "Operation")
FuncGraph = _get("python.framework.func_graph", "FuncGraph")
find_op_def = _get("python.framework.op_def_registry", "get")  # by an operator's name; None for a function
gradient_function = _patchable("python.framework.ops", "get_gradient_function")
_gradient_registry = _get("python.framework.ops", "gradient_registry")
as_graph_def = _patchable("python.framework.ops", "Graph._as_graph_def")
_create_c_op = _get("python.framework.ops", "_create_c_op")
NodeDef = _get("core.framework.node_def_pb2", "NodeDef")

# Sessions.
run_session = _patchable("python.client.session", "BaseSession._call_tf_sessionrun")  # run() and all make_callable() do
run_feeds = _patchable("python.client.session", "BaseSession._do_run")  # what run() calls, with operators and tensors
run_part = _patchable("python.client.session", "BaseSession._call_tf_sessionprun")
make_callable = _patchable("python.client.session", "BaseSession._make_callable_from_options")  # tf_keras does
run_callable = _patchable("python.client.session", "BaseSession._Callable.__call__")

# Eager mode.
_execute = _get("python.eager.execute", "execute")
_context = _get("python.eager.context", "context")
_eager_mode = _get("python.eager.context", "eager_mode")

# Functions and tapes.
make_function_context = _patchable("python.eager.polymorphic_function.function_context", "make_function_context")
FunctionContext = _get("core.function.polymorphism.function_cache", "FunctionContext")
graph_transforms = _get("python.eager.polymorphic_function.transform", "FUNC_GRAPH_TRANSFORMS")
make_forward_backward = _patchable(
    "python.eager.polymorphic_function.concrete_function", "_create_forward_backward_with_graph"
)
in_save_context = _get("python.saved_model.save_context", "in_save_context")
record_gradient = _patchable("python.eager.execute", "record_gradient")
record_gradient_of_backprop = _patchable("python.eager.backprop", "record_gradient")
gradient_of_tape = _patchable("python.eager.backprop", "GradientTape.gradient")
tape_gradient = _get("python.eager.backprop", "_gradient_function")
register_tape_gradient = _get("python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")
stop_recording = _get("python.eager.record", "stop_recording")
define_function = _patchable("python.eager.polymorphic_function.tracing_compilation", "_maybe_define_function")
create_function = _patchable("python.eager.polymorphic_function.tracing_compilation", "_create_concrete_function")
initialize_function = _patchable("python.eager.polymorphic_function.polymorphic_function", "Function._initialize")
initialize_variables = _patchable(
    "python.eager.polymorphic_function.polymorphic_function", "Function._initialize_uninitialized_variables"
)
get_concrete_function = _patchable(
    "python.eager.polymorphic_function.polymorphic_function", "Function.get_concrete_function"
)
Function = _get("python.eager.polymorphic_function.polymorphic_function", "Function")
call_function = _patchable("python.eager.polymorphic_function.polymorphic_function", "Function.__call__")
call_concrete = _patchable("python.eager.polymorphic_function.concrete_function", "ConcreteFunction.__call__")
call_concrete_function = _patchable(
    "python.eager.polymorphic_function.concrete_function", "ConcreteFunction._call_flat"
)
build_gradients = _patchable("python.ops.gradients_util", "_GradientsHelper")
queue_of_gradients = _patchable("python.ops.gradients_util", "collections")
register_vectorized = _get("python.ops.parallel_for.pfor", "RegisterPFor")
concrete_function_callbacks = _get("python.eager.polymorphic_function.transform", "CONCRETE_FUNCTION_CALLBACKS")
_function_def_to_graph = _get("python.framework.function_def_to_graph", "function_def_to_graph")
_from_func_graph = _get("python.eager.polymorphic_function.atomic_function", "from_func_graph")
_FUNCTION_ATTRIBUTES = _get("python.eager.polymorphic_function.attributes", "MONOMORPHIC_FUNCTION_ALLOWLIST")
# They say which functions belong together, and copies do not.
_LINKS = frozenset({"forward_function_name", "backward_function_name", "api_implements", "_implements"})
AtomicFunction = _get("python.eager.polymorphic_function.atomic_function", "AtomicFunction")
_ConcreteFunction = _get("python.eager.polymorphic_function.concrete_function", "ConcreteFunction")
_call_callbacks = _get("python.eager.polymorphic_function.transform", "call_concrete_function_callbacks")
DATASET_FUNCTION = _get("python.eager.polymorphic_function.attributes", "TF_DATA_FUNCTION")
XLA_COMPILE = _get("python.eager.polymorphic_function.attributes", "XLA_COMPILE")
in_xla = _get("python.ops.control_flow_util", "GraphOrParentsInXlaContext")
eager_outside_functions = _get("python.framework.ops", "executing_eagerly_outside_functions")
CONTROL_FLOW_WRAPPER = "cflow_gradient_wrapper"  # the function that a loop or conditional may be put into, for tapes
_BODIES = tuple(
    _get("python.ops.control_flow_v2_func_graphs", name)
    for name in ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")
)
EagerTensor = _get("python.framework.ops", "EagerTensor")
SymbolicTensor = _get("python.framework.ops", "SymbolicTensor")

# Eager operators.
execute = _patchable("python.eager.execute", "execute")
# It is asked as graphs are built.
invokes_callbacks = _patchable("python.framework.op_callbacks", "should_invoke_op_callbacks")
execute_with_callbacks = _get("python.eager.execute", "execute_with_callbacks")
imperative_grad = _patchable("python.eager.imperative_grad", "imperative_grad")  # all of tape.gradient
stop_recording = _get("python.eager.record", "stop_recording")
no_tape_records = _get("python.pywrap_tfe", "TFE_Py_TapeSetIsEmpty")
_clear_kernels = _get("python.pywrap_tfe", "TFE_ContextClearCaches")

# Calls that are not supported.
run_replicas = _patchable("python.distribute.distribute_lib", "StrategyBase.run")
_default_strategies = tuple(
    _get("python.distribute.distribute_lib", f"_DefaultDistributionStrategy{version}") for version in ("", "V1")
)

_op_list = _get("python.client.pywrap_tf_session", "TF_GetAllOpList")
_buffer = _get("python.client.pywrap_tf_session", "TF_GetBuffer")
_delete_buffer = _get("python.client.pywrap_tf_session", "TF_DeleteBuffer")
_OpList = _get("core.framework.op_def_pb2", "OpList")

_check()


def original_op(op: Any) -> Any:
    """The forward operator whose gradient function created this one; None if it is not known, or there is none."""
    return op._original_op


def creation(op: Any) -> int:
    """A number that grows with each operator that its graph gets."""
    return int(op._id)


def is_reference(dtype: tf.DType) -> bool:
    """True if it is the type of a tensor that is a v1 variable itself."""
    return bool(dtype._is_ref_dtype)


# ---- eager operators ---------------------------------------------------------------------------------------------------


def add_op_callback(callback: Callable[..., object]) -> None:
    """Adds a callback to this thread. `execute_with_callbacks` must be in place. (The public function also puts it in
    place, and removes it when this thread has no callback any more, though other threads may have some.)"""
    _context().add_op_callback(callback)


def remove_op_callback(callback: Callable[..., object]) -> None:
    """Removes the callback, if the program has not removed all callbacks of its thread."""
    if callback in _context().op_callbacks:
        _context().remove_op_callback(callback)


def op_callbacks() -> list[Any]:
    """The callbacks of this thread."""
    return list(_context().op_callbacks)


def name_scope() -> str:
    """The name scope of eager operators: "encoder/dense/"."""
    return str(_context().scope_name)


def keras_name_scope() -> Any:
    """The class with which Keras opens a scope for a layer. None if the program has not imported Keras, or if this Keras
    has no such class."""
    return getattr(sys.modules.get("keras.src.backend.tensorflow.core"), "name_scope", None)


def keras_step() -> Patchable:
    """The method that applies gradients in Keras. Its owner is None if Keras computes with another framework."""
    return _of_keras("apply")


def keras_apply() -> Patchable:
    """The method that this one calls once the optimizer has its variables."""
    return _of_keras("_backend_apply_gradients")


def keras_update() -> Patchable:
    """The method that gets the gradients, clipped and accumulated, and their variables."""
    return _of_keras("_backend_update_step")


def keras_scalings() -> list[Patchable]:
    """The methods that scale a loss: of all optimizers, and of the one that scales by a variable."""
    modules = {"base_optimizer": "BaseOptimizer", "loss_scale_optimizer": "LossScaleOptimizer"}
    loaded = ((sys.modules.get(f"keras.src.optimizers.{module}"), name) for module, name in modules.items())
    owners = [getattr(module, name, None) for module, name in loaded]
    return [
        Patchable(one, "scale_loss", vars(one)["scale_loss"]) for one in owners if "scale_loss" in vars(one or object)
    ]


def keras_unscaling() -> Patchable:
    """The method that divides gradients by a variable, and gives them to another optimizer."""
    owner = getattr(sys.modules.get("keras.src.optimizers.loss_scale_optimizer"), "LossScaleOptimizer", None)
    original = getattr(owner, "apply", None)
    return Patchable(None, "apply", lambda: None) if original is None else Patchable(owner, "apply", original)


def keras_layers() -> list[Any]:
    """All layers of Keras that exist."""
    kind = getattr(sys.modules.get("keras"), "Layer", None)
    return [] if kind is None else [one for one in gc.get_objects() if issubclass(type(one), kind)]


def layers_of(layer: Any) -> list[Any]:
    """A layer or model of Keras, and all layers in it."""
    return list(layer._flatten_layers())


def layers_with_masks() -> dict[str, str]:
    """The names and classes of all layers that leave out masked steps: recurrent ones, pooling and attention. Not those
    with a result for each step, of the steps up to it: padding at the end changes the results of padding alone."""
    layers = getattr(sys.modules.get("keras"), "layers", None)
    names = ("RNN", "Bidirectional", "GlobalAveragePooling1D", "MultiHeadAttention", "Attention", "AdditiveAttention")
    kinds = tuple(getattr(layers, name) for name in names if hasattr(layers, name))
    found = (one for one in keras_layers() if isinstance(one, kinds) and not _is_causal(one))
    return {str(one.name): type(one).__name__ for one in found}


def _is_causal(layer: Any) -> bool:
    is_recurrent = isinstance(layer, sys.modules["keras"].layers.RNN)
    return is_recurrent and layer.return_sequences and not layer.return_state and not layer.go_backwards


def _of_keras(method: str) -> Patchable:
    owner = getattr(sys.modules.get("keras.src.backend.tensorflow.optimizer"), "TFOptimizer", None)
    original = getattr(owner, method, None)
    return Patchable(None, method, lambda: None) if original is None else Patchable(owner, method, original)


def trained_by_keras(owner: Any) -> list[Any] | None:
    """The variables that an optimizer of Keras trains, as far as it knows them. None if it is none."""
    kind = _of_keras("apply").owner
    return list(getattr(owner, "_trainable_variables", ())) if kind is not None and isinstance(owner, kind) else None


def kept_by_keras(optimizer: Any) -> int:
    """How many variables an optimizer has, but for the count of its steps and its learning rate."""
    own = {id(one) for one in (optimizer.iterations, getattr(optimizer, "_learning_rate", None))}
    return sum(id(one) not in own for one in optimizer.variables)


def keras_schedule(optimizer: Any) -> Any:
    """The schedule of an optimizer's learning rate, if its class is Keras' own. None if it has none, or is not of Keras."""
    found = getattr(optimizer, "_learning_rate", None)
    kind = getattr(sys.modules.get("keras.optimizers.schedules"), "LearningRateSchedule", None)
    is_own = kind is not None and isinstance(found, kind) and type(found).__module__.startswith("keras.")
    return found if is_own else None


def keras_rate(optimizer: Any) -> Any:
    """The variable that is an optimizer's learning rate; None if it has a schedule."""
    found = getattr(optimizer, "_learning_rate", None)
    return found if hasattr(found, "numpy") and hasattr(found, "assign") else None


def keras_variable() -> type | None:
    """The class of Keras' variables; None if the program has not imported Keras, or if it computes with another
    framework."""
    return None if _of_keras("apply").owner is None else getattr(sys.modules.get("keras"), "Variable", None)


def is_eager(value: Any) -> bool:
    return isinstance(value, EagerTensor)


def array_of(tensor: Any) -> Any:
    """The values of an eager tensor, without a copy where its memory allows that. A number of a type that Python's buffers
    do not have, such as bfloat16, is a copy."""
    values = tensor._numpy()
    if not isinstance(values, np.ndarray):
        with contextlib.suppress(ValueError):
            return np.asarray(memoryview(tensor))
    return values


def seeds() -> Any:
    """The state from which the seeds of eager random operators are made; None if `tf.random.set_seed` was not
    called."""
    return None if _context()._seed is None else _context()._rng.getstate()


def restore_seeds(state: Any) -> None:
    """Restores the state. Kernels that have a seed continue their own sequence, so they are removed."""
    if state is None or _context()._seed is None or _context()._rng.getstate() == state:
        return
    _context()._rng.setstate(state)
    _clear_kernels(_context()._handle)


# ---- what is not supported ---------------------------------------------------------------------------------------------


def is_default_strategy(strategy: Any) -> bool:
    """True if the strategy runs a function as it is."""
    return isinstance(strategy, _default_strategies)


# ---- names -------------------------------------------------------------------------------------------------------------


def registered_operators() -> frozenset[str]:
    """All operators in TensorFlow's registry, those of libraries included."""
    buffer = _op_list()
    try:
        found = _OpList.FromString(_buffer(buffer))
    finally:
        _delete_buffer(buffer)
    return frozenset(op.name for op in found.op)


# ---- graphs ----------------------------------------------------------------------------------------------------------


def create_node(graph: Any, node_def: Any, inputs: list[Any], control_inputs: list[Any], original: Any) -> Any:
    """An operator as `node_def` says, outside of all scopes that are open: devices, names, loops. Errors of the program
    in it name the operator `original`, too."""
    with graph._mutation_lock():
        op = Operation._from_c_op(_create_c_op(graph, node_def, inputs, control_inputs), graph)
    op._original_op = original
    return op


def set_input(op: Any, index: int, tensor: Any) -> None:
    op._update_input(index, tensor)


def add_control_input(op: Any, before: Any) -> None:
    op._add_control_input(before)


def no_session_extends(graph: Any) -> Any:
    """A context in which no session takes over new operators of the graph."""
    return graph._mutation_lock()


def unfinalize(graph: Any) -> None:
    graph._unsafe_unfinalize()


# ---- sessions --------------------------------------------------------------------------------------------------------


def tensor_of(graph: Any, output: Any) -> Any:
    return graph._get_tensor_by_tf_output(output)


def operation_of(graph: Any, c_op: Any) -> Any:
    return graph._get_operation_by_tf_operation(c_op)


def output_of(tensor: Any) -> Any:
    return tensor._as_tf_output()


def c_op_of(op: Any) -> Any:
    return op._c_op


def extend(session: Any) -> None:
    """Has the session take over what was added to its graph."""
    session._extend_graph()


def is_remote(session: Any) -> bool:
    return bool(session._target)


def session_of(run: Any) -> Any:
    """The session of a callable that was made from options."""
    return run._session


# ---- eager mode ------------------------------------------------------------------------------------------------------


def eagerly() -> Any:
    """A context outside of all graphs that are built."""
    return _eager_mode()


def run_eagerly(name: str, inputs: list[Any], attributes: tuple[Any, ...], count: int) -> list[Any]:
    """Runs an operator. `inputs`: tensors or arrays, or lists of them. `attributes`: names and values in turn."""
    with _eager_mode():
        flat = [tf.constant(value) for value in inputs]
        return list(_execute(name, count, flat, attributes, _context()))


# ---- functions ----------------------------------------------------------------------------------------------------


def set_control_inputs(op: Any, operators: list[Any]) -> None:
    op._remove_all_control_inputs()
    op._add_control_inputs(operators)


def control_users(op: Any) -> list[Any]:
    return list(op._control_outputs)


def is_function(graph: Any) -> bool:
    return isinstance(graph, FuncGraph)


def is_body(graph: Any) -> bool:
    """True if it is the graph of a loop's condition or body, or of a branch."""
    return isinstance(graph, _BODIES)


def is_loop(graph: Any) -> bool:
    """True if it is the graph of a loop's condition or body."""
    return isinstance(graph, _BODIES[1:])


def is_loop_body(graph: Any) -> bool:
    return isinstance(graph, _BODIES[2])


def created_variables(function: Any) -> bool:
    """True if its first trace has created variables."""
    return bool(function._created_variables)


def concrete_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The part of Function.get_concrete_function() that looks for a trace."""
    found = function._get_concrete_function_garbage_collected(*args, **kwargs)
    if found._garbage_collector is not None:
        found._garbage_collector.release()
    return found


def inference_function(function: Any) -> Any:
    """The function that a concrete function runs without gradients."""
    return function._inference_function


def has_no_gradient(op_type: str) -> bool:
    """True for operators that are registered as not differentiable."""
    try:
        return _gradient_registry.lookup(op_type) is None
    except LookupError:
        return False


def graph_of(function: Any) -> Any:
    """The graph that a function was made of; None if it was made of something else, such as a definition that was
    imported."""
    return getattr(function, "_cached_graph", None)


def vectorized(conversion: Any, tensor: Any) -> Any:
    """The vectorized form of a tensor of a loop's body, in the conversion of one of the body's operators."""
    return conversion.pfor._convert_helper(tensor)


def runs_eagerly(function: Any) -> bool:
    return bool(function._bound_context.executing_eagerly())


def function_names(op: Any) -> list[str]:
    """The names of the functions that a node runs."""
    return names_in(op.node_def)


def names_in(node_def: Any) -> list[str]:
    """The names of the functions that a node runs, of its definition."""
    return [name for _, name in functions_in(node_def)]


def functions_in(node_def: Any) -> list[tuple[str, str]]:
    """The functions that a node runs, of its definition: "then_branch" or the like, and the name."""
    return [(part, function.name) for part, function in _functions_in(node_def)]


def _functions_in(node_def: Any) -> list[tuple[str, Any]]:
    found = []
    for part, attribute in sorted(node_def.attr.items()):
        listed = ((f"{part}/{i}", each) for i, each in enumerate(attribute.list.func))
        found += [(part, attribute.func), *listed]
    return [(part, function) for part, function in found if function.name]


def rename_functions(node_def: Any, names: dict[str, str]) -> bool:
    """Has the node of this definition run other functions. True if it ran any of those."""
    renamed = [function for _, function in _functions_in(node_def) if function.name in names]
    for function in renamed:
        function.name = names[function.name]
    return bool(renamed)


def definition_of_function(graph: Any, name: str) -> Any:
    """The FunctionDef of a function that nodes of this graph run; None if there is none."""
    found = find_function(graph, name)
    return None if found is None else found.cached_definition


def graph_of_definition(graph: Any, definition: Any) -> Any:
    """A new graph of a function that nodes of `graph` may run."""
    with graph.as_default():
        found = _function_def_to_graph(definition, propagate_device_spec=True)
    found._output_names = None  # they are names of tensors that taps may replace
    return found


def is_compiled_by_xla(definition: Any) -> bool:
    """For a function's definition."""
    # To read an attribute that is not there would add it, and TensorFlow refuses one without a value.
    return XLA_COMPILE in definition.attr and bool(definition.attr[XLA_COMPILE].b)


def takes_later_values(function: Any) -> bool:
    """True if a concrete function takes values that it asks for when it is called."""
    return bool(function.graph.deferred_external_captures)


def graph_like(graph: Any, definition: Any, functions: Iterable[Any]) -> Any:
    """A new graph of a function, like the graph that it was made of, but for what was changed in the definition.
    `functions`: those that its nodes may run."""
    made = _function_def_to_graph(definition, graph.structured_input_signature, propagate_device_spec=True)
    made.name, made.variables = graph.name, graph.variables
    made._output_names = None  # they are names of tensors that taps may replace
    for function in (*graph._functions.values(), *functions):
        made._add_function_recursive(function)
    return made


def connect_like(function: Any, made: Any) -> None:
    """Gives such a graph the captures and results of a concrete function."""
    graph = function.graph
    inner = {id(old): new for old, new in zip(graph.inputs, made.inputs, strict=True)}
    captures = graph.captures
    made.function_captures.reset_captures(
        [external for external, _ in captures], [inner[id(internal)] for _, internal in captures]
    )
    returned = {id(old): new for old, new in zip(graph.outputs, made.outputs, strict=True)}
    made.structured_outputs = tf.nest.map_structure(
        lambda value: returned.get(id(value), value), graph.structured_outputs, expand_composites=True
    )


def function_like(function: Any, graph: Any, attributes: Any) -> Any:
    """A concrete function of such a graph."""
    made = _ConcreteFunction.from_func_graph(graph, function.function_type, attributes, shared_func_graph=False)
    made._arg_keywords, made._num_positional_args = function._arg_keywords, function._num_positional_args
    _call_callbacks(made)
    return made


def add_function(graph: Any, name: str, body: Any, attributes: Any) -> None:
    """Makes a function of a graph of our own. Nodes of `graph` may then run it."""
    with graph.as_default():
        graph._add_function_recursive(make_function(name, body, attributes))


def make_function(name: str, body: Any, attributes: Any) -> Any:
    """Makes a function of a graph of our own."""
    known = {key: value for key, value in attributes.items() if key in _FUNCTION_ATTRIBUTES and key not in _LINKS}
    return _from_func_graph(name, body, known)


def name_of_function(function: Any) -> str:
    return str(tf.compat.as_str(function.name))


def find_function(graph: Any, name: str) -> Any:
    """A function that nodes of this graph may run, by its name; None if there is none."""
    while graph is not None:
        found = graph._get_function(name)
        if found is not None:
            return found
        graph = getattr(graph, "outer_graph", None)
    return None


def order_of_functions(graph: Any, is_kept: Callable[[str], bool]) -> list[str]:
    """The names of a graph's functions, in the order in which a graph that has those alone is exported. TensorFlow has
    them in a hash table."""
    other = tf.Graph()
    for name, function in graph._functions.items():
        if is_kept(name):
            other._add_function(function)
    definition, _ = as_graph_def.original(other)
    return [function.signature.name for function in definition.library.function]


def cached_contexts(cache: Any) -> list[Any]:
    """The contexts for which a function has traces."""
    return list(cache._dispatch_dict)


def cached_function(cache: Any, function_type: Any, context: Any) -> Any:
    """The trace that a call with this type and context runs; None if there is none."""
    return cache.lookup(function_type, context)


def forget_function(cache: Any, function: Any, context: Any) -> None:
    cache.delete(function.function_type, context)


def forget_context(cache: Any, context: Any) -> None:
    del cache._dispatch_dict[context]
    for key in [key for key in cache._primary if key[0] == context]:
        del cache._primary[key]
