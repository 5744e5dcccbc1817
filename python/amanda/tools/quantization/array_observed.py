"""An operand of a graph, as arrays of numpy, and the range that it had so far."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np

from amanda import Error
from amanda.toolkit import locks
from amanda.toolkit.frames import line_in_cell

from .ranges import MovingRange
from .rows import OperandPlace, Row

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(eq=False)
class ArrayObserved:
    """The arithmetic is that of `torch.ao.quantization` and of `torch.fake_quantize_per_tensor_affine`, in float32."""

    at: OperandPlace
    range: MovingRange
    channels: tuple[int, ...]  # dimensions that have a scale for each index; (): one for all
    extremes: tuple[Array, Array] | None = None
    passed: Array | None = None  # where the last value was in range
    lock: threading.Lock = dataclasses.field(default_factory=locks.lock)  # guards the last two fields

    def look_at(self, value: Array) -> None:
        if value.size == 0:
            return
        others = tuple(i for i in range(value.ndim) if i not in self.channels)
        seen = value.astype(np.float32, copy=False)
        smallest, largest = seen.min(others), seen.max(others)
        with self.lock:
            if self.extremes is not None:
                share, (low, high) = np.float32(self.range.averaging_constant), self.extremes
                smallest, largest = low + share * (smallest - low), high + share * (largest - high)
            self.extremes = smallest, largest

    def qparams(self) -> tuple[Array, Array]:
        """Scale and zero point, with one element or one for each channel.

        Raises:
            amanda.Error: there are none yet.
        """
        found = self._find()
        if found is None:
            place, side, position = self.at
            raise Error(
                f"[quantization] {side} {position!r} of {place.name} ({line_in_cell(place.source)}) has no "
                "range yet; run the program with observe = True first"
            )
        return found

    def fake_quantized(self, value: Array) -> tuple[Array, Array]:
        """The value after quantization, and where it was in range."""
        scale, zero_point = (self._spread(each, value) for each in self.qparams())
        quantized = np.rint(value.astype(np.float32, copy=False) * (np.float32(1) / scale)) + zero_point
        clamped = np.fmin(np.fmax(quantized, self.range.quant_min), self.range.quant_max)
        return ((clamped - zero_point) * scale).astype(value.dtype), quantized == clamped

    def row(self) -> Row | None:
        found = self._find()
        if found is None:
            return None
        scale, zero_point = (np.atleast_1d(each).reshape(-1) for each in found)
        return Row(*self.at.place, *self.at[1:], scale, zero_point, self.range.quant_min, self.range.quant_max)

    def _find(self) -> tuple[Array, Array] | None:
        with self.lock:
            if self.extremes is None:
                return None
            low, high = np.minimum(self.extremes[0], 0), np.maximum(self.extremes[1], 0)
        smallest, largest = self.range.quant_min, self.range.quant_max
        steps, epsilon = np.float32(largest - smallest), np.finfo(np.float32).eps
        if self.range.symmetric:
            scale = np.maximum(np.maximum(-low, high) / (steps / 2), epsilon)
            middle = 0 if smallest < 0 else (smallest + largest) // 2
            return scale, np.full_like(scale, middle, np.int32)
        scale = np.maximum((high - low) / steps, epsilon)
        return scale, np.clip(smallest - np.rint(low / scale), smallest, largest).astype(np.int32)

    def _spread(self, each: Array, value: Array) -> Array:
        """In a shape that is broadcast over the value's."""
        shape = [size if i in self.channels else 1 for i, size in enumerate(value.shape)]
        return np.asarray(each, np.float32).reshape(shape if self.channels else ())
