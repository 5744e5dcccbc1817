"""Gradients of parameters that are read in C++. Imports torch."""

from __future__ import annotations

from typing import Any

import torch

from amanda.toolkit.native import NativeRoutine, torch_tools

from .parameters import Parameter


class NonzeroRows:
    """Those in the memory of the host. It writes to `Parameter.rows`."""

    def __init__(self) -> None:
        self._native = torch_tools.NonzeroRows()
        self._rows: dict[Parameter, Any] = {}  # where the routine writes
        self._numbered: list[Parameter] = []

    def routine(self, of_others: Any) -> NativeRoutine:
        """A routine before AccumulateGrad. `of_others` is called for a leaf that comes first, and for one that is not
        followed."""
        return NativeRoutine(self._native.routine(), of_others)

    def follow(self, parameter: Parameter, leaf: Any) -> None:
        """A gradient of this parameter was read in Python; the next ones are read here, if that can be."""
        known, rows = self._rows.get(parameter), parameter.rows
        if rows is None and len(parameter.shape) < 2:
            rows = torch.zeros(1, dtype=torch.bool) if known is None else known
        if rows is None or rows is known or rows.device.type != "cpu" or not rows.numel():
            return
        self._rows[parameter] = rows
        self._native.add(len(self._numbered), leaf, rows)
        self._numbered.append(parameter)

    def take(self) -> list[tuple[Parameter, bool]]:
        """The parameters that got a gradient since the last call, and whether it was not zero."""
        return [(self._numbered[number], is_there) for number, is_there in self._native.take()]

    def clear(self) -> None:
        self._native.clear()
        self._rows.clear()
        self._numbered.clear()
