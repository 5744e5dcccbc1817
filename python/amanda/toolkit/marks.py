"""Marks: which elements of a tensor an operator has written that writes to some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from amanda.toolkit.arrays import of_torch

__all__ = ["of"]

Given = Mapping[str, Any]


def of(name: str, written: torch.Tensor, given: Given) -> torch.Tensor | None:
    """True for these elements. None if the operator has read the elements that were there: it has computed all that it
    wrote from them.

    Arguments:
        name: of the operator, one of `amanda.toolkit.schemas.WRITES_SOME`.
        written: the tensor; its elements are not read.
        given: the operator's operands, by name.
    """
    if given.get("accumulate") or given.get("reduce") is not None:
        return None
    with of_torch.quietly():
        marks = torch.zeros(written.shape, dtype=torch.bool, device="cpu")
        _MARKING[name](marks, given)
    return marks


def _by_indices(marks: torch.Tensor, given: Given) -> None:
    marks[tuple(map(_index, given["indices"]))] = True


def _index(one: torch.Tensor | None) -> torch.Tensor | slice:
    """As Python writes it."""
    if one is None:
        return slice(None)
    return one.bool() if one.dtype is torch.uint8 else one


def _by_mask(marks: torch.Tensor, given: Given) -> None:
    marks.masked_fill_(given["mask"], True)


def _along(marks: torch.Tensor, given: Given) -> None:
    marks.index_fill_(given["dim"], given["index"], True)


def _scattered(marks: torch.Tensor, given: Given) -> None:
    marks.scatter_(given["dim"], given["index"], True)


def _put(marks: torch.Tensor, given: Given) -> None:
    marks.put_(given["index"], torch.ones_like(given["index"], dtype=torch.bool))


def _on_the_diagonal(marks: torch.Tensor, given: Given) -> None:
    marks.fill_diagonal_(True, given["wrap"])


_MARKING: dict[str, Callable[[torch.Tensor, Given], None]] = {
    "index_put_": _by_indices,
    "_index_put_impl_": _by_indices,
    "index_copy_": _along,
    "index_fill_": _along,
    "masked_fill_": _by_mask,
    "masked_scatter_": _by_mask,
    "scatter_": _scattered,
    "put_": _put,
    "fill_diagonal_": _on_the_diagonal,
}
