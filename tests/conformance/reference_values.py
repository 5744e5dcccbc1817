"""The reference driver's module, and its arrays. It is built with the C++ tests: `make build-tests`."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import amanda  # first: the module uses its core
from adapter import NotInstalled
from description import Nested, flat

assert amanda.__version__


def load() -> Any:
    built = sorted(
        pathlib.Path(__file__).parents[2].glob("build/release/drivers/reference/python/amanda_reference.*.so")
    )
    if not built:
        raise NotInstalled("amanda_reference is not built; run `make build-tests`")
    spec = importlib.util.spec_from_file_location("amanda_reference", built[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["amanda_reference"] = module
    spec.loader.exec_module(module)
    return module


ref = load()

KINDS = ("mul", "add", "sub", "neg", "relu", "matmul", "sum", "flatten")
OPS = {kind: kind for kind in KINDS}
BACKWARD_OPS = {kind: {f"{kind.capitalize()}Backward"} for kind in KINDS}


def array(nested: Nested) -> Any:
    shape, inner = [], nested
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0]
    return ref.Array(shape, flat(nested))


def nested(value: Any) -> Nested:
    def part(numbers: list[float], shape: list[int]) -> Nested:
        if len(shape) == 1:
            return list(numbers)
        size = len(numbers) // shape[0]
        return [part(numbers[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]

    return part(value.data, value.shape)


def filled_like(value: Any, number: float) -> Any:
    return ref.Array(value.shape, [number] * len(value.data))


def copy(value: Any) -> Any:
    return ref.Array(value.shape, value.data)


def times(value: Any, factors: list[float]) -> Any:
    return ref.call("mul", [value, ref.Array(value.shape, factors)])[0]
