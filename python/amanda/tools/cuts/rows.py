"""Rows and findings, of what is known of each parameter."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from amanda.toolkit import Place
from amanda.toolkit.tables import Column, Grouping, fields_of, number_column

from .cut import Cut, Finding, Verdict, at
from .reasons import REASONS

if TYPE_CHECKING:
    from .parameters import Parameter, Parameters

GroupBy = Literal["parameter"]
_NOWHERE = Place(None, "", "", "")


@dataclasses.dataclass(frozen=True)
class Row:
    """A parameter that requires a gradient. `last` and `end` are of its first cut."""

    name: str  # of the parameter
    verdict: Verdict
    is_finding: bool
    reason: str  # a key of `amanda.tools.cuts.reasons.REASONS`; "" for what is right
    text: str  # the same in words, with operators
    last: str  # the last operator whose result depends on it by autograd: "aten::relu"; ""
    last_module: str
    last_source: str
    end: str  # the first operator at which the path ends; ""
    end_module: str
    end_source: str
    passes: int  # backward passes in which it could have got a gradient
    gradients: int  # that were not zero
    zeros: int
    idle: int  # indices of the first dimension that have never got one
    elements: int  # 0 if it is not known


def rows_of(parameters: Parameters) -> list[Row]:
    """Those that are not trained first."""
    rows = [_row(parameters, one) for one in parameters.all() if one.counts or one.handed_out]
    return sorted(rows, key=lambda row: (not row.is_finding, row.verdict == "ok"))


def findings_of(parameters: Parameters) -> list[Finding]:
    """In the order of the model."""
    groups: dict[tuple[Verdict, tuple[Cut, ...]], list[Parameter]] = {}
    for one in parameters.all():
        verdict, cuts, is_finding = _judged(parameters, one)
        if is_finding:
            groups.setdefault((verdict, cuts), []).append(one)
    return [
        Finding(
            verdict,
            tuple(one.name for one in group),
            cuts,
            max(one.sum("passes") for one in group),
            any(len(one.shape) > 1 for one in group),
        )
        for (verdict, cuts), group in groups.items()
    ]


def _judged(parameters: Parameters, one: Parameter) -> tuple[Verdict, tuple[Cut, ...], bool]:
    verdict = one.verdict
    if not one.counts and not one.handed_out:
        return verdict, (), False
    reason = parameters.not_updated(one)
    if verdict in ("none", "zero"):
        cuts = one.cuts()
        meant = bool(cuts) and all(cut.is_meant for cut in cuts)
        if not (meant and reason == "optimizer"):  # else it stays as it is, whatever its gradients become
            return verdict, cuts, parameters.is_meant(one) and not meant
    if reason:
        return "not updated", (Cut(reason, REASONS[reason], None, None),), True
    return verdict, (), False


def _row(parameters: Parameters, one: Parameter) -> Row:
    verdict, cuts, is_finding = _judged(parameters, one)
    last = cuts[0].last or _NOWHERE if cuts else _NOWHERE
    end = cuts[0].end or _NOWHERE if cuts else _NOWHERE
    elements = 1
    for size in one.shape:
        elements *= size
    return Row(
        one.name,
        verdict,
        is_finding,
        cuts[0].reason if cuts else "",
        "; ".join(map(str, cuts)),
        *last[1:],
        *end[1:],
        passes=one.sum("passes"),
        gradients=one.sum("gradients") + one.handed_out,
        zeros=one.sum("zeros"),
        idle=one.idle_rows(),
        elements=elements,
    )


def _ends(row: Row) -> str:
    return at(Place(None, row.end, row.end_module, row.end_source)) if row.end else ""


GROUPINGS = {
    "parameter": Grouping(
        [
            Column("parameter", lambda row: str(row.name), left=True, folds=True, field="name"),
            Column("verdict", lambda row: str(row.verdict), left=True, field="verdict"),
            Column("reason", lambda row: str(row.reason), left=True, field="reason"),
            Column("path ends at", _ends, left=True, folds=True, field="end"),
            number_column("passes", "passes"),
            number_column("gradients", "gradients"),
            number_column("zero", "zeros"),
            number_column("idle rows", "idle"),
        ],
        fields_of(Row),
    )
}
