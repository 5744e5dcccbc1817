"""Faults: what becomes of the elements that they hit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch

from amanda import _core

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_integers(values: torch.Tensor) -> torch.Tensor:
    """The same memory as signed integers: bit 0 is the least significant one."""
    return values.view(_INTEGERS[values.dtype.itemsize])


class Fault:
    """What a fault does. To add one of your own, subclass it and define `corrupt`."""

    def corrupt(self, values: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, list[int] | list[None]]:
        """Returns what becomes of `values`, and for each of them the bit that is concerned, or None.

        Arguments:
            values: the elements that are hit, in one dimension, on the CPU. The result has their shape and dtype.
            generator: the source of anything random.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"[error_injection] {type(self).__name__} has no corrupt")


@dataclasses.dataclass(frozen=True)
class BitFlip(Fault):
    """Inverts one bit of each element that is hit.

    Arguments:
        bit: 0 is the least significant bit; of a float32, 31 is the sign and 23 to 30 are the exponent. If there are
            several (``range(23, 31)``), one of them is drawn for each element; None: one of all bits.

    Raises:
        ValueError: a bit is negative, or there is none.
        amanda.Error: when an element is hit that has no such bit.
    """

    bit: int | Collection[int] | None = None

    def __post_init__(self) -> None:
        if self.bit is not None:
            _check_bits(self.bit)

    def corrupt(self, values: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, list[int]]:
        bits = _draw_bits(self.bit, values, generator)
        return (as_integers(values) ^ _masks(values, bits)).view(values.dtype), bits.tolist()


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

    def corrupt(self, values: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, list[int] | list[None]]:
        if self.bit is None:
            return torch.full_like(values, self.value), [None] * len(values)
        bits = _draw_bits(self.bit, values, generator)
        cells, masks = as_integers(values), _masks(values, bits)
        return (cells | masks if self.value else cells & ~masks).view(values.dtype), bits.tolist()


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

    def corrupt(self, values: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, list[None]]:
        drawn = torch.rand(len(values), generator=generator, dtype=torch.float64) * (self.high - self.low) + self.low
        return (drawn if values.is_floating_point() else drawn.floor()).to(values.dtype), [None] * len(values)


def _check_bits(bit: int | Collection[int]) -> None:
    bits = [bit] if isinstance(bit, int) else [*bit]
    if not bits or not all(isinstance(number, int) and number >= 0 for number in bits):
        raise ValueError(f"[error_injection] bit= is the number of a bit, or several; 0 is the lowest; got {bit!r}")


def _draw_bits(bit: int | Collection[int] | None, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    width = 1 if values.dtype == torch.bool else 8 * values.dtype.itemsize
    known = torch.tensor([bit] if isinstance(bit, int) else [*(range(width) if bit is None else bit)])
    if known.max() >= width:
        raise _core.Error(
            f"[error_injection] a {_name(values.dtype)} has no bit {known.max()}: its bits are 0 to {width - 1}"
        )
    return known[torch.randint(len(known), (len(values),), generator=generator)]


def _masks(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    cells = as_integers(values)
    return torch.ones_like(cells) << bits.to(cells.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
