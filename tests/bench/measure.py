"""Time per call or step, in interleaved rounds.

A round measures every row once, in an order that is rotated from round to round, and the baseline before and after
every two rows. Other load on the machine then affects a row and the baseline next to it alike, and only their ratio is
reported; medians are over rounds.
"""

import contextlib
import dataclasses
import gc

import process
import workloads
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing, phases, selected
from peers import PEERS

VANILLA = "vanilla: a process without Amanda"
CONTROL = Configuration(VANILLA, lambda workload, body: contextlib.nullcontext())  # measured in `process.Control`


@dataclasses.dataclass(frozen=True)
class Settings:
    rounds: int = 9
    block_s: float = 0.02  # the least that one measurement takes
    repeats: int = 3  # of a block, if a step is shorter than it
    full: bool = False
    rows: tuple[str, ...] = ()  # parts of their names, or full names; none: all rows

    def wants(self, row: Configuration):
        return selected(row.name, self.rows)


QUICK = Settings(rounds=2, block_s=0.001, repeats=1)


def measurement(workload, settings):
    """All measurements of a workload. Runs in its own process, because kernels that a filter registers stay there."""
    process.prepare()
    return Measurement(workload, settings).results()


class Measurement:
    def __init__(self, workload: workloads.Workload, settings: Settings):
        self.workload, self.settings = workload, settings
        self.body = workload.make(settings.full)
        self.counts: dict[str, int] = {}
        self.baseline_ns: list[float] = []
        self.ratios: dict[str, list[float]] = {}
        self.why_not: dict[str, str] = {}

    def results(self):
        self.body.run(3)
        first, last = phases([*CONFIGURATIONS, *PEERS])
        with contextlib.closing(process.Control(self.workload, self.settings.full)) as control:
            for rows in ([CONTROL, *first], last):
                if wanted := [row for row in rows if self.settings.wants(row)]:
                    self.rounds(wanted, control)
        return {
            "workload": self.workload.name,
            "group": self.workload.group,
            "unit": self.workload.unit,
            "size": self.workload.full_size if self.settings.full and self.workload.full_size else self.workload.size,
            "baseline_ns": self.baseline_ns,
            "ratios": self.ratios,
            "missing": self.why_not,
        }

    def rounds(self, rows, control):
        for number in range(self.settings.rounds):
            turn = number * 5 % len(rows)
            order = rows[turn:] + rows[:turn]
            before = self.baseline()
            for pair in [order[i : i + 2] for i in range(0, len(order), 2)]:
                found = [(row, self.one(row, control)) for row in pair]
                after = self.baseline()
                for row, ns in found:
                    if ns is not None:
                        self.ratios.setdefault(row.name, []).append(ns * 2 / (before + after))
                self.ratios.setdefault(BASELINE, []).append(after / before)
                self.baseline_ns.append(before)
                before = after

    def baseline(self):
        return self.block(BASELINE, self.body.run)

    def one(self, row, control):
        """Nanoseconds under a row, opened for it; None if it cannot be had."""
        if row is CONTROL:
            return control.time(self.counts[BASELINE], self.repeats(self.counts[BASELINE]))
        if row.name in self.why_not:
            return None
        try:
            with row.open(self.workload, self.body) as session:
                ns = self.block(row.name, session.run, warm_up=2)
                if session.seen is not None and not session.seen():
                    raise RuntimeError(f"[bench] {row.name} has seen nothing of {self.workload.name}")
        except Missing as reason:
            self.why_not[row.name] = str(reason)
            return None
        except Exception as error:
            if not row.is_peer:
                raise
            self.why_not[row.name] = f"fails: {type(error).__name__}"
            return None
        finally:
            gc.collect()
        return ns

    def block(self, name, run, warm_up=0):
        """Nanoseconds of one run in the best block."""
        found = []

        def counts():
            yield from [1] * warm_up
            if name not in self.counts:
                count, least = 1, self.settings.block_s * 1e9
                yield count
                while found[-1] * count < least / 2:
                    yield (count := count * 2)
                self.counts[name] = max(1, round(least / found[-1]))
            yield from [self.counts[name]] * self.repeats(self.counts[name])

        process.times(run, counts(), found)
        return min(found[-self.repeats(self.counts[name]) :])

    def repeats(self, count):
        return self.settings.repeats if count > 1 else 1
