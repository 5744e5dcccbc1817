"""Samples: what is in memory at the ends of some steps, and who holds it."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

FIRST = 2  # step: gradients and the state of optimizers are there
LEAST = 3  # samples, before anything is said; so many are taken, however long it takes
LEAST_OF_SIZES = 5  # where not the number of blocks grows, but their size: batches differ in size, too
NOTABLE = 0.01  # of what is in use
FACTOR = 1.5  # between the steps of two samples
LONGEST = 5.0  # seconds of a processor that one search may take
FREE = 10.0  # seconds that all searches may take together, however short the program is
SHARE = 0.25  # of the program's time, that they may take of a long one


class Source(NamedTuple):
    """Who makes memory."""

    device: str
    made_by: int  # the number of a site of PeakMemory
    made_in_backward: bool


class Group(NamedTuple):
    """Memory that one operator makes, and one owner holds."""

    owner: str  # "the graph of losses[*] (global of train.py)", with * for digits in names
    kind: str
    saver: str
    source: Source


@dataclasses.dataclass
class Amount:
    bytes: int = 0
    blocks: int = 0
    old_bytes: int = 0  # of those that were there a step before
    old_blocks: int = 0
    names: set[str] = dataclasses.field(default_factory=set)  # of owners, as they are: two at most

    def add(self, other: Amount) -> None:
        self.bytes += other.bytes
        self.blocks += other.blocks
        self.old_bytes += other.old_bytes
        self.old_blocks += other.old_blocks


@dataclasses.dataclass
class Sample:
    """At the end of one step. Memory that was made in the first step is in `live_bytes` alone."""

    step: int
    live_bytes: int
    amounts: Mapping[Group, Amount]
    nodes: Mapping[str, int]  # of graphs, by owner
    traces: Mapping[str, int]  # of functions
    written: Mapping[str, int]  # operators of a session's graph, by line
    is_complete: bool  # the search had the time that it needed


def is_rising(samples: Sequence[Sample]) -> bool:
    """Whether more is in use from sample to sample, and not only numbers that the program collects."""
    sizes = [sample.live_bytes for sample in samples[-LEAST:]]
    return sizes == sorted(set(sizes)) and len(sizes) == LEAST and sizes[-1] > (1 + NOTABLE) * sizes[0]


class StepCounter(Protocol):
    """Where steps of a program end."""

    what: str
    count: int

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped."""

    def marks(self) -> bool:
        """Whether `on_call` has to be called before each run of the operator that is being analyzed."""

    def on_call(self) -> None:
        """A marked operator runs."""

    def reset(self) -> None:
        """The next step is the first."""


class Samples:
    """Takes samples at the ends of steps: few, since each looks at all objects of the program.

    Arguments:
        recorder: returns the `MemoryRecorder`, or the `Values`.
        blocks: returns what is in memory now, each block as PeakMemory has it and with its device.
        steps: makes the steps, of which the argument is to be called at the end of each.
        traces: counts the graphs that functions have, by name.
        written: counts the operators of graphs that a session runs, by line.
    """

    def __init__(
        self,
        recorder: Callable[[], Any],
        blocks: Callable[[], Sequence[tuple[Any, str]]],
        steps: Callable[[Callable[[], object]], StepCounter],
        traces: Callable[[], Mapping[str, int]] = dict,
        written: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.steps = steps(self._on_step)
        self._traces, self._written = traces, written
        self.taken: list[Sample] = []
        self._recorder, self._blocks = recorder, blocks
        self._unfound = 0  # bytes that the program's own variables did not lead to, at the last sample
        self._what = ""  # of the steps so far
        self._next = FIRST
        self._first_serial = self._last_serial = 0  # of the newest block when the first step and the last one ended
        self._began, self._spent = time.monotonic(), 0.0

    def reset(self) -> None:
        """Forgets all."""
        self.steps.reset()
        self.taken, self._next, self._unfound = [], FIRST, 0
        self._first_serial = self._last_serial = 0

    def _on_step(self) -> None:
        step = self.steps.count
        if self.steps.what != self._what:
            self._what, self._next, self.taken, self._unfound = self.steps.what, FIRST, [], 0
        if step == 1:
            self._first_serial = self._recorder().last_serial()
        elif step >= self._next and (len(self.taken) < self._least() or self._spent < self._allowed()):
            before = time.thread_time()
            self.taken.append(self._sample(step))
            self._spent += time.thread_time() - before
            self._next = max(step + 1, int(FACTOR * step))
        self._last_serial = self._recorder().last_serial()

    def _least(self) -> int:
        return LEAST_OF_SIZES if is_rising(self.taken) else LEAST

    def _allowed(self) -> float:
        return max(FREE, SHARE * (time.monotonic() - self._began))

    def _sample(self, step: int) -> Sample:
        from .holders import Search  # here: the framework is imported

        blocks = self._blocks()
        newer = [(block, device) for block, device in blocks if block.serial > self._first_serial]
        sizes = {block.serial: block.bytes for block, _ in newer}

        def is_enough(found: Collection[int]) -> bool:
            before, self._unfound = self._unfound, sum(sizes[serial] for serial in sizes.keys() - found)
            return self._unfound <= before

        search = Search(self._recorder().serials_of, sizes, LONGEST, is_enough)
        found = search.run()
        amounts: dict[Group, Amount] = collections.defaultdict(Amount)
        for block, device in newer:
            name = found.get(block.serial)
            owner, kind, saver = ("", "unknown", "") if name is None else (name.pattern, name.kind, name.saver)
            amount = amounts[Group(owner, kind, saver, Source(device, block.made_by, block.made_in_backward))]
            is_old = block.serial <= self._last_serial
            amount.add(Amount(block.bytes, 1, block.bytes * is_old, int(is_old)))
            if name is not None and len(amount.names) < 2:
                amount.names.add(str(name))
        live = sum(block.bytes for block, _ in blocks)
        return Sample(step, live, dict(amounts), search.nodes, self._traces(), self._written(), search.is_complete)
