"""Bindings: what programs bind to the inputs and outputs of sessions. A binding itself does not give its inputs back."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from amanda.drivers.onnxruntime.program import Unreadable

_INPUTS, _OUTPUTS = "_amanda_inputs", "_amanda_outputs"  # attributes of a binding: by name, in their order


def watch() -> None:
    """From now on, bindings remember what is bound: they are made before they run in a scope."""
    _remember("bind_cpu_input", _INPUTS, lambda array: lambda: np.asarray(array))
    _remember("bind_ortvalue_input", _INPUTS, lambda value: functools.partial(_of_value, value))
    _remember("bind_input", _INPUTS, lambda *place: functools.partial(_of_pointer, *place))
    _remember("bind_output", _OUTPUTS, lambda *place: None)
    _remember("bind_ortvalue_output", _OUTPUTS, lambda value: None)
    for method, names in (("clear_binding_inputs", _INPUTS), ("clear_binding_outputs", _OUTPUTS)):
        _forget(method, names)


def inputs_of(binding: Any) -> dict[str, Any]:
    """The arrays that are bound. Raises `Unreadable`: one is not on the CPU, or numpy has no such dtype."""
    return {name: read() for name, read in binding.__dict__.get(_INPUTS, {}).items()}


def outputs_of(binding: Any) -> Sequence[str]:
    """The names of the outputs that are bound."""
    return tuple(binding.__dict__.get(_OUTPUTS, ()))


def write(binding: Any, results: Mapping[str, Any]) -> str:
    """Writes results over those of the session, in the memory that is bound. The reason why it did not; "" if it did."""
    written = []
    for (name, result), value in zip(results.items(), binding.get_outputs(), strict=True):
        if not isinstance(result, np.ndarray) or not value.is_tensor() or value.device_name() != "cpu":
            return f"the output {name!r} is bound to no tensor on the CPU"
        bound = value.numpy()
        if (bound.shape, bound.dtype) != (result.shape, result.dtype):
            return f"an edit has changed the dtype or the shape of the output {name!r}"
        written.append((value, result))
    for value, result in written:
        value.update_inplace(np.asarray(result, order="C"))
    return ""


def _remember(method: str, names: str, reader: Callable[..., Any]) -> None:
    bind = getattr(onnxruntime.IOBinding, method)

    @functools.wraps(bind)
    def bind_and_remember(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = bind(self, name, *args, **kwargs)
        self.__dict__.setdefault(names, {})[name] = reader(*args, **kwargs)
        return result

    setattr(onnxruntime.IOBinding, method, bind_and_remember)


def _forget(method: str, names: str) -> None:
    clear = getattr(onnxruntime.IOBinding, method)

    @functools.wraps(clear)
    def clear_and_forget(self: Any) -> Any:
        self.__dict__.pop(names, None)
        return clear(self)

    setattr(onnxruntime.IOBinding, method, clear_and_forget)


def _of_value(value: Any) -> Any:
    if not value.is_tensor() or value.device_name() != "cpu":
        raise Unreadable("an input is bound to no tensor on the CPU")
    return value.numpy()


def _of_pointer(device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> Any:
    if device_type != "cpu":
        raise Unreadable("an input is bound to no tensor on the CPU")
    try:
        dtype = np.dtype(element_type)
    except TypeError:
        raise Unreadable("an input is bound with a dtype that numpy does not have") from None
    size = int(np.prod(np.array(shape, np.int64))) * dtype.itemsize
    if not size:
        return np.empty(tuple(shape), dtype)
    return np.frombuffer((ctypes.c_byte * size).from_address(buffer_ptr), dtype).reshape(tuple(shape))
