"""axes-by-view."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

from amanda import OpContext

from ..gradients import storage
from ..memory import Memory
from ..rule import Rule, operands

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CHANNELS = (3, 4)
_LEAST = 8  # pixels of an axis
MOST = 64  # states that are known


class AxesByView(Rule):
    """A view is taken for a transposition. It reads the same memory in the same order, so that each example gets parts of
    others, or each channel gets parts of all. Two cases are known. The last states of a recurrent layer, of shape (layers,
    N, hidden), become (N, layers * hidden). Or images of shape (N, H, W, 3) become (N, 3, H, W).

    Images must be data, without a gradient, of eight pixels or more in each direction.
    """

    name = "axes-by-view"
    sentence = "a view mixes what a transposition would move"
    fix = "move the axis first: h.transpose(0, 1).reshape(N, -1), images.permute(0, 3, 1, 2)"
    ops = ("view", "reshape", *_RECURRENT)
    bad = """
        _, state = nn.GRU(4, 8, num_layers=2, batch_first=True)(torch.randn(3, 5, 4))
        state.view(3, 16).sum().backward()
    """
    good = """
        _, state = nn.GRU(4, 8, num_layers=2, batch_first=True)(torch.randn(3, 5, 4))
        state.view(2, 1, 3, 8).transpose(0, 2).reshape(3, 16).sum().backward()
        torch.randn(2, 9, 10, 3).permute(0, 3, 1, 2).reshape(2, 3, 9, 10)
        torch.randn(2, 9 * 10 * 3).view(2, 3, 9, 10)
    """

    def begin(self) -> None:
        self._states: list[Memory] = []  # of recurrent layers

    def look(self, context: OpContext) -> None:
        if context.op.__name__ in _RECURRENT:
            context.insert_after_op(self._on_states, outputs=[1])
            return
        given = operands(context)
        before, size = given["self"], given.get("shape", given.get("size"))
        if size is None or before.is_nested or not before.is_contiguous():
            return
        shape, after = tuple(before.shape), _sizes(size, before.numel())
        if _mixes_states(shape, after) and any(one.is_of(before) for one in self._states):
            what = f"states of {shape[0]} layers or directions for {shape[1]} examples"
            self.found_in(context, f"{what}, {shape}, become {after}")
        elif _mixes_channels(shape, after) and not before.requires_grad:
            self.found_in(context, f"{shape} becomes {after}")

    def _on_states(self, states: Any) -> None:
        if storage(states) is not None:
            self._states = [*self._states[1 - MOST :], Memory(states)]


def _sizes(size: Sequence[Any], count: int) -> tuple[int, ...]:
    known = math.prod(one for one in size if one != -1)
    return tuple(int(one) if one != -1 else count // max(known, 1) for one in size)


def _mixes_states(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """The axis of examples is the second one before, and the first one after. It is kept where only the other axes are
    split or merged: (4, 2, hidden) as (2, 2, 2, hidden)."""
    if len(before) != 3 or len(after) < 2 or before[0] == 1 or before[0] == before[1]:
        return False
    ends = set(itertools.accumulate(after, operator.mul))
    is_kept = ends.issuperset(itertools.accumulate(before[:2], operator.mul))
    return after[0] == before[1] and after[0] != 1 and not is_kept


def _mixes_channels(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """(..., H, W, C) becomes (..., C, H, W), where the axes before H may be merged."""
    if len(before) < 3 or len(after) < 3 or before[-1] not in _CHANNELS:
        return False
    height, width, channels = before[-3:]
    return after[-3:] == (channels, height, width) and min(height, width) >= _LEAST
