"""Everything that may differ between minor versions of torch: the undocumented names that we use, and code that depends
on them.

Checked against the versions of torch that versions.py knows; the C++ side is drivers/torch/base/port.h.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import torch
import torch.autograd.variable
import torch.multiprocessing.reductions
import torch.utils.checkpoint
from torch.nn.modules import module as torch_module

from amanda.drivers.torch.private_names import PrivateNames
from amanda.drivers.torch.versions import ADVICE, is_at_least

F = TypeVar("F", bound=Callable[..., Any])


names = PrivateNames("torch", f"which this version of amanda relies on; {ADVICE}")
_get = functools.partial(names.get, "torch")

# Functions that are recognized on the stack by their code objects.
RUN_MODULE = _get("nn.Module.__call__.__code__")  # tracers replace it temporarily
RUN_BACKWARD = _get("autograd.graph._engine_run_backward.__code__")
FUNCTIONAL_CALL = _get("nn.utils.stateless._functional_call.__code__")  # swaps a module's tensors for a call

CHECKPOINT = _get("utils.checkpoint.checkpoint.__wrapped__.__code__")
# The function that runs a checkpointed region, and the generator around one that is not reentrant.
if is_at_least("2.14", torch.__version__):
    _REGION, _AROUND_REGION = "_checkpoint_impl", "_checkpoint_without_reentrant_generator_impl"
else:
    _REGION, _AROUND_REGION = "checkpoint.__wrapped__", "_checkpoint_without_reentrant_generator"
_RUN_REGION = _get(f"utils.checkpoint.{_REGION}.__code__")

# The class and the object that run the engine for Python, and the function that recomputes a checkpointed region that
# is not reentrant.
Variable = _get("autograd.variable.Variable")
engine = _get("autograd.variable.Variable._execution_engine")
recompute = _get("utils.checkpoint._run_fn_with_dynamo_disabled")

# The backward pass that this thread runs; -1 outside of one.
graph_task_id = _get("_C._current_graph_task_id")

# The base class whose `apply` is called by that of every torch.autograd.Function. From 2.14 on, Function has one of its
# own, which is not written in Python.
FunctionBase = _get("autograd.function._SingleLevelFunction")
functorch_is_active = _get("_C._are_functorch_transforms_active")
# torch.cond and similar operators: their class, and all instances.
HigherOrderOperator = _get("_ops.HigherOrderOperator")
higher_order_operators = _get("_ops._higher_order_ops")

# The module that runs a torch.fx graph as code, and how the name of such code's file begins. It has the number of the
# node of each line of the function, and the line before the function.
GraphModule = _get("fx.GraphModule")
GRAPH_FILE = "<eval_with_key>"
_NODES_OF_LINES, _LINES_BEFORE = "_lineno_map", "_prologue_start"

# Returns the program's (pack, unpack) that are in use, or None if there are none.
saved_tensor_hooks = _get("_C._autograd._top_saved_tensors_default_hooks")
# The wrapper of Python methods of torch.Tensor that turn a TypeError into NotImplemented.
ANSWERS_NOT_IMPLEMENTED = _get("Tensor.__rsub__.__code__")
TensorBase = _get("_C.TensorBase")
# Sets the compiler of this thread's frames, and returns the previous one.
set_eval_frame = _get("_C._dynamo.eval_frame.set_eval_frame")
_set_strategy = _get("_C._dynamo.eval_frame.set_code_exec_strategy")
_Strategy = _get("_C._dynamo.eval_frame._FrameExecStrategy")
_Frames = _get("_C._dynamo.eval_frame._FrameAction")

# set_versions((tensor,), (number,)): as of autograd's check for writes to what it has saved.
set_versions = _get("_C._autograd._unsafe_set_version_counter")

parse_dispatch_key = _get("_C._parse_dispatch_key")  # by its name
parse_schema = _get("_C.parse_schema")
is_legacy_batched = _get("_C._functorch.is_legacy_batchedtensor")  # of the vmap before torch.func's
get_unwrapped = _get("_C._functorch.get_unwrapped")  # what a wrapper of torch.func wraps
functorch_stack = _get("_C._functorch.get_interpreter_stack")  # of transformations; None if there are none
FUNCTIONALIZE = _get("_C._functorch.TransformType.Functionalize")
WithoutFunctorch = _get("_C._DisableFuncTorch")  # a context: no transformation of torch.func
functorch_level = _get("_C._functorch.maybe_current_level")  # of vmap, grad, ...; None outside of them
# A context, in which those of torch.func do not apply.
outside_transformations = _get("_functorch.pyfunctorch.temporarily_clear_interpreter_stack")
get_tracing_state = _get("_C._get_tracing_state")  # of torch.jit.trace; None if no trace is made
set_tracing_state = _get("_C._set_tracing_state")
WithoutTorchFunction = _get("_C.DisableTorchFunctionSubclass")  # a context: no tensor's own __torch_function__
WithoutTorchFunctions = _get("_C.DisableTorchFunction")  # a context: nor that of any mode

StorageWeakRef = _get("multiprocessing.reductions.StorageWeakRef")

# All operators that are registered, as "aten::add.Tensor".
registered_operators = _get("_C._dispatch_get_all_op_names")
OpOverload = _get("_ops.OpOverload")
OpOverloadPacket = _get("_ops.OpOverloadPacket")

# The number that this thread's next node of the backward graph gets.
next_sequence_number = _get("_C._autograd._get_sequence_nr")
# How a view was made, as far as it may not be written to.
creation_of_view = _get("_C._autograd._get_creation_meta")
current_node = _get("_C._current_autograd_node")  # the node of the backward graph that this thread runs
WeakTensorRef = _get("_C._WeakTensorRef")
is_functional = _get("_is_functional_tensor")  # True for a wrapper of torch.func.functionalize
is_functorch_wrapper = _get("_C._functorch.is_functorch_wrapped_tensor")
set_forward_mode = _get("autograd.forward_ad._set_fwd_grad_enabled")  # a context
_get("autograd.forward_ad._current_level")
disabled_torch_function = _get("_C._disabled_torch_function_impl")  # a __torch_function__ that does nothing
make_wrapper = _get("Tensor._make_wrapper_subclass")
TensorBase = _get("_C.TensorBase")  # has the attributes of tensors as no subclass overrides them
tree_leaves = _get("utils._pytree.tree_leaves")
tree_map_only = _get("utils._pytree.tree_map_only")
tree_unflatten = _get("utils._pytree.tree_unflatten")

# Attributes that the driver and tools name where they have the objects.
names.attributes("torch", "nn.Module", "_apply", "_buffers", "_modules", "_parameters")
names.attributes("torch", "_C.TensorBase", "_base", "_cdata", "_values", "_version")
names.attributes("torch", "UntypedStorage", "_cdata")
names.attributes("torch", "_ops.OpOverload", "_schema")
names.attributes("torch", "autograd.graph.Node", "_input_metadata", "_sequence_nr")
# Variables that checkpointed_regions() reads.
names.variables("torch", f"utils.checkpoint.{_REGION}", "gen")
names.variables("torch", f"utils.checkpoint.{_AROUND_REGION}", "new_frame")
names.variables("torch", "utils.checkpoint._checkpoint_hook.__init__", "unpack_hook", "frame", "gid")
names.variables("torch", "utils.checkpoint.CheckpointFunction.forward", "ctx")
names.variables("torch", "utils.checkpoint.CheckpointFunction.backward", "ctx")

names.check()


def differentiates_forward() -> bool:
    """True if forward-mode differentiation runs in this process."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


def binary_operators() -> list[Any]:
    """The methods of tensors that may turn a TypeError into NotImplemented, as descriptors or code objects."""
    operators = ["eq", "ne", "lt", "le", "gt", "ge"]
    for name in ("add", "sub", "mul", "matmul", "div", "truediv", "floordiv", "mod", "pow"):
        operators += [name, f"r{name}", f"i{name}"]
    for name in ("lshift", "rshift", "and", "or", "xor"):
        operators += [name, f"r{name}", f"i{name}"]
    methods = (getattr(TensorBase, f"__{name}__", None) for name in operators)
    return [*filter(None, methods), ANSWERS_NOT_IMPLEMENTED]


def spare(higher_order_operator: Any, key: Any) -> None:
    """Prevents the operator from looking up a kernel of this dispatch key."""
    keys = higher_order_operator.non_fallthrough_keys
    higher_order_operator.non_fallthrough_keys = keys.remove(key)


# ---- torch.compile ----------------------------------------------------------------------------------------------------

DYNAMO = "torch._dynamo"
EVAL_FRAME = f"{DYNAMO}.eval_frame"
_RESUMING = f"{DYNAMO}.resume_execution"  # it imports torch._dynamo.utils
_COMPILED_AUTOGRAD = f"{DYNAMO}.compiled_autograd"
ENTER_EXIT_HOOKS = "enter_exit_hooks"  # of a compiled function: what it calls around itself
# They can only run compiled.
COMPILES_TO_RUN = ("torch._higher_order_ops.", "torch.nn.attention.")
COMPILED_FUNCTION = "compile_wrapper"  # the function that torch.compile returns
_RESUMES = "torch_dynamo_resume_in_"  # begins the name of what follows a graph break
FUNCTION = "fn"  # and its variable that holds the compiled function


def eval_frame() -> Any:
    """The module that runs compiled functions. None if it is not imported yet; its import takes seconds.

    `_TorchDynamoContext` is the class of the wrapper of a compiled function. `_callback_from_stance` turns the wrapper's
    callback into the one that runs; None runs the function's own code.
    """
    if not _is_imported(EVAL_FRAME):
        return None
    _check_compiler()
    return sys.modules[EVAL_FRAME]


def _is_imported(name: str) -> bool:
    """False, too, while the import is under way. To wait for its end could be a deadlock: its thread may wait for us."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


@functools.cache
def _check_compiler() -> None:
    """Raises an ImportError if torch._dynamo lacks what is used below."""
    names.get(EVAL_FRAME, "_callback_from_stance")
    names.get(EVAL_FRAME, "_stance.stance")
    names.attributes(EVAL_FRAME, "_TorchDynamoContext", ENTER_EXIT_HOOKS)
    names.variables(EVAL_FRAME, "_TorchDynamoContext.__call__", COMPILED_FUNCTION, FUNCTION)
    names.attributes(EVAL_FRAME, "OptimizedModule", "_orig_mod")
    if _is_imported(_RESUMING):  # with torch._dynamo
        names.get(f"{DYNAMO}.utils", "orig_code_map")
        names.get(_RESUMING, "ContinueExecutionCache.generated_code_metadata")
    if _is_imported(_COMPILED_AUTOGRAD):
        names.get(_COMPILED_AUTOGRAD, "compiled_autograd_enabled")
    names.check()


def is_resumed(code: CodeType) -> bool:
    """True if it is the code of what follows a graph break in a function."""
    return code.co_name.startswith(_RESUMES)


def resumed_code(code: CodeType) -> CodeType | None:
    """The code of the function that this code continues after a graph break; None if it is no such code."""
    if not is_resumed(code):
        return None
    transformed = sys.modules[f"{DYNAMO}.utils"].orig_code_map
    known = sys.modules[_RESUMING].ContinueExecutionCache.generated_code_metadata.get(transformed.get(code, code))
    return None if known is None else known.code


def compilers_wrapper() -> type | None:
    """The class of torch.compile's wrappers around modules; None if there can't be any."""
    frames = sys.modules.get(EVAL_FRAME)
    return getattr(frames, "OptimizedModule", None) if frames else None


def without_compiler(module: Any) -> Any:
    """The module inside a wrapper of torch.compile; any other module is returned itself."""
    cls = compilers_wrapper()
    while cls is not None and issubclass(type(module), cls):
        module = module.__dict__["_modules"]["_orig_mod"]
    return module


def compiles_autograd() -> bool:
    """True if backward passes run in compiled autograd."""
    state = sys.modules.get(_COMPILED_AUTOGRAD)
    return state is not None and bool(state.compiled_autograd_enabled)


def runs_eagerly() -> bool:
    """True if torch.compiler.set_stance lets compiled functions run eagerly here."""
    return bool(eval_frame()._stance.stance == "force_eager")


def satisfy_fullgraph() -> None:
    """From torch 2.12 on, a function with fullgraph=True requires that a frame was compiled: increments that count."""
    count = getattr(eval_frame(), "set_fullgraph_compiled_frame_count", None)
    if count is not None and count(-1) >= 0:  # the count exists; and the increment has an effect only if it is 0
        count(1)


def leave_untraced(function: Any) -> None:
    """Marks a function as torch.compiler.disable does, without importing torch._dynamo."""
    function._torchdynamo_disable = True


def leave_uncompiled(function: F) -> F:
    """Makes Dynamo run the function's frames as they are, and compile its callees as it would without the function. It
    is for replacements of a function that is no frame, or that Dynamo leaves alone. Returns the function."""
    return _left_uncompiled(function, _Frames.DEFAULT)


def leave_all_uncompiled(function: F) -> F:
    """As leave_uncompiled(), with what the function calls: none of it is the program's."""
    return _left_uncompiled(function, _Frames.SKIP)


def _left_uncompiled(function: F, callees: Any) -> F:
    code: Any = function.__code__
    _set_strategy(code, _Strategy(_Frames.SKIP, callees))
    return function


# ---- torch.nn -----------------------------------------------------------------------------------------------------------

_WITH_KEYWORDS = _get("nn.modules.module._global_forward_hooks_with_kwargs")


def after_all_modules(hook: Callable[[Any, Any, dict[str, Any], Any], None]) -> Callable[[], None]:
    """Calls `hook(module, arguments, keywords, result)` after each call of a module, without keywords and with None as the
    result where the call raised. Returns a function that ends this."""

    def after(module: Any, arguments: Any, *rest: Any) -> None:
        keywords, result = rest if len(rest) > 1 else ({}, rest[0])  # PyTorch gives no keywords of a call that raised
        hook(module, arguments, keywords, result)

    handle = torch_module.register_module_forward_hook(after, with_kwargs=True, always_call=True)

    def end() -> None:
        handle.remove()
        _WITH_KEYWORDS.pop(handle.id, None)  # PyTorch leaves it, and would warn where a module is compiled

    return end


# ---- torch.fx --------------------------------------------------------------------------------------------------------


def node_at(module: Any, code: CodeType, line: int) -> int | None:
    """The number of the node, in the graph of a module, whose code is at this line; None if it is not known."""
    if not isinstance(module, GraphModule) or getattr(type(module).forward, "__code__", None) is not code:
        return None
    nodes, before = (module.__dict__.get(name) for name in (_NODES_OF_LINES, _LINES_BEFORE))
    return nodes.get(line - before) if nodes and before is not None else None


# ---- torch.utils.checkpoint -------------------------------------------------------------------------------------------


def checkpointed_regions() -> list[tuple[object, int | None]]:
    """The checkpointed regions that this thread runs, outermost first. The first item is an object that stands for the
    region in its first run and in recomputations. The second is the number of the backward pass that recomputes it, or
    None in the first run."""
    found: list[tuple[object, int | None]] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.utils.checkpoint.__file__:
            if code is _RUN_REGION and "gen" in frame.f_locals:
                found.append((frame.f_locals["gen"].gi_frame.f_locals["new_frame"], None))
            elif code.co_qualname == "_checkpoint_hook.__init__.<locals>.unpack_hook":
                found.append((frame.f_locals["frame"], frame.f_locals["gid"]))
            elif code.co_qualname == "CheckpointFunction.forward":
                found.append((frame.f_locals["ctx"], None))
            elif code.co_qualname == "CheckpointFunction.backward":
                found.append((frame.f_locals["ctx"], graph_task_id()))
        frame = frame.f_back  # type: ignore[assignment]
    return found[::-1]


def running_leaf() -> Any:
    """The leaf of the AccumulateGrad node that runs on this thread; None if no such node runs."""
    return getattr(current_node(), "variable", None)
