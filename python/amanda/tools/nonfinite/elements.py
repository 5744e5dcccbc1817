"""Which elements are not finite, in few words. For arrays of any framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from amanda.toolkit.arrays import known

MOST_ELEMENTS = 1 << 22  # of a tensor whose indices are listed
MOST_INDICES = 4  # that are listed


class Kinds(NamedTuple):
    """The kinds of elements that are not finite."""

    nan: bool = False
    positive: bool = False  # infinite
    negative: bool = False

    def __bool__(self) -> bool:
        return self.nan or self.positive or self.negative

    def __str__(self) -> str:
        names = zip(("NaN", "inf", "-inf"), self, strict=True)
        return " and ".join(name for name, is_there in names if is_there)


def kinds_of(values: Any) -> Kinds:
    """The kinds in an array that can be read."""
    arrays = known(values)
    if not (arrays.is_floating(values) or arrays.is_complex(values)):
        return Kinds()
    values = _real(values)
    if bool(arrays.xp.isfinite(values).all()):
        return Kinds()
    found = arrays.xp.isnan(values), values == math.inf, values == -math.inf
    return Kinds(*(bool(one.any()) for one in found))


def _real(values: Any) -> Any:
    """Values that all kernels here know: of complex ones both parts."""
    arrays = known(values)
    values = arrays.as_reals(arrays.detached(values))
    return values if values.itemsize > 1 else arrays.cast(values, arrays.xp.float32)  # float8


def together(kinds: Iterable[Kinds]) -> Kinds:
    found = [*kinds]
    return Kinds(*(any(one[i] for one in found) for i in range(3)))


def described(values: Any, kinds: Kinds) -> str:
    """ "-inf at [3, :2], 2 of 40 elements". If there are NaNs and infinities, it is about the NaNs."""
    arrays, elements = known(values), math.prod(values.shape)
    if elements == 1:
        return str(kinds)
    real = _real(values)
    bad = arrays.xp.isnan(real) if kinds.nan else ~arrays.xp.isfinite(real)
    bad = bad.any(-1) if arrays.is_complex(values) else bad
    count = int(bad.sum())
    others = kinds._replace(nan=False) if kinds.nan else Kinds()
    also = f", and {others}" if others else ""
    if count == elements:
        return f"{kinds} at all {elements} elements"
    return f"{Kinds(nan=True) if kinds.nan else kinds} at {places(bad)}, {count} of {elements} elements{also}"


def places(bad: Any) -> str:
    """The indices of the true elements, as Python slices where they are a block: "[3, :2]"."""
    along = _along(bad)
    ranges = [_range(indices, size) for indices, size in zip(along, bad.shape, strict=True)]
    count = int(bad.sum())
    if math.prod(map(len, along)) == count and None not in ranges:
        return f"[{', '.join(map(str, ranges))}]"
    if math.prod(bad.shape) > MOST_ELEMENTS:
        return f"places in [{_bounds(along)}]"
    listed = ", ".join(map(str, known(bad).xp.argwhere(bad)[:MOST_INDICES].tolist()))
    return listed if count <= MOST_INDICES else f"{listed} and {count - MOST_INDICES} more in [{_bounds(along)}]"


def _bounds(along: list[list[int]]) -> str:
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]}:{one[-1] + 1}" for one in along)


def wholly_masked(hidden: Any, dims: Sequence[int], bad: Any, of: str = "") -> str:
    """ "rows 3 to 7 are wholly masked", if the result is not finite there and nowhere else; or "".

    `hidden`: the masked elements; `dims`: those of a row; `bad`: where the result is not finite, an element for each of
    the mask, or for each row; `of`: " of input mask"."""
    rank, by_row = len(hidden.shape), hidden.all(tuple(dims))
    along = {dim % rank for dim in dims}
    whole = by_row.reshape([1 if dim in along else size for dim, size in enumerate(hidden.shape)])
    covered = like(whole if len(bad.shape) == rank and not of else by_row, bad)
    if covered is None or not bool(whole.any()) or bool((bad & ~covered).any()):
        return ""
    columns = rank == 2 and along == {0}
    return f"{rows(by_row, 'column' if columns else 'row')}{of} wholly masked"


def rows(whole: Any, word: str = "row") -> str:
    """The true elements of an array that has one for each row: "rows 3 to 7 are", "row 0 of [1, :] is"."""
    count = math.prod(whole.shape)
    if count == 1:
        return f"the only {word} is"
    if bool(whole.all()):
        return f"all {count} {word}s are"
    along = _along(whole)
    ranges = [_range(indices, size) for indices, size in zip(along[:-1], whole.shape[:-1], strict=True)]
    if math.prod(map(len, along)) != int(whole.sum()) or None in ranges:
        return f"{word}s {places(whole)} are"
    of = f" of [{', '.join(map(str, ranges))}]" if ranges else ""
    return f"{word}{_numbers(along[-1])}{of} {'is' if len(along[-1]) == 1 else 'are'}"


def _along(bad: Any) -> list[list[int]]:
    """For each dimension, the indices at which there is a true element."""
    dims, argwhere = range(len(bad.shape)), known(bad).xp.argwhere
    by_dim = [bad.any(tuple(other for other in dims if other != dim)) if len(dims) > 1 else bad for dim in dims]
    return [argwhere(one).reshape(-1).tolist() for one in by_dim]


def _range(indices: list[int], size: int) -> str | None:
    """As a slice; None if they are none."""
    if len(indices) == 1 and size > 1:
        return str(indices[0])
    first, stop = indices[0], indices[-1] + 1
    if stop - first != len(indices):
        return None
    return f"{first or ''}:{stop if stop < size else ''}"


def _numbers(indices: list[int]) -> str:
    """ " 3", "s 3 to 7", "s 0 and 2"."""
    if len(indices) == 1:
        return f" {indices[0]}"
    if indices[-1] - indices[0] + 1 == len(indices) > 2:
        return f"s {indices[0]} to {indices[-1]}"
    shown = [str(one) for one in indices[: 2 * MOST_INDICES]]
    more = len(indices) - len(shown)
    return f"s {', '.join(shown)} and {more} more" if more else f"s {', '.join(shown[:-1])} and {shown[-1]}"


def like(values: Any, other: Any) -> Any:
    """The values, one for each element of `other`; None if they have another shape."""
    try:
        return known(values).xp.broadcast_to(values, tuple(other.shape))
    except (RuntimeError, ValueError):
        return None
