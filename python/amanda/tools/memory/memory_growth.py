"""MemoryGrowth: what each step leaves behind in memory, and who keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from amanda.toolkit.tables import Results

from .growing import growing
from .leak_answer import answer_of
from .leak_rows import GROUPINGS, LeakBy, LeakRow, together
from .samples import Sample, Samples
from .site import Site


class MemoryGrowth(Results[LeakRow, LeakBy]):
    """The memory that each step of a program leaves behind: `PeakMemory.growth`. Rows are by "owner" (the default), "id" or
    "line", those that grow most first; see `amanda.toolkit.Results` for `rows`, `table` and `to_pandas`.

    A step is a step of an optimizer; in programs that have none, a call of the outermost module. At the ends of some
    steps, the 2nd, 3rd, 4th, 6th, 9th and so on, the tool looks for the owners of all memory that operators have made
    since the first step: the ways from variables of modules and of running functions, through objects, closures, the
    tracebacks of exceptions, hooks and the graphs of autograd. Memory grows if it does so between each two of the last
    three.

    Attributes:
        steps: the steps that have ended.
        step: what is one: "step of Adam", "call of Sequential"; "" if there was none.
    """

    _speaker = "memory"
    _groupings = GROUPINGS

    def __init__(self, samples: Samples, site: Callable[[int], Site]) -> None:
        self._samples, self._site = samples, site

    @property
    def steps(self) -> int:
        return self._samples.steps.count

    @property
    def step(self) -> str:
        return self._samples.steps.what

    @property
    def bytes_per_step(self) -> float:
        """The sum of all rows."""
        return sum(row.bytes_per_step for row in self._rows("id"))

    def answer(self) -> str:
        """How much memory grows in each step, which line makes it and who keeps it; or that it does not, and what was
        looked at."""
        return answer_of(self._samples.taken, self._rows("owner"), self.step, self.steps)

    def reset(self) -> None:
        """Forgets all."""
        self._samples.reset()

    def _rows(self, by: LeakBy) -> list[LeakRow]:
        return together(list(self._rows_by_id(self._samples.taken)), by)

    def _rows_by_id(self, samples: Sequence[Sample]) -> Iterator[LeakRow]:
        grown = growing(samples)
        total = sum(one.bytes_per_step for one in grown)
        for one in grown:
            group, site = one.group, self._site(one.group.source.made_by)
            yield LeakRow(
                name=site.place.name,
                kind=group.kind,
                device=group.source.device,
                bytes_per_step=one.bytes_per_step,
                blocks_per_step=one.blocks_per_step,
                share=one.bytes_per_step / total,
                bytes=one.bytes,
                kept_by=one.owner,
                saved_by=group.saver,
                module_path=site.place.module_path,
                source=site.place.source,
                user_line=site.user_line or site.place.source,
            )
