"""The undocumented names of torch's compiler that the driver uses. All are checked when the driver is loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from amanda.drivers.torch.private_names import PrivateNames
from amanda.drivers.torch.versions import ADVICE

names = PrivateNames(
    "compile",
    f"which this version of amanda relies on to instrument compiled functions; {ADVICE}",
)
_get = names.get


class Method(NamedTuple):
    """A method of a class of Dynamo's, which is replaced while frames are compiled."""

    cls: Any
    name: str


def _method(module: str, cls: str, name: str) -> Method:
    return Method(names.own(module, cls, name), name)


# ---- Dynamo's callbacks -------------------------------------------------------------------------------------------------

config = _get("torch._dynamo", "config")
compile_lock = _get("torch._dynamo.convert_frame", "compile_lock")
CatchErrorsWrapper = _get("torch._dynamo.convert_frame", "CatchErrorsWrapper")
catch_errors_wrapper = _get("torch._dynamo.convert_frame", "catch_errors_wrapper")
_Answer = _get("torch._dynamo.types", "ConvertFrameReturn")
_Strategy = _get("torch._C._dynamo.eval_frame", "_FrameExecStrategy")
_SKIP = _get("torch._C._dynamo.eval_frame", "_FrameAction.SKIP")
# From 2.13 on.
_ANSWERS_SAY_WHY = _Answer is not None and "skip_reason" in {field.name for field in dataclasses.fields(_Answer)}
preserve_global_state = _get("torch._dynamo.convert_frame", "preserve_global_state")
innermost_backend = _get("torch._dynamo.eval_frame", "innermost_backend")
lookup_backend = _get("torch._dynamo.backends.registry", "lookup_backend")  # by its name
RestartAnalysis = _get("torch._dynamo.exc", "RestartAnalysis")
SkipFrame = _get("torch._dynamo.exc", "SkipFrame")
_nonrecursively_disabled = _get("torch._dynamo.decorators", "_nonrecursive_disable_wrapper_code")
# The part of Dynamo's cache that compiled functions use. Up to 2.12 there is one part: None.
region = names.find("torch._C._dynamo.eval_frame", "get_eval_frame_isolate_recompiles_id")
HAS_REGIONS = region is not None
if HAS_REGIONS:
    set_region = _get("torch._C._dynamo.eval_frame", "set_eval_frame_isolate_recompiles_id")
    _regions = _get("torch._dynamo.eval_frame", "_next_isolate_recompiles_id")
_num_modes = _get("torch._C", "_len_torch_dispatch_stack")
_active_fake_mode = _get("torch._guards", "active_fake_mode")
metrics = _get("torch._dynamo.utils", "get_metrics_context")
# A context: the program's hooks on saved tensors, as checkpoint() sets them, are not called.
without_saved_tensor_hooks = _get("torch._dynamo.utils", "_disable_saved_tensors_hooks_during_tracing")
INLINED_HOOKS = "saved_tensors_hooks_pack_0"  # in a graph: such hooks, if they are graphs themselves
disable_current_modes = _get("torch.utils._python_dispatch", "_disable_current_modes")


def new_region() -> int:
    return int(next(_regions))


def has_fake_mode() -> bool:
    """True if the program is being traced, on fake tensors of its own."""
    return _num_modes() > 0 and _active_fake_mode() is not None


names.attributes("torch._dynamo.convert_frame", "CatchErrorsWrapper", "_torchdynamo_orig_backend", "hooks")
for _cls in "ConvertFrame", "ConvertFrameAssert":
    names.attributes("torch._dynamo.convert_frame", _cls, "_torchdynamo_orig_backend", "_clone_with_backend")


def is_export(callback: Any) -> bool:
    return bool(getattr(callback._torchdynamo_orig_backend, "_export", False))


def skipped_by_caller() -> Any:
    """Dynamo's answer if @torch._dynamo.disable(recursive=False) has called the frame that is to be compiled; None if
    the frame is to be compiled. Dynamo recognizes this case by the frame that has called its own callback."""
    caller = sys._getframe(2)
    if caller.f_code is not _nonrecursively_disabled:
        return None
    return _not_compiled("tracing is non-recursively disabled for this frame")


def skipped_with_callees(reason: str) -> Any:
    """Dynamo's answer for a frame that runs this time as it is, with the functions that it calls."""
    return _not_compiled(reason, frame_exec_strategy=_Strategy(_SKIP, _SKIP))


def _not_compiled(reason: str, **strategy: Any) -> Any:
    if _ANSWERS_SAY_WHY:
        strategy["skip_reason"] = reason
    return _Answer(apply_to_code=False, **strategy)


# ---- operators and fake tensors --------------------------------------------------------------------------------------

OpOverload = _get("torch._ops", "OpOverload")
parse_schema = _get("torch._C", "parse_schema")
HigherOrderOperator = _get("torch._ops", "HigherOrderOperator")
FakeTensor = _get("torch._subclasses.fake_tensor", "FakeTensor")
FakeTensorMode = _get("torch._subclasses.fake_tensor", "FakeTensorMode")
# The fake mode of a tensor, or of the parts of a wrapper subclass; None if there is none.
fake_mode_of = _get("torch._subclasses.fake_tensor", "maybe_get_fake_mode")
TracingContext = _get("torch._guards", "TracingContext")
enable_python_dispatcher = _get("torch._dispatch.python", "enable_python_dispatcher")
tracing = _get("torch._guards", "tracing")
free_unbacked_symbols = _get("torch.fx.experimental.symbolic_shapes", "free_unbacked_symbols")
TorchDispatchMode = _get("torch.utils._python_dispatch", "TorchDispatchMode")
is_traceable_wrapper_subclass = _get("torch.utils._python_dispatch", "is_traceable_wrapper_subclass")
# A context: no tensor's own __torch_function__, nor that of any mode.
WithoutTorchFunctions = _get("torch._C", "DisableTorchFunction")
# True if an operator of this name takes a number where its schema has a tensor.
takes_numbers_as_tensors = _get("torch._C", "_should_allow_numbers_as_tensors")
functorch_level = _get("torch._C._functorch", "maybe_current_level")
is_functorch_wrapper = _get("torch._C._functorch", "is_functorch_wrapped_tensor")
pop_functorch_level = _get("torch._C._functorch", "pop_dynamic_layer_stack")
set_grad_enabled = _get("torch._C", "_set_grad_enabled")  # what a node calls
DispatchKey = _get("torch._C", "DispatchKey")
parse_dispatch_key = _get("torch._C", "_dispatch_key_parse")  # by its name
BelowAutograd = _get("torch._C", "_AutoDispatchBelowAutograd")  # a context
tree_leaves = _get("torch.utils._pytree", "tree_leaves")
unset_fake_temporarily = _get("torch._subclasses.fake_tensor", "unset_fake_temporarily")
enter_autocast = _get("torch.amp.autocast_mode", "_enter_autocast")
exit_autocast = _get("torch.amp.autocast_mode", "_exit_autocast")

# ---- tracing of routines ---------------------------------------------------------------------------------------------

make_fx = _get("torch.fx.experimental.proxy_tensor", "make_fx")
statically_known_true = _get("torch.fx.experimental.symbolic_shapes", "statically_known_true")

# ---- where the nodes of Dynamo's graphs come from -----------------------------------------------------------------------

_VARIABLES = "torch._dynamo.variables"
CREATE_NODE = _method("torch._dynamo.output_graph", "SubgraphTracer", "create_node")
CALL_MODULE = _method(f"{_VARIABLES}.nn_module", "UnspecializedNNModuleVariable", "call_function")
MAKE_LOSS = _method(f"{_VARIABLES}.user_defined", "UserDefinedClassVariable", "_call_cross_entropy_loss")
CALL_CHECKPOINT = _method(f"{_VARIABLES}.higher_order_ops", "CheckpointHigherOrderVariable", "_call_function")
# @torch.compiler.nested_compile_region. Up to 2.11 it is among the others.
_HAS_REGION_MODULE = names.find(f"{_VARIABLES}.invoke_subgraph", "InvokeSubgraphHigherOrderVariable") is not None
CALL_REGION = _method(
    f"{_VARIABLES}.{'invoke_subgraph' if _HAS_REGION_MODULE else 'higher_order_ops'}",
    "InvokeSubgraphHigherOrderVariable",
    "_call_function",
)
# Resumes a generator. Up to 2.12 no value can be sent with it.
_SENDS = names.find(f"{_VARIABLES}.functions", "LocalGeneratorObjectVariable.gen_send_ex2") is not None
RESUME_GENERATOR = _method(
    f"{_VARIABLES}.functions", "LocalGeneratorObjectVariable", "gen_send_ex2" if _SENDS else "next_variable"
)
names.attributes(f"{_VARIABLES}.functions", "LocalGeneratorObjectVariable", "inline_tracer")
InliningInstructionTranslator = _get("torch._dynamo.symbolic_convert", "InliningInstructionTranslator")
names.attributes(
    "torch._dynamo.symbolic_convert",
    "InliningInstructionTranslator",
    *("current_instruction", "f_code", "f_globals", "instructions", "output", "parent"),
)
names.attributes("torch._dynamo.output_graph", "OutputGraph", "current_tx")
names.attributes("torch._guards", "Source", "guard_source", "name")
# The code that calls a function under @torch.compiler.nested_compile_region in eager mode.
REGION_MODULE = "torch._higher_order_ops.invoke_subgraph"
RUN_REGION = _get(REGION_MODULE, "invoke_subgraph_placeholder.__code__")
CALL_FUNCTION = _method(f"{_VARIABLES}.misc", "AutogradFunctionVariable", "call_apply")
names.attributes(f"{_VARIABLES}.misc", "AutogradFunctionVariable", "fn_cls")
names.attributes("torch._dynamo.output_graph", "SubgraphTracer", "lifted_freevars")
TensorVariable = _get(f"{_VARIABLES}.tensor", "TensorVariable")
FUNCTION_MODULE = "torch.autograd.function"
# The code that calls the forward of a torch.autograd.Function in eager mode; None if it is not Python.
APPLY = names.find(FUNCTION_MODULE, "Function.apply.__code__")
# The functions that Dynamo traces in its place, as far as this version has them.
_makers = (
    names.find("torch._functorch.autograd_function", name)
    for name in ("DynamoAutogradFunctionTraceHelper.fwd_trace_helper", "autograd_function_forward_rewritten")
)
TRACED_APPLY = frozenset(
    code for make in _makers if make is not None for code in make.__code__.co_consts if isinstance(code, CodeType)
)
# The code of a compiled frame, by the code that Dynamo has made of it.
original_codes = _get("torch._dynamo.utils", "orig_code_map")
# Returns the names that may occur in the expressions by which Dynamo finds values.
names_in_sources = _get("torch._dynamo.guards", "_get_closure_vars")
STATIC_INPUT = "_dynamo_static_input_type"  # an attribute of parameters and buffers that are inputs of a graph
RUN_CALLBACK = _get("torch._dynamo.convert_frame", "CatchErrorsWrapper.__call__.__code__")

# ---- operators of lowered graphs --------------------------------------------------------------------------------------

ConstantSource = _get("torch._dynamo.source", "ConstantSource")
register_effectful_op = _get("torch.library", "_register_effectful_op")
EffectType = _get("torch.library", "EffectType")
with_effects = _get("torch._higher_order_ops.effects", "with_effects")
# The modes of a selective checkpoint, in its first run and when it computes again; and the operators that they let pass.
SELECTING_MODES = (
    _get("torch.utils.checkpoint", "_CachingTorchDispatchMode"),
    _get("torch.utils.checkpoint", "_CachedTorchDispatchMode"),
)
unselected = _get("torch.utils.checkpoint", "SAC_IGNORED_OPS")
_patched = _get("torch._functorch.config", "patch")
BACKWARD_AT_ONCE = "force_non_lazy_backward_lowering"
_get("torch._functorch.config", BACKWARD_AT_ONCE)


_GRAPH_COMPILE = "torch._functorch._aot_autograd.graph_compile"
_DONATED = "collect_bw_donated_buffer_idxs"  # of it: which saved tensors the backward graph may write over
_get(_GRAPH_COMPILE, _DONATED)

names.check()


@contextlib.contextmanager
def compiling_backward(at_once: bool) -> Iterator[None]:
    """A context in which the backward graph is compiled at once; without `at_once`, when it first runs, in sight of
    tools. Enter it under compile_lock.

    Until the backward graph first runs, it is not known whether the program keeps it for another backward pass
    (retain_graph=True). So a backward graph that is compiled at once does not write over the tensors saved for it.
    """
    if not at_once:
        yield
        return
    module = sys.modules[_GRAPH_COMPILE]
    before = getattr(module, _DONATED)
    setattr(module, _DONATED, _none_donated)
    try:
        with _patched({BACKWARD_AT_ONCE: True}):
            yield
    finally:
        setattr(module, _DONATED, before)


def _none_donated(*graphs: object) -> list[int]:
    return []


# ---- inductor, whose import takes seconds: these names are not checked when the driver is loaded -----------------------


def inductor_has_cuda_graphs() -> bool:
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


@contextlib.contextmanager
def inductor_code() -> Iterator[list[str]]:
    """See `CompiledGraph.generated_code`. Empty if this version of torch does not hand it out."""
    from torch._inductor.graph import GraphLowering

    found: list[str] = []
    own = vars(GraphLowering).get("save_output_code", _MISSING)  # a function that gets each code, or None
    if own is _MISSING:
        yield found
        return
    GraphLowering.save_output_code = staticmethod(found.append)
    try:
        yield found
    finally:
        GraphLowering.save_output_code = own


_MISSING = object()
