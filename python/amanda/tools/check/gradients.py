"""Gradients that an optimizer's step has used: whether they are still there, and whether something was added to them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

SAMPLED = 2


class Used:
    """A parameter's gradient as it was after a step. It keeps neither alive."""

    def __init__(self, parameter: Any) -> None:
        gradient = parameter.grad
        self._parameter, self._gradient = weakref.ref(parameter), weakref.ref(gradient)
        self.version = version(gradient)
        self._is_seen = False
        self.is_handled = False  #: the program has cleared it, or changed it before anything was added

    @property
    def gradient(self) -> Any:
        """The gradient, if it is still that of the parameter; else None."""
        parameter, gradient = self._parameter(), self._gradient()
        return gradient if parameter is not None and gradient is not None and parameter.grad is gradient else None

    @property
    def name(self) -> str:
        return name_of(self._parameter())

    def see(self) -> None:
        """To be called before a backward pass: a change before the first one is the program's."""
        if not self._is_seen:
            self._is_seen = True
            self.is_handled = self.is_handled or not self.is_unchanged

    @property
    def is_unchanged(self) -> bool:
        gradient = self.gradient
        return gradient is not None and version(gradient) == self.version and not self.is_handled

    @property
    def was_added_to(self) -> bool:
        """It was not cleared, and something was added to it."""
        gradient = self.gradient
        return gradient is not None and version(gradient) > self.version and not self.is_handled


def sampled(parameters: Sequence[Any]) -> list[Used]:
    """The gradients of two parameters that have one, far apart if possible."""
    apart = [one for one in (parameters[0], parameters[-1]) if one.grad is not None]
    if len(apart) < SAMPLED:
        apart = list(itertools.islice((one for one in parameters if one.grad is not None), SAMPLED))
    return [Used(one) for one in apart]


def version(tensor: Any) -> int:
    """0 for a tensor that has none, of inference mode."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return 0


def storage(tensor: Any) -> int | None:
    """The identity of its memory; None for a tensor without, as a sparse one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def first(tensor: Any, count: int = 64) -> Any:
    """A copy of its first elements."""
    return tensor.reshape(-1)[:count].clone()


def name_of(parameter: Any) -> str:
    """ "0.weight"."""
    from amanda.toolkit.torch import parameter_name

    return parameter_name(parameter) or "a parameter"


def names(parameters: Iterable[Any], most: int = 3) -> str:
    """ "0.weight, 0.bias and 12 more"."""
    from amanda.toolkit.torch import parameter_name

    return few([parameter_name(one) or f"one of shape {tuple(one.shape)}" for one in parameters], most)


def few(found: Sequence[str], most: int = 3) -> str:
    """ "0.weight, 0.bias and 12 more"."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"
