"""The comparison of tensors to the bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def same(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))
