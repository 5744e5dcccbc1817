"""Arrays: what routines are given, tensors of PyTorch or arrays of numpy, and how one tool computes with either.

A tool asks `arrays_of` which of them a value is. Much is the same function in torch and in numpy (`Arrays.xp`); the rest of
what tools need is in `Arrays`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["REASONS", "UNWRITTEN", "Arrays", "array_in", "arrays_in", "arrays_of", "known"]


class Arrays(Protocol):
    """The arrays of one framework. A module implements it."""

    xp: Any
    """torch or numpy. Tools use the functions that have the same name in both: isnan, count_nonzero, full_like, where,
    ..."""

    # ---- reading ----------------------------------------------------------------------------------------------------

    def quietly(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which reading an array runs no code of the program, and warns of no overflow."""

    def why_unreadable(self, array: Any) -> str | None:
        """The reason why the array has no elements that a tool could compute with, a key of `REASONS`; None if it
        has."""

    def is_symbolic(self, array: Any) -> bool:
        """True if the array is being traced."""

    def plain(self, array: Any) -> Any:
        """The array without wrappers of transformations."""

    def is_transformed(self, array: Any) -> bool:
        """True if the array has such wrappers."""

    def untransformed(self) -> contextlib.AbstractContextManager[Any]:
        """A context that computes with `plain` arrays as outside of transformations."""

    def detached(self, array: Any) -> Any:
        """The same memory, of which nothing is recorded for a gradient."""

    def nbytes(self, array: Any) -> int:
        """The bytes of its elements, readable or not."""

    def is_floating(self, array: Any) -> bool:
        """True if its elements are real floating-point numbers."""

    def is_complex(self, array: Any) -> bool:
        """True if its elements are complex numbers."""

    def cast(self, array: Any, dtype: Any) -> Any:
        """The array in another dtype: of `xp`, or of another array."""

    def zeros(self, array: Any, shape: Sequence[int]) -> Any:
        """Zeros in this shape, of the array's dtype and device."""

    def copied(self, array: Any, device: Any = None, dtype: Any = None) -> Any:
        """A copy with memory of its own, of which nothing is recorded, on another device and in another dtype if they are
        given. Arrays of numpy are in the memory of the CPU: the device does not count."""

    def like(self, array: Any, values: Sequence[float]) -> Any:
        """An array of these values, of the other's dtype and device, with one dimension."""

    # ---- numbers of whole arrays ------------------------------------------------------------------------------------

    def extremes(self, array: Any) -> tuple[float, float]:
        """The smallest and the largest element, of a floating-point array that has some."""

    def mean_and_variance(self, array: Any) -> tuple[float, float]:
        """The mean and the variance of all elements. The variance divides by their number."""

    def norm(self, array: Any) -> float:
        """The Euclidean norm of all elements, accumulated in float64."""

    # ---- masks ------------------------------------------------------------------------------------------------------

    def lasting(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which nothing is recorded for gradients or transformed. Arrays that are made in it may also be used
        where that is recorded. It computes with arrays that are `plain`."""

    def matching(self, array: Any, other: Any) -> Any:
        """The array in the other's dtype, where the other one is."""

    def filled_like(self, array: Any, values: Any) -> Any:
        """These values in the array's shape, dtype, device and memory layout."""

    def without_smallest(self, array: Any, count: int) -> Any:
        """0 at the `count` smallest elements and 1 at the others, in the array's shape and dtype."""

    # ---- bits -------------------------------------------------------------------------------------------------------

    def copy(self, array: Any) -> Any:
        """The same elements in memory of their own."""

    def as_reals(self, array: Any) -> Any:
        """The memory of a complex array as that of a real one, with 2 as the last size; any other array itself."""

    def as_integers(self, array: Any) -> Any:
        """The same memory as signed integers: bit 0 is the least significant one."""

    def numbers(self, array: Any) -> list[Any]:
        """Its elements as Python's numbers, of an array with one dimension."""

    def take(self, array: Any, positions: list[int]) -> Any:
        """The elements at these positions of the flattened array, on the CPU."""

    def put(self, array: Any, positions: list[int], elements: Any) -> None:
        """Writes what `take` would return."""

    # ---- random numbers, of a generator that belongs to the framework -----------------------------------------------

    def generator(self, seed: int) -> Any:
        """The generator that the functions below draw from."""

    def integers(self, generator: Any, below: int, count: int) -> list[int]:
        """Each from 0 on."""

    def distinct(self, generator: Any, below: int, count: int) -> list[int]:
        """Different numbers from 0 on, by a permutation of all."""

    def uniform(self, generator: Any, count: int) -> Any:
        """An array of float64, each 0 or more and less than 1."""

    def binomial(self, generator: Any, count: int, rate: float) -> int:
        """The number of hits among `count` independent draws with this probability."""


UNWRITTEN = "unwritten"

REASONS = {
    "symbolic": "a tensor of a tracer, without elements",
    "meta": "a tensor without elements, on the meta device",
    "nested": "a nested tensor",
    "sparse": "a sparse tensor",
    "quantized": "a quantized tensor",
    "freed": "a tensor whose memory was given back, as sharded training does",
    "distributed": "a distributed tensor, of which this process holds a part",
    "subclass": "a tensor subclass with its own __torch_dispatch__",
    "batched": "a tensor under an older vmap, such as is_grads_batched=True",
    "transformed": "a tensor inside a transformation of torch.func, such as vmap",
    "objects": "an array of strings or other objects",
    "compiled": "an operator of a compiled function, which this tool can't follow",
    "elsewhere": "an operator of another framework, which this tool can't follow",
    "unshown": "a value that the framework does not show, such as a string of TensorFlow",
    "untraced": "an operand of a program whose framework does not tell which operator made it",
    UNWRITTEN: "memory that the program allocated, and that no operator is known to have filled",
    "tangent": "the tangent of a forward-mode derivative, which tools are not shown",
    "failed": "reading it failed",
}

_KINDS = {"torch": ("Tensor", "of_torch"), "numpy": ("ndarray", "of_numpy")}
_known: list[tuple[type, Arrays]] = []  # those seen so far


def arrays_of(value: object) -> Arrays | None:
    """The framework whose array this is; None if it is no array. Imports no framework."""
    for kind, arrays in _known:
        if isinstance(value, kind):
            return arrays
    for framework, (name, implementation) in _KINDS.items():
        imported: Any = getattr(sys.modules.get(framework), name, None)
        if imported is not None and isinstance(value, imported):
            found: Any = importlib.import_module(f".{implementation}", __package__)
            _known.append((imported, found))
            return arrays_of(value)
    return None


def array_in(result: object) -> Any:
    """The array that a program's result holds: itself, or that of a tensor of TensorFlow; None if it holds none."""
    if arrays_of(result) is not None:
        return result
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(result, tensorflow.Tensor | tensorflow.Variable):
        return result.numpy()
    return None


def known(array: object) -> Arrays:
    """As `arrays_of`, for a value that is certainly an array."""
    arrays = arrays_of(array)
    assert arrays is not None
    return arrays


def arrays_in(value: object) -> list[Any]:
    """An operand's arrays: itself, or the members of a list."""
    members = value if isinstance(value, (list, tuple)) else [value]
    return [member for member in members if arrays_of(member) is not None]
