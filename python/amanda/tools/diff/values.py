"""The functions of a diff for the values of a program in any framework: tensors of PyTorch, arrays of numpy."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from amanda.toolkit.arrays import arrays_of, known

from .tolerances import Difference, Tolerances


class Values(Protocol):
    """The values of one framework. A module implements it."""

    def dtype_of(self, array: Any) -> str:
        """The dtype's name, such as "float32"."""

    def shape_of(self, array: Any) -> Sequence[int] | None:
        """The shape. None if it has none that may be read."""

    def number_in(self, array: Any) -> str | None:
        """The text of its value, if it may be a number of the program; equal values have equal texts."""

    def kept(self, array: Any) -> Any:
        """A contiguous copy on the CPU, of an array that can be read; None if files have no such dtype."""

    def data(self, array: Any, *, is_kept: bool) -> memoryview:
        """The bytes of its elements. `is_kept`: it is what `kept` returns."""

    def made(self, data: bytearray, dtype: str, shape: tuple[int, ...]) -> Any:
        """The array again."""

    def memory(self, array: Any) -> int | None:
        """The address of its elements; None if it has none."""

    def sizes(self, array: Any) -> Any:
        """The absolute values of its elements as an array of numpy, float64 with one dimension. `kept` has returned it."""

    def elements(self, array: Any) -> Any:
        """Its elements as `sizes` has them, with their signs; real and imaginary parts one after the other."""

    def is_equal(self, array: Any, reference: Any) -> bool:
        """True if they are equal bit for bit, except that NaN equals NaN. Here and below, `kept` has returned both."""

    def difference(
        self, array: Any, reference: Any, tolerances: Tolerances, dtypes: Sequence[str]
    ) -> Difference | None:
        """The difference; None if they agree within the tolerances. `dtypes`: of inputs, where those of the two
        operators differ."""

    def healed(self, array: Any, reference: Any) -> Any:
        """The reference's elements, as `kept` has returned them, in the array's dtype and on its device."""

    def overwrite(self, array: Any, reference: Any) -> None:
        """Writes them into the array."""


class _Unshown:
    """It stands for a value that routines do not get."""


UNSHOWN = _Unshown()
_IMPLEMENTATIONS = {"torch": "tensors", "numpy": "ndarrays"}  # imported where there are such arrays


def framework_of(array: Any) -> str:
    name: str = known(array).xp.__name__
    return name


def values_of(array: Any) -> Values:
    return _implementation(framework_of(array))


def made(framework: str, data: bytearray, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of the framework. Raises `ValueError`: it is not known."""
    if framework not in _IMPLEMENTATIONS:
        raise ValueError(f"it has arrays of {framework!r}")
    return _implementation(framework).made(data, dtype, shape)


def arrays_in(value: Any) -> Iterator[Any]:
    """A result's arrays in order: itself, or the members of lists."""
    if arrays_of(value) is not None:
        yield value
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from arrays_in(member)


def why_unreadable(array: Any) -> str | None:
    """A key of `amanda.toolkit.arrays.REASONS`; None if it can be read."""
    if array is UNSHOWN:
        return "unshown"
    arrays = arrays_of(array)
    if arrays is None:
        return None
    # The result of a transformation is compared where it is used; inside, an element stands for many.
    return arrays.why_unreadable(array) or ("transformed" if arrays.is_transformed(array) else None)


def sizes(array: Any) -> Any:
    """The absolute values of the elements of an array that `kept` has returned; None if they have none."""
    return values_of(array).sizes(array) if arrays_of(array) is not None else None


def elements(array: Any) -> Any:
    """The elements of an array that `kept` has returned; None if it has none."""
    return values_of(array).elements(array) if arrays_of(array) is not None else None


def kept(array: Any) -> Any:
    """A copy on the CPU; None if it cannot be read, or files have no such dtype."""
    return None if why_unreadable(array) is not None else values_of(array).kept(array)


def memory(values: Any) -> set[int]:
    """The addresses at which the arrays in it have their elements."""
    readable = (array for array in arrays_in(values) if why_unreadable(array) is None)
    return {where for array in readable if (where := values_of(array).memory(array)) is not None}


def healed(value: Any, references: Iterator[Any]) -> Any:
    """The value with the references' elements; None if nothing changes."""
    if arrays_of(value) is not None:
        reference = next(references)
        if reference is None or reference.shape != value.shape:
            return None
        return values_of(value).healed(value, reference)
    if isinstance(value, (list, tuple)):
        members = [healed(member, references) for member in value]
        if any(member is not None for member in members):
            return [old if new is None else new for old, new in zip(value, members, strict=True)]
    return None


@functools.cache
def _implementation(framework: str) -> Values:
    module: Any = importlib.import_module(f".{_IMPLEMENTATIONS[framework]}", __package__)
    found: Values = module
    return found
