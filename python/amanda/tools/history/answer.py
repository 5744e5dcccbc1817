"""The answer of a History: what a user of a training run asks first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .alarms import GRADIENT_NORM, Alarm
from .optimizer_gradients import OPTIMIZER_GRADIENT_NORM
from .rows import Row

MOST_ALARMS = 5


def answer_of(rows: Sequence[Row], alarms: Sequence[Alarm]) -> str:
    """Lines of text. `rows` are by series."""
    scalars = [row for row in rows if row.tool == "scalars"]
    lines = [_course(row.name, row) for row in scalars if "loss" in row.name.lower()]
    lines += [_course("norm of all gradients", row) for row in scalars if row.name == GRADIENT_NORM]
    given = [row for row in scalars if row.name == OPTIMIZER_GRADIENT_NORM]
    if not _same(given, [row for row in scalars if row.name == GRADIENT_NORM]):
        lines += [_course("norm of all gradients as optimizers get them", row) for row in given]
    lines += _ratios([row for row in rows if row.quantity == "update_ratio"])
    if not rows:
        return "no step was looked at"
    more = [f"  and {len(alarms) - MOST_ALARMS} more"] if len(alarms) > MOST_ALARMS else []
    return "\n".join([*lines, f"alarms: {len(alarms) or 'none'}", *(f"  {one}" for one in alarms[:MOST_ALARMS]), *more])


def _course(name: str, row: Row) -> str:
    steps = f"{row.steps} step{'s' * (row.steps != 1)}"
    between = "" if row.min is None else f", between {row.min:.4g} and {row.max:.4g}"
    return f"{name}: from {row.first:.4g} to {row.value:.4g} in {steps}{between}"


def _same(given: Sequence[Row], others: Sequence[Row]) -> bool:
    """True if the optimizers get the gradients of the backward pass: no accumulation, no clipping."""
    pairs: list[tuple[float | None, float | None]] = []
    for one, other in zip(given, others, strict=False):
        pairs += [(one.first, other.first), (one.value, other.value), (one.max, other.max)]
    return bool(pairs) and all(a is not None and b is not None and math.isclose(a, b, rel_tol=1e-3) for a, b in pairs)


def _ratios(rows: Sequence[Row]) -> list[str]:
    known = [row for row in rows if math.isfinite(row.value)]
    if not known:
        return []
    least, most = min(known, key=lambda row: row.value), max(known, key=lambda row: row.value)
    parts = [f"{least.value:.2g} ({least.name})", *([f"{most.value:.2g} ({most.name})"] if most is not least else [])]
    return [f"change of a parameter in its last step, as a part of its norm: {' to '.join(parts)}"]
