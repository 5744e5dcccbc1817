"""ParameterView: which part of which parameter an operator has as its weight."""

from __future__ import annotations

import weakref

import torch

from amanda.toolkit.arrays import of_torch


class ParameterView:
    """A weight that is a parameter, or a view of one (``weight.t()``, a slice). It keeps neither alive.

    The view is described by its place in the parameter as that lies in memory now, so it stays right if the parameter
    is converted later (`model.double()`, `model.to(memory_format=...)`).
    """

    def __init__(self, parameter: torch.Tensor, view: torch.Tensor, name: str) -> None:
        self.name = name  # of the parameter in its model
        self.shape = view.shape
        self._parameter = weakref.ref(parameter)
        self._layout = parameter.shape, parameter.stride()
        self._shown = view.shape, view.stride(), view.storage_offset() - parameter.storage_offset()
        self._is_whole = view is parameter
        self.is_part = view.numel() < parameter.numel()
        self.key = id(parameter), self._shown  # equal for equal views, while the parameter exists

    @classmethod
    def of(cls, weight: torch.Tensor, name: object) -> ParameterView | None:
        """The view of a weight; None if the weight is computed, or no parameter."""
        parameter = weight if weight._base is None else weight._base
        is_leaf = isinstance(parameter, torch.nn.Parameter) or (parameter.is_leaf and parameter.requires_grad)
        repeats = any(stride == 0 and size > 1 for size, stride in zip(weight.shape, weight.stride(), strict=True))
        if not is_leaf or repeats or parameter.dtype != weight.dtype:
            return None
        return cls(parameter, weight, name if isinstance(name, str) else "a parameter without a name")

    def moved_to(self, weight: torch.Tensor) -> ParameterView | None:
        """The part that an operator has now, if it is another one of the same parameter; else None."""
        other = ParameterView.of(weight, self.name)
        return None if other is None or other.key == self.key or other.parameter() is not self.parameter() else other

    def parameter(self) -> torch.Tensor | None:
        """The parameter; None if it no longer exists."""
        return self._parameter()

    def current(self) -> torch.Tensor | None:
        """The weight as it is now, detached; None if the parameter no longer exists."""
        parameter = self.parameter()
        return None if parameter is None else self.part_of(of_torch.plain(parameter).detach())

    def part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part that the view shows, of a tensor in the parameter's shape."""
        if self._is_whole:
            return tensor
        return tensor.new_empty_strided(*self._layout).copy_(tensor).as_strided(*self._shown)

    def spread(self, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor in the parameter's shape that has `part` where the view shows it; and True there, False elsewhere."""
        whole = part.new_empty_strided(*self._layout).fill_(1)
        shown = torch.zeros_like(whole, dtype=torch.bool)
        whole.as_strided(*self._shown).copy_(part)
        shown.as_strided(*self._shown).fill_(True)
        return whole, shown
