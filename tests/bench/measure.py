"""Time per call or step, in interleaved rounds.

A round measures every row once, in an order that is rotated from round to round, and the baseline before and after
every two rows. What the machine does meanwhile is thus in a row's figure and in the baseline beside it, and a row is
judged by their ratio alone; medians are of rounds.
"""

import dataclasses
import gc

import process
import workloads
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing, counter
from peers import PEERS

VANILLA = "vanilla: a process without Amanda"


@dataclasses.dataclass(frozen=True)
class Settings:
    rounds: int = 9
    block_s: float = 0.02  # the least that one measurement takes
    repeats: int = 3  # of a block, if a step is shorter than it
    full: bool = False


QUICK = Settings(rounds=2, block_s=0.001, repeats=1)


def group(name, settings):
    """All measurements of a group of workloads. Runs in a process of its own."""
    process.prepare()
    return [Measurement(w, settings).results() for w in workloads.WORKLOADS if w.group == name]


class Measurement:
    def __init__(self, workload: workloads.Workload, settings: Settings):
        self.workload, self.settings = workload, settings
        self.body = workload.make(settings.full)
        self.counts: dict[str, int] = {}
        self.ratios: dict[str, list[float]] = {}
        self.first_ns: dict[str, list[float]] = {}
        self.why_not: dict[str, str] = {}

    def results(self):
        self.body.run(3)
        analysis = self.analysis()
        control = process.Control(self.workload, self.settings.full)
        rows: list[Configuration | None] = [None, *CONFIGURATIONS, *PEERS]  # None: the control process
        baseline = []
        for number in range(self.settings.rounds):
            turn = number * 5 % len(rows)
            order = rows[turn:] + rows[:turn]
            before = self.baseline()
            for pair in [order[i : i + 2] for i in range(0, len(order), 2)]:
                found = [(row, self.one(row, control)) for row in pair]
                after = self.baseline()
                beside = (before + after) / 2
                for row, ns in found:
                    if ns is not None:
                        self.ratios.setdefault(row.name if row else VANILLA, []).append(ns / beside)
                self.ratios.setdefault(BASELINE, []).append(after / before)
                baseline.append(before)
                before = after
        control.close()
        return {
            "workload": self.workload.name,
            "group": self.workload.group,
            "unit": self.workload.unit,
            "size": self.workload.full_size if self.settings.full and self.workload.full_size else self.workload.size,
            "baseline_ns": baseline,
            "ratios": self.ratios,
            "missing": self.why_not,
            "analysis": analysis | {"later_ns": self.first_ns.get("Python routine, forward", [])},
        }

    def analysis(self):
        """What the first run in a first scope takes: each place is named, and the tool's routines look at it."""
        import amanda

        usual = process.block(self.body.run, 1, self.settings.repeats)
        scope = amanda.apply(counter())
        with scope:
            first = process.block(self.body.run, 1, 1)
        return {"places": scope.cache_info().misses, "usual_ns": usual, "first_ns": first}

    def baseline(self):
        return self.block(BASELINE, self.body.run)

    def one(self, row, control):
        """Nanoseconds under a row, opened for it; None if it cannot be had."""
        if row is None:
            return control.time(self.counts[BASELINE], self.repeats(self.counts[BASELINE]))
        if row.name in self.why_not:
            return None
        try:
            with row.open(self.workload, self.body) as session:
                self.first_ns.setdefault(row.name, []).append(process.block(session.run, 1, 1))
                session.run(1)
                ns = self.block(row.name, session.run)
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

    def block(self, name, run):
        if name not in self.counts:
            self.counts[name] = self.calibrated(run)
        return process.block(run, self.counts[name], self.repeats(self.counts[name]))

    def calibrated(self, run):
        """How many make a block."""
        count = 1
        while (whole := process.block(run, count, 1) * count) < self.settings.block_s * 5e8:
            count *= 2
        return max(1, round(count * self.settings.block_s * 1e9 / whole))

    def repeats(self, count):
        return self.settings.repeats if count > 1 else 1
