"""Tolerances: how far a result may be from the reference's. Difference: how far one is. They are for any framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

# The rtol and atol of torch.testing.assert_close.
_DEFAULTS = {
    "bfloat16": (1.6e-2, 1e-5),
    **dict.fromkeys(("float16", "complex32"), (1e-3, 1e-5)),
    **dict.fromkeys(("float32", "complex64"), (1.3e-6, 1e-5)),
    **dict.fromkeys(("float64", "complex128"), (1e-7, 1e-7)),
}
_INEXACT = ("float", "bfloat", "complex")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Between a result and the reference's."""

    dtype: str
    shape: tuple[int, ...] | None  # None, as the next ones: its elements are not known
    elements: int | None  # that differ by more than is tolerated
    max_abs: float | None  # None if shapes differ
    max_rel: float | None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """Differences up to ``atol + rtol * abs(reference)`` are tolerated. By default, they are 0 within a dtype. Between
    dtypes, they are those of `torch.testing.assert_close` for the coarser one; with `close`, within a dtype, too."""

    rtol: float | None = None
    atol: float | None = None
    close: bool = False

    def of(self, dtypes: Iterable[str]) -> tuple[float, float]:
        """`dtypes`: as "float32"."""
        dtypes = {dtype for dtype in dtypes if dtype.startswith(_INEXACT)}
        default = (0.0, 0.0)
        if dtypes and (self.close or len(dtypes) > 1):
            rtols, atols = zip(*(_DEFAULTS.get(dtype, (0.0, 0.0)) for dtype in dtypes), strict=True)
            default = max(rtols), max(atols)
        return default[0] if self.rtol is None else self.rtol, default[1] if self.atol is None else self.atol
