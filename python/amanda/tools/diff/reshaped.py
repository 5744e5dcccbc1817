"""Weights of a reference that another program reads in another shape."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .record import Record
from .texts import tensors_in

_SHAPED = re.compile(r"tensor (\w+)\[([\d, ]*)\] (.+)")


def reshaped(record: Record, read: Iterable[str]) -> str:
    """The first parameter of the reference whose elements are among these tensors, in the same order and another shape, as
    a sentence; "" if there is none. The order of a transposed weight is another one."""
    wanted = {key: shape for key, shape in map(_parts, read) if len(shape) > 1}
    for i, execution in record.executions:
        station = record.stations[i]
        if station.backward_op:
            continue
        for names, text in zip(station.parameters, execution.inputs, strict=False):
            for name, tensor in zip(names, tensors_in(text), strict=False):
                key, shape = _parts(tensor)
                if name and shape and wanted.get(key, shape) != shape:
                    transposed = ", and not transposed" if wanted[key] == shape[::-1] else ""
                    return f"it reads {name} of the reference, {shape}, reshaped to {wanted[key]}{transposed}"
    return ""


def _parts(tensor: str) -> tuple[tuple[str, str], tuple[int, ...]]:
    """Dtype and hash, and the sizes other than 1."""
    found = _SHAPED.fullmatch(tensor)
    if found is None:
        return ("", ""), ()
    sizes = (int(size) for size in found[2].split(", ") if size)
    return (found[1], found[3]), tuple(size for size in sizes if size != 1)
