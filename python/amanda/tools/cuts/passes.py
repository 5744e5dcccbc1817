"""A backward pass: which parameters got a gradient, and which operators. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from amanda.toolkit import Skips, own_work

from .flow import Step
from .parameters import Loss, Parameter, Parameters, largest


class Pass:
    """One that runs. Gradients are read on their device; `finish` waits for all at once."""

    def __init__(self, loss: Loss, parameters: Parameters, skips: Skips, reads_all: bool) -> None:
        self.loss, self.reads_all = loss, reads_all
        self.reached: dict[Parameter, bool | None] = {}  # whether its gradient is not zero; None if it is undefined
        self._parameters, self._skips = parameters, skips
        self._flags: list[tuple[Parameter | Step, Any]] = []
        self._found: dict[Step, bool] = {}
        self._before = {parameter: _state(tensor) for parameter, tensor in parameters.alive()}

    def add_leaf(self, leaf: Any, gradient: Any) -> None:
        """A leaf gets its gradient, the sum over all its uses."""
        parameter = self._parameters.of(leaf)
        if parameter is None:
            return
        self.reached.setdefault(parameter, None)
        if gradient is None:
            return
        if parameter.is_covered:  # one for each row has come, and none is read any more
            self.reached[parameter] = True
            return
        values = self._read(gradient, by_row=True)
        if values is None:  # it arrived, and can't be read
            self.reached[parameter] = True
            return
        self._flags.append((parameter, values.any()))
        if values.dim() and values.numel() == parameter.shape[0] and len(parameter.shape) > 1:
            rows = values != 0
            known = parameter.rows
            parameter.rows = rows if known is None or known.shape != rows.shape else known | rows.to(known.device)

    def arrived_unseen(self, parameter: Parameter, tensor: Any) -> bool:
        """Autograd has accumulated a gradient, and showed no operator that did: one of a compiled function may have."""
        known = self._before.get(parameter)
        return known is not None and parameter not in self.reached and _state(tensor) != known

    def add_step(self, step: Step, gradients: Sequence[Any]) -> None:
        """A backward operator of this step runs."""
        self._found.setdefault(step, False)
        for gradient in gradients:
            values = None if gradient is None else self._read(gradient)
            if values is not None:
                self._flags.append((step, values.any()))
            elif gradient is not None:
                self._found[step] = True

    def finish(self) -> dict[Step, bool]:
        """Reads what was collected. Returns the steps of which a backward operator ran, and whether a gradient that was
        not zero arrived there."""
        by_device: dict[Any, list[tuple[Parameter | Step, Any]]] = {}
        for subject, flag in self._flags:
            by_device.setdefault(flag.device, []).append((subject, flag))
        for flags in by_device.values():
            with own_work():
                values = torch.stack([flag for _, flag in flags]).tolist()
            for (subject, _), is_there in zip(flags, values, strict=True):
                if isinstance(subject, Step):
                    self._found[subject] = self._found.get(subject, False) or is_there
                else:
                    self.reached[subject] = bool(self.reached[subject]) or is_there
        self._flags.clear()
        return self._found

    def _read(self, gradient: Any, *, by_row: bool = False) -> Any:
        with torch.no_grad():
            if gradient.layout != torch.strided and gradient.layout != torch.jagged:
                return largest(gradient)
            return self._skips.read(gradient, lambda array, arrays: largest(array, by_row=by_row))


def _state(tensor: Any) -> tuple[int, int]:
    """Another one after a gradient has come."""
    gradient = tensor.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)
