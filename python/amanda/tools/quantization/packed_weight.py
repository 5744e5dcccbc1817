"""A weight in the form that PyTorch's quantized kernels take."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.ao.nn.quantized.modules.utils import _quantize_weight  # what quantize_dynamic and convert call
from torch.utils.weak import WeakIdRef

from amanda import Error
from amanda.toolkit import locks
from amanda.toolkit.arrays import of_torch

from .ranges import MakeObserver
from .rows import OperandPlace, Row


@dataclasses.dataclass(eq=False)
class PackedWeight:
    at: OperandPlace
    make_observer: MakeObserver
    packed: Any = None  # a torch.ScriptObject
    version: tuple[Hashable, ...] = (None,)  # of what was packed
    described: Row | None = None
    lock: threading.Lock = dataclasses.field(default_factory=locks.lock)  # guards the last three fields

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None, prepack: Callable[..., Any], *args: Any) -> Any:
        """``prepack(quantized_weight, bias, *args)``: the same object as long as nothing of that changes."""
        weight, bias = of_torch.plain(weight), None if bias is None else of_torch.plain(bias)
        version = (_version(weight), bias is None or _version(bias), str(args))
        with self.lock, torch.no_grad(), of_torch.untransformed():
            if None in version or version != self.version:
                self.packed, self.version = self._prepack(weight, bias, prepack, *args), version
            return self.packed

    def row(self) -> Row | None:
        with self.lock:
            return self.described

    def _prepack(self, weight: torch.Tensor, bias: torch.Tensor | None, prepack: Callable[..., Any], *args: Any) -> Any:
        if torch.backends.quantized.engine == "none":
            raise Error(
                "[quantization] PyTorch has no engine for quantized operators here; set torch.backends.quantized.engine "
                f"to one of {torch.backends.quantized.supported_engines}"
            )
        observer: Any = self.make_observer()
        observer(weight)
        quantized = _quantize_weight(weight.float(), observer)
        scale, zero_point = observer.calculate_qparams()
        place, side, position = self.at
        self.described = Row(*place, side, position, scale, zero_point, observer.quant_min, observer.quant_max)
        return prepack(quantized, None if bias is None else bias.float(), *args)


def _version(tensor: torch.Tensor) -> Hashable:
    """Changes with the elements, as far as autograd counts; None if it does not count them."""
    owner = tensor if tensor._base is None else tensor._base
    if owner.is_inference():
        return None
    return WeakIdRef(owner), owner._version, tensor.data_ptr(), tensor.shape, tensor.stride()
