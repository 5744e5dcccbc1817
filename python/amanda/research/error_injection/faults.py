"""Faults: what becomes of the elements that they hit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from amanda import Error
from amanda.toolkit.arrays import known


class Fault:
    """The effect of a fault on values. To add one of your own, subclass it and define `corrupt`."""

    def corrupt(self, values: Any, generator: Any) -> tuple[Any, list[int] | list[None]]:
        """Returns the faulty values in place of `values`, and for each of them the bit that is concerned, or None.

        Arguments:
            values: the elements that are hit, in one dimension, on the CPU: a `torch.Tensor`, or in TensorFlow a
                `numpy.ndarray`. The result has their shape and dtype.
            generator: the source of anything random: a `torch.Generator`, or in TensorFlow a `numpy.random.Generator`.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"[error_injection] {type(self).__name__} has no corrupt")


@dataclasses.dataclass(frozen=True)
class BitFlip(Fault):
    """Inverts one bit of each element that is hit.

    Arguments:
        bit: 0 is the least significant bit; of a float32, 31 is the sign and 23 to 30 are the exponent. If there are
            several (``range(23, 31)``), one of them is drawn for each element. By default, one of all bits is drawn.

    Raises:
        ValueError: a bit is negative, or there is none.
        amanda.Error: when an element is hit that has no such bit.
    """

    bit: int | Collection[int] | None = None

    def __post_init__(self) -> None:
        if self.bit is not None:
            _check_bits(self.bit)

    def corrupt(self, values: Any, generator: Any) -> tuple[Any, list[int]]:
        arrays = known(values)
        bits = _draw_bits(self.bit, values, generator)
        return (arrays.as_integers(values) ^ _masks(values, bits)).view(values.dtype), bits


@dataclasses.dataclass(frozen=True)
class StuckAt(Fault):
    """Holds each element that is hit at a value, or one bit of it at 0 or 1.

    Arguments:
        value: the element's value; with `bit`, that bit's.
        bit: as of `BitFlip`, but None stands for the whole element.

    Raises:
        ValueError: a bit is negative or there is none, or its value is neither 0 nor 1.
        amanda.Error: when an element is hit that has no such bit.
    """

    value: float
    bit: int | Collection[int] | None = None

    def __post_init__(self) -> None:
        if self.bit is not None:
            _check_bits(self.bit)
            if self.value not in (0, 1):
                raise ValueError(f"[error_injection] a bit is stuck at 0 or 1, got {self.value!r}")

    def corrupt(self, values: Any, generator: Any) -> tuple[Any, list[int] | list[None]]:
        arrays = known(values)
        if self.bit is None:
            return arrays.xp.full_like(values, self.value), [None] * len(values)
        bits = _draw_bits(self.bit, values, generator)
        cells, masks = arrays.as_integers(values), _masks(values, bits)
        return (cells | masks if self.value else cells & ~masks).view(values.dtype), bits


@dataclasses.dataclass(frozen=True)
class RandomValue(Fault):
    """Gives each element that is hit a value of its own, uniform over a range.

    Arguments:
        low, high: the range, without `high`. For integers it is that of the integers in it.

    Raises:
        ValueError: `low` is not below `high`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"[error_injection] a range from {self.low!r} to {self.high!r} has no values: low < high")

    def corrupt(self, values: Any, generator: Any) -> tuple[Any, list[None]]:
        arrays = known(values)
        drawn = arrays.uniform(generator, len(values)) * (self.high - self.low) + self.low
        if not arrays.is_floating(values):
            drawn = arrays.xp.floor(drawn)
        return arrays.cast(drawn, values.dtype), [None] * len(values)


def _check_bits(bit: int | Collection[int]) -> None:
    bits = [bit] if isinstance(bit, int) else [*bit]
    if not bits or not all(isinstance(number, int) and number >= 0 for number in bits):
        raise ValueError(f"[error_injection] bit= is the number of a bit, or several; 0 is the lowest; got {bit!r}")


def _draw_bits(bit: int | Collection[int] | None, values: Any, generator: Any) -> list[int]:
    dtype = str(values.dtype).removeprefix("torch.")
    width = 1 if dtype == "bool" else 8 * values.dtype.itemsize
    choices = [bit] if isinstance(bit, int) else [*(range(width) if bit is None else bit)]
    if max(choices) >= width:
        raise Error(f"[error_injection] a {dtype} has no bit {max(choices)}: its bits are 0 to {width - 1}")
    return [choices[i] for i in known(values).integers(generator, len(choices), len(values))]


def _masks(values: Any, bits: list[int]) -> Any:
    arrays = known(values)
    cells = arrays.as_integers(values)
    return arrays.xp.ones_like(cells) << arrays.like(cells, bits)
