"""LossScales: by what `torch.amp.GradScaler` has multiplied the gradients of each parameter."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amanda import OpContext
from amanda.toolkit.loss_scaling import calling_scaler

UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"
Variables = Callable[[], Iterable[tuple[str, Any]]]


class LossScales:
    """The factors of losses in one step. `variables`: the parameters whose gradients are known, with their names."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._scalers: dict[str, weakref.ref[Any]] = {}  # by parameter: the one that unscales it
        self._scales: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # of this step, by scaler
        self._has_unscaled = False

    def analyze(self, context: OpContext) -> None:
        """An analysis routine of all operators."""
        name = context.op.__name__
        if name == UNSCALES:
            context.insert_before_op(self._on_unscale, inputs=["self"])
        elif name == "mul" and calling_scaler() is not None:
            context.insert_before_op(self._on_scale, inputs=[])

    def begin(self) -> None:
        self._scales.clear()
        self._has_unscaled = False

    def of(self, parameter: str) -> float | None:
        """The factor of a parameter's gradient. None if no scaler had to do with it."""
        known = self._scalers.get(parameter)
        scaler = None if known is None else known()
        if scaler is not None:
            return self._scales.get(scaler)
        if self._has_unscaled or len(self._scales) != 1:
            return None
        return next(iter(self._scales.values()))  # gradients are accumulated, and were never unscaled yet

    @property
    def common(self) -> float:
        """The common factor of all gradients of the step; 1 if losses were scaled in different ways."""
        values = set(self._scales.values())
        return values.pop() if len(values) == 1 else 1.0

    def _on_scale(self) -> None:
        scaler = calling_scaler()
        if scaler is not None:
            self._scales[scaler] = scaler.get_scale()

    def _on_unscale(self, gradients: Sequence[Any]) -> None:
        scaler = calling_scaler()
        if scaler is None:
            return
        self._scales[scaler] = scaler.get_scale()
        self._has_unscaled = True
        own = {_address(gradient) for gradient in gradients}
        for name, variable in self._variables():
            if variable.grad is not None and _address(variable.grad) in own:
                self._scalers[name] = weakref.ref(scaler)


def _address(gradient: Any) -> object:
    try:
        return gradient.data_ptr() or id(gradient)
    except RuntimeError:  # it has no memory of its own, such as a sparse one
        return id(gradient)
