"""The answer of MemoryGrowth."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from amanda.toolkit.answers import ordinal, percent, size
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import line_of_code

from .leak_rows import NOBODY, LeakRow
from .samples import LEAST, LEAST_OF_SIZES, Sample, is_rising
from .values import hint_of

LEAST_STEPS = 4  # for three samples
NOTABLE = 1000  # bytes per step
NOTABLE_SHARE = 0.005  # of what is in use, in programs that are small
LEAST_NOTABLE = 64  # bytes per step: less is numbers that the program collects
MOST_SAVERS = 2
MOST_ROWS, LEAST_SHARE = 3, 0.05  # that are named


def answer_of(samples: Sequence[Sample], rows: Sequence[LeakRow], step: str, steps: int) -> str:
    """`rows`: by owner."""
    if not step:
        return "whether memory grows is not known: no optimizer has stepped, and no module with parameters was called"
    if len(samples) < LEAST:
        return (
            f"whether memory grows is not known: {LEAST_STEPS} steps have to end, here {step}, and "
            f"{'none has' if not steps else f'{steps} have' if steps > 1 else 'one has'}"
        )
    first, last = samples[-LEAST], samples[-1]
    grown = sum(row.bytes_per_step for row in rows)
    graphs = [text for each in (_graphs, _traces, _written) if (text := each(samples, step))]
    if _is_notable(grown, first):
        how = [f"memory in use grows by {size(grown)} per {step}, {_kept(rows[0])}"]
        how += map(_kept, [row for row in rows[1:MOST_ROWS] if row.share >= LEAST_SHARE])
    elif rows:
        how = [f"memory in use hardly grows: {size(grown)} per {step}, {_kept(rows[0])}"]
    elif is_rising(samples):
        how = [_unknown(samples, step)]
    else:
        how = [f"no {'other ' * bool(graphs)}memory was found to grow from {step} to {step}"]
    lines = ["; ".join(how), _seen(first, last, step, steps)]
    return "\n".join(filter(None, [*lines, *graphs] if rows or is_rising(samples) else [*graphs, *lines]))


def _unknown(samples: Sequence[Sample], step: str) -> str:
    few = (
        f": blocks that become larger are found by {LEAST_OF_SIZES} searches, and {len(samples)} were made"
        if len(samples) < LEAST_OF_SIZES
        else ""
    )
    return f"more memory is in use from {step} to {step}, and what grows is not known{few}"


def _seen(first: Sample, last: Sample, step: str, steps: int) -> str:
    """How much was in use, and what was looked at."""
    blocks = sum(amount.blocks for amount in last.amounts.values())
    of = "" if last.step == steps else f" of {steps:,}"
    unfinished = (
        "" if first.is_complete and last.is_complete else "; the search for owners had no time to look at all objects"
    )
    return (
        f"in use: {size(first.live_bytes)} after the {ordinal(first.step)} {step}, {size(last.live_bytes)} after the "
        f"{ordinal(last.step)}{of}; looked at: the owners of {counted(blocks, 'block')} that operators have made since "
        f"the first step{unfinished}"
    )


def _is_notable(grown: float, sample: Sample) -> bool:
    return grown >= NOTABLE or (grown > LEAST_NOTABLE and grown >= NOTABLE_SHARE * sample.live_bytes)


def _kept(row: LeakRow) -> str:
    share = "all of it" if row.share > 0.995 else f"{percent(row.share)} of it"
    line = f", made at {line_of_code(row.user_line)}" if row.user_line else ""
    savers = row.saved_by.split(", ") if row.saved_by else []
    more = f" and {len(savers) - MOST_SAVERS} more" if len(savers) > MOST_SAVERS else ""
    saved = f", saved by {', '.join(savers[:MOST_SAVERS])}{more}" if savers else ""
    by = "by no object of Python that was found" if row.name == NOBODY else f"by {row.name}"
    return f"{share} kept {by}{saved}{line}"


def _graphs(samples: Sequence[Sample], step: str) -> str:
    """Graphs that grow without holding memory of PyTorch's allocators: their nodes are in memory, too."""
    owner, count = _most_grown([sample.nodes for sample in samples], samples)
    if not count:
        return ""
    nodes = counted(count, "node")
    return f"{owner} grows by {nodes} per {step}, each of some hundred bytes that PyTorch's allocators do not report"


def _traces(samples: Sequence[Sample], step: str) -> str:
    """Functions that are traced again and again: TensorFlow keeps each graph."""
    name, count = _most_grown([sample.traces for sample in samples], samples)
    if not count:
        return ""
    return (
        f"the function {name} is traced again: it has {counted(count, 'graph')} more per {step}, whose memory is not "
        f"counted; {hint_of(name)}"
    )


def _written(samples: Sequence[Sample], step: str) -> str:
    """The graph of a session, to which the program adds operators."""
    line, count = _most_grown([sample.written for sample in samples], samples)
    if not count:
        return ""
    operators = counted(count, "operator")
    return (
        f"the graph grows by {operators} per {step}, made at {line_of_code(line)}, whose memory is not counted: make them "
        "once, before the loop"
    )


def _most_grown(counts: Sequence[Mapping[str, int]], samples: Sequence[Sample]) -> tuple[str, int]:
    """The name of which there is at least one more per step, lately and before, and how many."""
    found: collections.Counter[str] = collections.Counter()
    (first, before, last), steps = counts[-LEAST:], [sample.step for sample in samples[-LEAST:]]
    for name, count in last.items():
        middle, least = before.get(name, 0), first.get(name, 0)
        if min((middle - least) / (steps[1] - steps[0]), (count - middle) / (steps[2] - steps[1])) >= 1:
            found[name] = round((count - least) / (steps[2] - steps[0]))
    return next(iter(found.most_common(1)), ("", 0))
