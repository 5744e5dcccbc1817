"""Everything that may differ between minor versions of TensorFlow: the undocumented names that we use. No other file
names them.

Checked against TensorFlow 2.21.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

VERSION = "2.21"

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

    def replace(self, replacement: Callable[..., Any]) -> None:
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
    """Raises an ImportError if this is another version, or if something is missing."""
    if not tf.__version__.startswith(f"{VERSION}."):
        raise ImportError(
            f"[tensorflow] this is TensorFlow {tf.__version__}, and this version of amanda is for {VERSION}; install "
            f"tensorflow {VERSION}, or a newer amanda"
        )
    if _missing:
        raise ImportError(
            f"[tensorflow] TensorFlow {tf.__version__} has no {', '.join(_missing)}, which this version of amanda relies "
            f"on; install another build of TensorFlow {VERSION}, or a newer amanda"
        )


# Graphs.
Operation = _get("python.framework.ops", "Operation")
FuncGraph = _get("python.framework.func_graph", "FuncGraph")
find_op_def = _get("python.framework.op_def_registry", "get")  # by an operator's name; None: it is a function
gradient_function = _patchable("python.framework.ops", "get_gradient_function")
as_graph_def = _patchable("python.framework.ops", "Graph._as_graph_def")
join_control_flow = _patchable("python.framework.ops", "Operation._control_flow_post_processing")

# Sessions.
run_session = _patchable("python.client.session", "BaseSession._do_run")
make_callable = _patchable("python.client.session", "BaseSession.make_callable")
make_callable_from_options = _patchable("python.client.session", "BaseSession._make_callable_from_options")

# Functions and tapes.
make_function_context = _patchable("python.eager.polymorphic_function.function_context", "make_function_context")
FunctionContext = _get("core.function.polymorphism.function_cache", "FunctionContext")
graph_transforms = _get("python.eager.polymorphic_function.transform", "FUNC_GRAPH_TRANSFORMS")
make_forward_backward = _patchable(
    "python.eager.polymorphic_function.concrete_function", "_create_forward_backward_with_graph"
)
all_concrete_functions = _patchable(
    "python.eager.polymorphic_function.polymorphic_function", "Function._list_all_concrete_functions"
)
in_save_context = _get("python.saved_model.save_context", "in_save_context")
record_gradient = _patchable("python.eager.execute", "record_gradient")
record_gradient_of_backprop = _patchable("python.eager.backprop", "record_gradient")
tape_gradient = _get("python.eager.backprop", "_gradient_function")
register_tape_gradient = _get("python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")

_check()


def original_op(op: Any) -> Any:
    """The forward operator whose gradient function created this one; None: it is not known, or there is none."""
    return op._original_op


def is_reference(dtype: tf.DType) -> bool:
    """Is it the type of a tensor that is a v1 variable itself?"""
    return bool(dtype._is_ref_dtype)
