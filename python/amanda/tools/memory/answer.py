"""The answer of PeakMemory: how much there was, whether it grows, which line made most of it, and what kept that."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from amanda.toolkit.answers import percent, size
from amanda.toolkit.frames import line_of_code

from .growth import Growth
from .memory_growth import MemoryGrowth
from .rows import Held, keepers

LEAST_GRAPHS = 5  # of a function
REPEATED = 3  # results of one operator that are alive at once: the program keeps them


def answer_of(
    held: Sequence[Held],
    peaks: Mapping[str, int],
    growth: Growth,
    owners: MemoryGrowth | None = None,
    unknown: str = "",
    traced: tuple[str, int, str] | None = None,
) -> str:
    """`held`: at the peak; `peaks`: bytes, by device; `owners`: of what grows, if they were searched for; `unknown`: what
    is not counted, if the bytes are a part of what there was. `traced`: the function that got most graphs, how
    many, and what would help."""
    if not held:
        return "no memory was allocated"
    grows = [str(growth), _kept(held), _traced(traced, growth)] if owners is None else [owners.answer()]
    return "\n".join(
        filter(None, [*grows, *(_peak(held, *peak, least=bool(unknown)) for peak in peaks.items()), unknown])
    )


def _peak(held: Sequence[Held], device: str, peak: int, *, least: bool) -> str:
    here = [block for block in held if block.device == device]
    kind, _ = _most(here, "kind")
    line, of_line = _most([block for block in here if block.kind == kind], "source")
    of_kind = sum(block.bytes for block in here if block.kind == kind)
    kept = keepers(block.kept_by for block in here if block.kind == kind and block.source == line)
    where = f", {size(of_line)} of that made at {line_of_code(line)}" if line else ""
    by = f" and kept by {kept}" if where and kept and kind != "parameter" else ""
    what = {"other": "other memory", "temporary": "temporary memory", "optimizer state": "the state of optimizers"}
    most = f"{'at least ' * least}{size(peak)} at the peak"
    return f"{device}: {most}, {percent(of_kind / peak)} of it {what.get(kind, f'{kind}s')}{where}{by}"


def _kept(held: Sequence[Held]) -> str:
    """The operator whose results the program keeps, run after run, if it is so."""
    groups: dict[tuple[str, str], list[Held]] = collections.defaultdict(list)
    for block in held:
        if block.op_id is not None and block.is_kept:
            groups[block.name, block.source].append(block)
    repeated = [blocks for blocks in groups.values() if len(blocks) >= REPEATED]
    most = max(repeated, key=lambda blocks: sum(block.bytes for block in blocks), default=None)
    total = sum(block.bytes for block in held)
    if most is None or sum(block.bytes for block in most) < total / 20:
        return ""
    kept = keepers(block.kept_by for block in most)
    return (
        f"{len(most):,} results of {most[0].name} at {line_of_code(most[0].source)} are in memory at once, "
        f"{size(sum(block.bytes for block in most))}{f', kept by {kept}' if kept else '; the program keeps them'}"
    )


def _traced(traced: tuple[str, int, str] | None, growth: Growth) -> str:
    """The function that TensorFlow traces again and again, if there is one."""
    name, count, hint = traced or ("", 0, "")
    if count < LEAST_GRAPHS or 2 * count < growth.steps or not growth.steps:
        return ""
    return (
        f"the function {name} is traced again and again: it got {count:,} graphs in {growth.steps:,} steps of an "
        f"optimizer, whose memory is not counted; {hint}"
    )


def _most(held: Sequence[Held], field: str) -> tuple[str, int]:
    sums: collections.Counter[str] = collections.Counter()
    for block in held:
        sums[getattr(block, field)] += block.bytes
    return next(iter(sums.most_common(1)), ("", 0))
