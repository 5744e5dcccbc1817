"""Campaign: what faults do to a program's result, layer by layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from amanda import Error, OpContext, apply
from amanda.research.error_injection import error_injection
from amanda.research.error_injection.error_injection import OPS, ErrorInjection
from amanda.research.error_injection.faults import Fault
from amanda.toolkit import Arrays, Place, PlaceRow, array_in, arrays_of, place_groupings, preserved
from amanda.toolkit.tables import Column, Grouping, Progress, Results, name_column, number_column

CampaignBy = Literal["id", "op", "module", "line", "bit"]
Outcome = Literal["masked", "sdc", "crash"]


@dataclasses.dataclass(frozen=True)
class Trial(PlaceRow):
    """One run of the program with faults in one layer."""

    seed: int  # ErrorInjection(fault, seed=seed, execution=execution, ...) at that operator injects the same again
    execution: int | None  # the layer's execution that was hit; None if all were
    faults: tuple[error_injection.Row, ...]
    outcome: Outcome
    identical: bool  # true if the result is bit-equal to that without a fault


@dataclasses.dataclass(frozen=True)
class CampaignRow(PlaceRow):
    """The trials of one layer, of an operator type, a module or a line; or those whose faults hit the same bit."""

    trials: int
    identical: int  # of the masked ones: those with a bit-equal result
    masked: int
    sdc: int
    crash: int

    @property
    def sdc_rate(self) -> float:
        """The fraction of trials with silent data corruption, 0 to 1."""
        return self.sdc / self.trials

    @property
    def crash_rate(self) -> float:
        """The fraction of trials that crashed, 0 to 1."""
        return self.crash / self.trials

    @property
    def sdc_low(self) -> float:
        """The lower end of the 95% confidence interval of `sdc_rate`, after E. B. Wilson, JASA 22(158), 1927."""
        return _wilson(self.sdc, self.trials, -1)

    @property
    def sdc_high(self) -> float:
        """The upper end of that interval."""
        return _wilson(self.sdc, self.trials, 1)


def top1_changed(golden: Any, faulty: Any) -> bool:
    """True if another class is on top for any sample of the batch: "SDC-1" of Li et al. The class on top has the
    largest score along the last dimension.

    Scores are the first floating-point tensor in a result that has dimensions, so a loss in front of them is no score.

    Raises:
        amanda.Error: the result has none.
    """
    expected, found = map(_scores, (golden, faulty))
    classes, others = expected.argmax(-1), found.argmax(-1)
    return not (classes.shape == others.shape and bool((classes == others).all()))


def _scores(result: Any) -> Any:
    for array, arrays in _arrays(result):
        if arrays.is_floating(array) and array.ndim > 0:
            return array
    raise Error(
        "[campaign] the program's result has no scores of classes, a floating-point tensor with dimensions; pass sdc=, a "
        "function of the results without and with faults"
    )


class Campaign(Results[CampaignRow, CampaignBy]):
    """Runs a program many times, each time with a fault in one layer, and counts the outcomes of its results::

        campaign = Campaign(BitFlip(), trials=100, seed=0)
        campaign.run(model.eval(), images)
        print(campaign.table(sort="sdc_rate"))

    Outcomes are those of G. Li et al.: Understanding Error Propagation in Deep Learning Neural Network (DNN)
    Accelerators and Applications, SC 2017. A fault is *masked* if the result is bit-equal or good enough, a *silent data
    corruption* (SDC) if it is not, and a *crash* if the program raises an error.

    Each trial hits one execution of one layer, an operator at its place in the program; if there are several executions
    in a run, a random one. All layers have the same number of trials, so the rate of the whole network is the mean over
    its layers, weighted by their exposure. It is not the rate of all trials together.

    Each run starts from the same random state and the same buffers of the model, and leaves both as they were; see
    `amanda.points`. Random numbers come from a generator of the campaign.

    Rows are by "id" (the default: one layer), "op", "module", "line" or "bit". See `Results` for `rows`, `table`,
    `to_pandas` and `reset`. Results accumulate over calls of `run`. `trials` has every trial with its faults.

    Arguments:
        fault: as of `ErrorInjection`, as are `ops`, `modules` and `where`, which select the layers.
        trials: per layer and call of `run`.
        sdc: called as ``sdc(golden, faulty)`` with the results without and with faults if they differ. It returns true
            for a silent data corruption.
        nonfinite_crashes: a result with a NaN or an infinity is a crash, because a check in the program would find it.
        seed: of the random numbers.
        progress: a bar on standard error while `run` runs, if that is a terminal; see `amanda.reports.progress.Progress`.
        options: passed to `ErrorInjection`: `at`, `position`, `backward_op`, `index`, `count`, `rate`, `permanent` (which
            hits all executions of the layer).

    Raises:
        ValueError: there is no trial; or as of `ErrorInjection`.
    """

    _speaker = "campaign"
    _counts = (
        *(number_column(field, field) for field in ("trials", "identical", "masked", "sdc", "crash")),
        Column("SDC rate", lambda row: f"{row.sdc_rate:.1%}", field="sdc_rate"),
        Column("95%", lambda row: f"{row.sdc_low:.1%} to {row.sdc_high:.1%}"),
        Column("crash rate", lambda row: f"{row.crash_rate:.1%}", field="crash_rate"),
    )
    _rates: dict[str, Any] = dict.fromkeys(("sdc_rate", "sdc_low", "sdc_high", "crash_rate"), "float64")
    _groupings = place_groupings(CampaignRow, _counts, **_rates)
    _groupings["bit"] = Grouping([name_column("bit"), *_counts], _groupings["op"].fields)

    def __init__(
        self,
        fault: Fault,
        *,
        trials: int = 100,
        ops: str | Iterable[str] | None = OPS,
        modules: str | Iterable[str] | None = None,
        where: Callable[[OpContext], object] = lambda context: True,
        sdc: Callable[[Any, Any], object] = top1_changed,
        nonfinite_crashes: bool = False,
        seed: int = 0,
        progress: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(trials, int) or trials < 1:
            raise ValueError(f"[campaign] trials= is how many runs to make for each layer, 1 or more; got {trials!r}")
        if not callable(sdc):
            raise TypeError(f"[campaign] sdc= takes a function of the results without and with faults, got {sdc!r}")
        self.trials: list[Trial] = []
        self._fault, self._where = fault, where
        self._options: dict[str, Any] = {"ops": ops, "modules": modules, **options}
        self._of_each_layer, self._sdc, self._nonfinite_crashes = trials, sdc, nonfinite_crashes
        self._seed, self._shows_progress = seed, progress
        self._arrays: Arrays | None = None  # the program's framework
        self._generator: Any = None
        self._injection(where, execution=None)  # raises if an option is wrong

    def run(self, program: Callable[..., Any], /, *inputs: Any, **keywords: Any) -> None:
        """Runs ``program(*inputs, **keywords)`` without a fault, and then with faults, `trials` times for each layer.

        Raises:
            amanda.Error: the program has other results when it is run again, or runs no such layer.
            Exception: what the program raises without a fault.
        """

        def result_under(tool: ErrorInjection) -> Any:
            with preserved(program), apply(tool):
                return program(*inputs, **keywords)

        without = {name: value for name, value in self._options.items() if name not in ("index", "count", "rate")}
        look = ErrorInjection(self._fault, where=self._where, rate=0.0, **without)
        golden = result_under(look)
        layers = {row.place: row.executions for row in look.rows("id")}
        if not _identical(golden, result_under(look)):  # also in a scope: compiled functions run eagerly there
            raise Error(
                "[campaign] the program has other results when it is run again without a fault, so what faults do cannot "
                "be seen; in a training function, put parameters back, or call the model alone"
            )
        if not layers:
            raise Error("[campaign] the program ran no layer that ops=, modules= and where= select")
        if self._generator is None:
            self._arrays = look.arrays
            assert self._arrays is not None  # the layers were seen
            self._generator = self._arrays.generator(self._seed)
        self._sdc(golden, golden)  # raises an error if it cannot compare such results
        total = len(layers) * self._of_each_layer
        with Progress("injecting faults", total, show=self._shows_progress) as progress:
            for layer, executions in layers.items():
                progress.now(layer.module_path or layer.name)
                for _ in range(self._of_each_layer):
                    self.trials.append(self._trial(layer, executions or 1, golden, result_under))
                    progress.advance()

    def _trial(
        self, layer: Place, executions: int, golden: Any, result_under: Callable[[ErrorInjection], Any]
    ) -> Trial:
        seed, execution = self._draw(2**31), self._draw(executions)
        hit = None if self._options.get("permanent") else execution
        injection = self._injection(
            lambda context: context.op_id == layer.op_id and self._where(context), seed=seed, execution=hit
        )
        outcome: Outcome = "masked"
        identical = False
        try:
            result = result_under(injection)
        except Exception:
            if not injection.faults:
                raise  # not the fault's doing
            outcome = "crash"
        else:
            identical = _identical(golden, result)
            if not identical:
                if self._nonfinite_crashes and not all(
                    bool(arrays.xp.isfinite(array).all()) for array, arrays in _arrays(result)
                ):
                    outcome = "crash"
                elif self._sdc(golden, result):
                    outcome = "sdc"
        return Trial(*layer, seed, hit, tuple(injection.rows()), outcome, identical)

    def _injection(self, where: Callable[[OpContext], object], **more: Any) -> ErrorInjection:
        return ErrorInjection(self._fault, where=where, **self._options, **more)

    def _draw(self, below: int) -> int:
        assert self._arrays is not None
        return self._arrays.integers(self._generator, below, 1)[0]

    def reset(self) -> None:
        self._arrays = self._generator = None
        self.trials.clear()

    def _rows(self, by: CampaignBy) -> list[CampaignRow]:
        groups: dict[Any, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(_bit_of(trial) if by == "bit" else trial.place.group(by), []).append(trial)
        if by == "bit":
            groups = {Place(None, _bit_name(bit), "", ""): groups[bit] for bit in sorted(groups)}
        return [_row(place, trials) for place, trials in groups.items()]


def _row(place: Place, trials: Sequence[Trial]) -> CampaignRow:
    masked, sdc, crash = (sum(t.outcome == outcome for t in trials) for outcome in ("masked", "sdc", "crash"))
    return CampaignRow(*place, len(trials), sum(t.identical for t in trials), masked, sdc, crash)


def _bit_of(trial: Trial) -> int:
    """The bit that all faults of the trial have hit; -1 if there is no such bit."""
    bits = {fault.bit for fault in trial.faults}
    bit = bits.pop() if len(bits) == 1 else None
    return -1 if bit is None else bit


def _bit_name(bit: int) -> str:
    return "(no single bit)" if bit < 0 else f"bit {bit}"


def _wilson(hits: int, trials: int, side: int) -> float:
    z = 1.959963984540054  # of 95%
    share = hits / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return min(max(0.0, (share + z * z / (2 * trials) + side * spread) / (1 + z * z / trials)), 1.0)


def _identical(expected: Any, found: Any) -> bool:
    """True if the tensors and plain values of two results are equal bit for bit, also NaNs."""
    leaves = [[*_leaves(result)] for result in (expected, found)]
    return len(leaves[0]) == len(leaves[1]) and all(map(_same, *leaves))


def _same(a: Any, b: Any) -> bool:
    arrays = arrays_of(a)
    if arrays is None or arrays is not arrays_of(b):
        return type(a) is type(b) and bool(a == b or (a != a and b != b))
    bits, others = (arrays.as_integers(arrays.as_reals(array)) for array in (a, b))
    return bool(a.shape == b.shape and a.dtype == b.dtype and (bits == others).all())


def _arrays(result: Any) -> Iterator[tuple[Any, Arrays]]:
    for leaf in _leaves(result):
        arrays = arrays_of(leaf)
        if arrays is not None:
            yield leaf, arrays


def _leaves(result: Any) -> Iterator[Any]:
    array = array_in(result)
    arrays = arrays_of(array)
    if arrays is not None:
        yield arrays.detached(array)
    elif isinstance(result, Mapping | list | tuple):
        for value in result.values() if isinstance(result, Mapping) else result:
            yield from _leaves(value)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from _leaves(getattr(result, field.name))
    elif isinstance(result, bool | int | float | complex | str | None):  # a cache, for instance, cannot be compared
        yield result
