"""A backward pass: which parameters got a gradient, and which operators. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from amanda.toolkit import Skips, own_work

from .flow import Step
from .nonzero_rows import NonzeroRows
from .parameters import Loss, Parameter, Parameters, nonzero


class Pass:
    """One that runs. Gradients are read on their device; `finish` waits for all at once."""

    def __init__(self, loss: Loss, parameters: Parameters, rows: NonzeroRows, skips: Skips, reads_all: bool) -> None:
        self.loss, self.reads_all = loss, reads_all
        self.reached: dict[Parameter, bool | None] = {}  # whether its gradient is not zero; None if it is undefined
        self._parameters, self._rows, self._skips = parameters, rows, skips
        self._flags: list[tuple[Parameter | Step, Any]] = []
        self._found: dict[Step, bool] = {}
        self._before = {parameter: _state(tensor) for parameter, tensor in parameters.alive()}

    def add_leaf(self, leaf: Any, gradient: Any) -> Parameter | None:
        """A leaf gets its gradient, the sum over all its uses. Returns it, if it is a parameter."""
        parameter = self._parameters.of(leaf)
        if parameter is not None:
            self.reached.setdefault(parameter, None)
            if gradient is not None:
                self._add(parameter, gradient)
                self._rows.follow(parameter, leaf)
        return parameter

    def add_native(self) -> None:
        """Before `look_at_grad`: what was read in C++."""
        for parameter, is_there in self._rows.take():
            self.reached[parameter] = bool(self.reached.get(parameter)) or is_there

    def _add(self, parameter: Parameter, gradient: Any) -> None:
        if parameter.is_covered:  # one for each row has come, and none is read any more
            self.reached[parameter] = True
            return
        values = self._read(gradient, by_row=True)
        if values is None:  # it arrived, and can't be read
            self.reached[parameter] = True
            return
        self._flags.append((parameter, values.any()))
        if values.dim() and values.numel() == parameter.shape[0] and len(parameter.shape) > 1:
            if parameter.rows is None or parameter.rows.shape != values.shape:
                parameter.rows = values
            else:
                parameter.rows |= values.to(parameter.rows.device)

    def look_at_grad(self, alive: Sequence[tuple[Parameter, Any]], *, is_settled: bool) -> None:
        """Before `finish`: autograd has accumulated gradients, and no routine was shown the operator that did. It may be in
        a compiled function, or have no routine any more."""
        for parameter, tensor in alive:
            before = self._before.get(parameter)
            if before is None or (parameter in self.reached and is_settled):
                continue
            has_come = _state(tensor) != before
            if parameter in self.reached:
                parameter.is_told = parameter.is_told and has_come
            elif has_come:
                can_read = not parameter.is_covered and before == _NO_GRADIENT  # else it is a sum with earlier ones
                gradient = tensor.grad if can_read else None
                self.reached[parameter] = True if gradient is None else None
                if gradient is not None:
                    with own_work():
                        self._add(parameter, gradient)

    def add_step(self, step: Step, gradients: Sequence[Any]) -> None:
        """A backward operator of this step runs."""
        self._found.setdefault(step, False)
        for gradient in gradients:
            values = None if gradient is None else self._read(gradient)
            if values is not None:
                self._flags.append((step, values))
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
                values = torch.stack([flag for _, flag in flags]).tolist() if flags[1:] else [flags[0][1].item()]
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
                return nonzero(gradient)
            return self._skips.read(gradient, lambda array, arrays: nonzero(array, by_row=by_row))


def _state(tensor: Any) -> tuple[int, int]:
    """Another one after a gradient has come."""
    gradient = tensor.grad
    return _NO_GRADIENT if gradient is None else (id(gradient), gradient._version)


_NO_GRADIENT = (0, 0)
