"""An operand whose range an observer of `torch.ao.quantization` finds."""

from __future__ import annotations

import dataclasses
import threading

import torch
from torch.ao.quantization.observer import UniformQuantizationObserverBase

from amanda import Error
from amanda.toolkit import locks
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.frames import line_in_cell
from amanda.toolkit.native import torch_tools

from . import straight_through
from .ranges import MakeObserver, MovingRange
from .rows import OperandPlace, Row

ADVICE = "run the program with observe = True first"


@dataclasses.dataclass(eq=False)
class Observed:
    at: OperandPlace
    observer: UniformQuantizationObserverBase
    looked: bool = False
    found: tuple[torch.Tensor, torch.Tensor] | None = None  # by the observer, since it last looked
    range: MovingRange | None = None  # that made the observer: nobody else has it
    continued: torch_tools.MovingRange | None = None  # what the observer has begun
    lock: threading.Lock = dataclasses.field(default_factory=locks.lock)  # guards the fields from `looked` on

    @classmethod
    def by(cls, at: OperandPlace, make: MakeObserver) -> Observed:
        return cls(at, make(), range=make if type(make) is MovingRange else None)

    def look_at(self, value: torch.Tensor) -> None:
        """`value`: if it stands for several tensors, under vmap, they have one range."""
        value = of_torch.plain(value)
        with self.lock, torch.no_grad(), of_torch.untransformed():
            if self.continued is not None and self.continued.look_at(value):
                return
            seen = value.detach()
            if self.continued is not None:
                self.continued.retire()
                self.continued = None
            self.observer.to(seen.device)(seen)
            self.found = None
            self.looked = True
            self._continue()

    def _continue(self) -> None:
        """From now on, without the observer, where that is possible."""
        smallest, largest = getattr(self.observer, "min_val", None), getattr(self.observer, "max_val", None)
        if self.range is None or smallest is None or largest is None or not smallest.is_cpu:
            return
        options = self.range
        self.continued = torch_tools.MovingRange(
            smallest,
            largest,
            options.averaging_constant,
            options.quant_min,
            options.quant_max,
            options.symmetric,
            options.by_channel,
            self.observer.eps.item(),
        )

    @property
    def by_channel(self) -> bool:
        return self.observer.qscheme in (torch.per_channel_affine, torch.per_channel_symmetric)

    def qparams(self, advice: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point.

        Raises:
            amanda.Error: there are none; the message ends with `advice`.
        """
        qparams = self._find()
        if qparams is None:
            place, side, position = self.at
            raise Error(
                f"[quantization] {side} {position!r} of {place.name} ({line_in_cell(place.source)}) has no "
                f"range yet; {advice}"
            )
        return qparams

    def fake_quantized(self, value: torch.Tensor) -> torch.Tensor:
        if of_torch.is_transforming():
            return self._transformed(value)
        continued = self.continued
        found = None if continued is None else continued.fake_quantized(value)
        return self.rounded(value, *self.qparams(ADVICE)) if found is None else found

    def _transformed(self, value: torch.Tensor) -> torch.Tensor:
        scale, zero_point = self.qparams(ADVICE)
        if straight_through.is_functionalizing():
            return self.rounded(value, scale, zero_point)
        axis = self.observer.ch_axis if self.by_channel else None
        limits = self.observer.quant_min, self.observer.quant_max
        return straight_through.rounded(value, straight_through.Grid(scale, zero_point, axis, *limits))

    def rounded(self, value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
        limits = self.observer.quant_min, self.observer.quant_max
        if self.by_channel:
            return torch.fake_quantize_per_channel_affine(value, scale, zero_point, self.observer.ch_axis, *limits)
        return torch.fake_quantize_per_tensor_affine(value, scale, zero_point, *limits)

    def row(self) -> Row | None:
        qparams = self._find()
        if qparams is None:
            return None
        place, side, position = self.at
        scale, zero_point = (one.clone() for one in qparams)
        return Row(*place, side, position, scale, zero_point, self.observer.quant_min, self.observer.quant_max)

    def _find(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        with self.lock, of_torch.lasting():
            qparams = None if self.continued is None else self.continued.qparams()
            if qparams is not None:
                return qparams
            if self.found is None and self.looked:
                scale, zero_point = self.observer.calculate_qparams()
                self.found = scale, zero_point.to(torch.int32)
            return self.found
