"""Masks: infinities that the program means. It writes them, operators pass them on, and a reduction of rows that have a
finite element gives finite results. Imports torch: import it where an operator ran."""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Sequence
from typing import Any

import torch

from . import elements

Named = Sequence[tuple[str, Any]]

_MOVES = {
    *("clone", "to", "_to_copy", "contiguous", "type", "type_as", "reshape", "reshape_as", "flatten", "ravel", "copy_"),
    *("cat", "concat", "concatenate", "stack", "hstack", "vstack", "repeat", "tile", "repeat_interleave", "block_diag"),
    *("index", "index_select", "gather", "take", "take_along_dim", "masked_select", "masked_fill", "masked_fill_"),
    *("where", "scatter", "scatter_", "slice_scatter", "select_scatter", "index_put", "index_put_", "_index_put_impl_"),
    *("index_copy", "index_copy_", "index_fill", "index_fill_", "masked_scatter", "masked_scatter_", "diag", "pad"),
    *("tril", "tril_", "triu", "triu_", "roll", "flip", "rot90", "sort", "topk", "constant_pad_nd", "embedding"),
    *("log_softmax", "_log_softmax", "dropout", "expand_copy", "broadcast_to", "fill", "fill_"),
}
"""Operators whose results have elements of an input, in addition to those that PyTorch calls pointwise."""
_ROWS = {"softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "max", "amax"}
"""Reductions along `dim` that ignore -inf."""
_ADDS = {"add", "add_", "sub", "sub_"}


def written(inputs: Named, constants: Container[str] = ()) -> str:
    """The infinite number that the program wrote as an operand, in words; "" if there is none."""
    for name, value in inputs:
        number = value.item() if name in constants else value
        if isinstance(number, float) and math.isinf(number):
            return f"{number} for {name}"
    return ""


def lowest(name: str, outputs: Named, inputs: Named) -> str:
    """A mask of the dtype's least number, to which another negative one was added."""
    for _, result in outputs if name in _ADDS else ():
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            continue
        least, bad = torch.finfo(result.dtype).min, result == -torch.inf
        for operand, value in inputs:
            is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
            values = elements.like(value, bad) if is_tensor else None
            if values is not None and bool((values[bad] <= 0.99 * least).all()) and bool(bad.any()):
                return f"{operand} is a mask of {least:.4g}, the least number of {str(result.dtype).removeprefix('torch.')}"
    return ""


def passes_on(name: str, has_dim: bool) -> bool:
    """True if an operator of this name, without namespace, passes a mask on. `has_dim`: it works along a dimension."""
    return name in _MOVES or (not has_dim and _is_pointwise(name))


@functools.lru_cache(maxsize=1024)
def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


def wholly_masked(name: str, inputs: Named, bad: torch.Tensor) -> str:
    """ "rows 3 to 7 are wholly masked", if the result is not finite there and nowhere else; or ""."""
    named = dict(inputs)
    if name.startswith("scaled_dot_product_attention"):
        return _masked_rows(named.get("input attn_mask"), -1, bad.any(-1), " of input attn_mask")
    return _masked_rows(named.get("input self"), named.get("input dim"), bad) if name in _ROWS else ""


def _masked_rows(mask: Any, dim: Any, bad: torch.Tensor, of: str = "") -> str:
    """`bad`: it has an element for each of the mask, or for each row."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not isinstance(mask, torch.Tensor) or not mask.dim() or not dims or not all(type(one) is int for one in dims):
        return ""
    hidden = ~mask if mask.dtype is torch.bool else mask == -torch.inf
    return elements.wholly_masked(hidden, dims, bad, of)
