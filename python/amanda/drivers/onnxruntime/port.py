"""All private names of ONNX Runtime that the driver uses, checked when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxruntime.capi import onnxruntime_pybind11_state as state

VERSION = ".".join(onnxruntime.__version__.split(".")[:2])
Session = collection.Session
InferenceSession = onnxruntime.InferenceSession

_RUNS = "run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector"
_missing = [name for name in _RUNS if not hasattr(Session, name)]
if not hasattr(state, "get_all_operator_schema"):
    _missing.append("get_all_operator_schema")
if _missing:
    raise ImportError(
        f"[onnxruntime] ONNX Runtime {onnxruntime.__version__} has no {', '.join(_missing)}: it runs uninstrumented, and "
        "tools see nothing of it"
    )


class Method:
    """A method of sessions that is replaced while scopes are open."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.original: Callable[..., Any] = getattr(Session, name)

    def replace(self, function: Callable[..., Any]) -> None:
        setattr(Session, self._name, function)

    def restore(self) -> None:
        setattr(Session, self._name, self.original)


run = Method("run")
run_async = Method("run_async")
run_with_iobinding = Method("run_with_iobinding")
run_with_ort_values = Method("run_with_ort_values")
run_with_ortvaluevector = Method("run_with_ortvaluevector")


def source_of(session: Any) -> str | bytes | None:
    """The path or the bytes of the model. None if the session does not keep what it was made of."""
    found: str | bytes | None = getattr(session, "_model_path", None) or getattr(session, "_model_bytes", None)
    return found


def inner_of(session: Any) -> Any:
    """The session of ONNX Runtime's own that it stands for. It is another one after `set_providers`."""
    return session._sess


def options_of(inner: Any) -> Any:
    """A copy of the options that are in force, without libraries of custom operators, which ONNX Runtime does not give."""
    return inner.session_options


def runs(session: Any) -> Callable[[list[str], dict[str, Any], Any], list[Any]]:
    """The function that `run` of a session calls once it has checked its arguments."""
    found: Callable[[list[str], dict[str, Any], Any], list[Any]] = session._sess.run
    return found


DEFAULT_OPTIONS = onnxruntime.RunOptions()  # of a run without options


def schemas() -> list[Any]:
    """The schemas of all operators that are registered, in all versions."""
    return list(state.get_all_operator_schema())


VARIADIC = state.schemadef.OpSchema.FormalParameterOption.Variadic
