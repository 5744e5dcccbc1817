"""Growth: the operators and owners whose memory becomes more from sample to sample."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .samples import LEAST, LEAST_OF_SIZES, Amount, Group, Sample, Source

UNEVEN = 3.0  # the most by which the growth per step may slow down, or a cache is about to be full
NOTHING = Amount()


class Grown(NamedTuple):
    group: Group
    owner: str
    bytes_per_step: float
    blocks_per_step: float
    bytes: int  # now


def growing(samples: Sequence[Sample]) -> list[Grown]:
    """Finds the operators whose memory grows from sample to sample, in the last three, and its owners."""
    if len(samples) < LEAST:
        return []
    made_by: dict[Source, list[Group]] = {}
    for group in samples[-1].amounts:
        made_by.setdefault(group.source, []).append(group)
    sums = [_by_source(sample) for sample in samples]
    owners = {of_old: _growth_of_owners(samples[-LEAST], samples[-1], of_old) for of_old in (True, False)}
    return [
        one
        for source, groups in made_by.items()
        for one in _grown(samples, [each.get(source, NOTHING) for each in sums], groups, owners)
    ]


def _grown(
    samples: Sequence[Sample],
    all_of_it: Sequence[Amount],
    groups: Sequence[Group],
    owners: Mapping[bool, Mapping[str, int]],
) -> Iterator[Grown]:
    """The owners whose part of the memory has become larger; together they have grown as much as the operator's."""
    first, last = samples[-LEAST], samples[-1]
    is_left_behind = _goes_on([amount.old_blocks for amount in all_of_it[-LEAST:]], _steps(samples))
    if not is_left_behind and not _become_larger([amount.bytes for amount in all_of_it], samples):
        return
    total = _rate(all_of_it[-LEAST], all_of_it[-1], first, last, is_left_behind)
    parts = {}
    for group in groups:
        rate = _rate(first.amounts.get(group, NOTHING), last.amounts[group], first, last, is_left_behind)
        if rate[0] > 0 and owners[is_left_behind][group.owner] > 0:
            parts[group] = rate
    scale = max(total[0], 0) / sum(rate[0] for rate in parts.values()) if parts else 0
    for group, (bytes_per_step, blocks_per_step) in parts.items():
        amount = last.amounts[group]
        owner = next(iter(amount.names)) if len(amount.names) == 1 else group.owner
        if scale:
            yield Grown(group, owner, scale * bytes_per_step, scale * blocks_per_step, amount.bytes)


def _growth_of_owners(first: Sample, last: Sample, of_old: bool) -> collections.Counter[str]:
    """By how many bytes: a variable may have memory of one operator now, and had as much of another one."""
    found: collections.Counter[str] = collections.Counter()
    for sign, sample in ((-1, first), (1, last)):
        for group, amount in sample.amounts.items():
            found[group.owner] += sign * (amount.old_bytes if of_old else amount.bytes)
    return found


def _by_source(sample: Sample) -> dict[Source, Amount]:
    found: dict[Source, Amount] = {}
    for group, amount in sample.amounts.items():
        found.setdefault(group.source, Amount()).add(amount)
    return found


def _rate(before: Amount, after: Amount, first: Sample, last: Sample, of_old: bool) -> tuple[float, float]:
    """Bytes and blocks per step."""
    steps = last.step - first.step
    if of_old:
        return (after.old_bytes - before.old_bytes) / steps, (after.old_blocks - before.old_blocks) / steps
    return (after.bytes - before.bytes) / steps, (after.blocks - before.blocks) / steps


def _steps(samples: Sequence[Sample]) -> list[int]:
    return [sample.step for sample in samples[-LEAST:]]


def _become_larger(sizes: Sequence[int], samples: Sequence[Sample]) -> bool:
    is_rising = all(one < other for one, other in itertools.pairwise(sizes))
    return len(sizes) >= LEAST_OF_SIZES and is_rising and _goes_on(sizes[-LEAST:], _steps(samples))


def _goes_on(values: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether they rise, and lately as fast as before."""
    before, lately = ((values[i + 1] - values[i]) / (steps[i + 1] - steps[i]) for i in (0, 1))
    return before > 0 and lately * UNEVEN >= before
