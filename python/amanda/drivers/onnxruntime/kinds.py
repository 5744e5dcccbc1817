"""Types of values, in the words of ONNX Runtime: "tensor(float)", "seq(tensor(int64))"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

_WITHOUT_NUMPY = ("bfloat16", "float8", "int4", "uint4", "int2", "uint2", "float4")


def of_tensor(element_type: int) -> str:
    """`element_type`: a number of `onnx.TensorProto`."""
    return f"tensor({onnx.TensorProto.DataType.Name(element_type).lower()})"


def dtype_of(kind: str) -> np.dtype[Any] | None:
    """None if it is no tensor that numpy has."""
    outer, inner = _split(kind)
    if outer != "tensor" or inner.startswith(_WITHOUT_NUMPY):
        return None
    found: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(_element_type(inner))
    return found


def can_leave(kind: str) -> bool:
    """True if a session gives such a value to Python, and takes it back."""
    outer, inner = _split(kind)
    return can_leave(inner) if outer in ("seq", "optional") else dtype_of(kind) is not None


def of_type(type: Any) -> str:
    """`type`: a `onnx.TypeProto`; "" if it says nothing, or has no such words."""
    which = type.WhichOneof("value")
    if which == "tensor_type" and type.tensor_type.elem_type:
        return of_tensor(type.tensor_type.elem_type)
    if which in ("sequence_type", "optional_type"):
        inner = of_type(getattr(type, which).elem_type)
        return f"{'seq' if which == 'sequence_type' else 'optional'}({inner})" if inner else ""
    return ""


def shape_of(type: Any) -> tuple[int | str | None, ...] | None:
    """None if not even the rank is known."""
    if type.WhichOneof("value") != "tensor_type" or not type.tensor_type.HasField("shape"):
        return None
    return tuple(
        each.dim_value if each.HasField("dim_value") else each.dim_param or None for each in type.tensor_type.shape.dim
    )


def proto_of(kind: str, shape: Sequence[int | str | None] | None = None) -> Any:
    """`shape`: of a tensor."""
    outer, inner = _split(kind)
    if outer == "seq":
        return onnx.helper.make_sequence_type_proto(proto_of(inner))
    if outer == "optional":
        return onnx.helper.make_optional_type_proto(proto_of(inner))
    return onnx.helper.make_tensor_type_proto(_element_type(inner), shape)


def _split(kind: str) -> tuple[str, str]:
    outer, _, rest = kind.partition("(")
    return outer, rest.removesuffix(")")


def _element_type(name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(name.upper()))
