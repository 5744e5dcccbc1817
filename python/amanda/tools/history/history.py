"""History: the tool."""

from __future__ import annotations

import collections
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never

from amanda import OpContext, StepTool, Tool
from amanda.toolkit import Results, Skips, Unseen, eager_only, frameworks, locks, own_work, warn_here
from amanda.toolkit.optimizer_phase import OptimizerPhase
from amanda.toolkit.schemas import Sides
from amanda.tools.cuts import GradientCuts
from amanda.tools.gradients import GradientStatistics
from amanda.tools.statistics import OpStatistics

from .alarms import GRADIENT_NORM, Alarm, Detectors, HistoryWarning, Limits
from .answer import answer_of
from .arguments import checked_keep, checked_limits, checked_tools
from .compiled_gradients import CompiledGradients
from .dead_units import DeadUnits
from .files import Files
from .loss import loss_of
from .loss_scales import LossScales
from .optimizer_gradients import OptimizerGradients
from .parameter_histograms import Histogram
from .parameters import ParameterGradients, Updates, Watched, norms_of
from .rows import GROUPINGS, GroupBy, Row, StepValues, rows_of
from .series import Point, points_of, scalar
from .variable_gradients import VariableGradients

FLUSH_SECONDS = 60.0
PHASE = "cupti_profiler.phase"  # OptimizerPhase's key
MOST_TOLD = 5  # alarms in a warning
WHY = "gradients of parameters are those that autograd accumulates"


class _Cuts(GradientCuts):
    """Compiled functions stay compiled: why their parameters get no gradient is not known then. It leaves frameworks out
    that it does not know."""

    needs_eager = ""

    def _analyze(self, context: OpContext) -> None:
        if frameworks.is_torch(context) or frameworks.is_tensorflow(context):
            super()._analyze(context)

    def _analyze_backward(self, context: OpContext) -> None:
        if frameworks.is_torch(context) or frameworks.is_tensorflow(context):
            super()._analyze_backward(context)


class History(Results[Row, GroupBy], StepTool):
    """Keeps statistics of operators, gradients and parameters over the steps of a training run, and raises alarms::

        history = History(model, parquet="runs/1")
        with amanda.scheduled(history, schedule=amanda.Schedule(every=100)) as run:
            for batch in loader:
                loss = train(batch)
                history.log(loss=loss)
                run.step()

    At the end of each active step it takes the figures of `tools`, and resets them. In addition to these it has series
    of its own. Each parameter has the norm of its weight before the step (``norm``), the norm of the change in the step
    (``update_norm``), and their ratio (``update_ratio``). It also has the norm of its gradient as it is accumulated,
    before any clipping (``gradient_norm``). Other series are the norm of all gradients together, and the values that
    are logged. Norms are Euclidean, and are accumulated in float64. Where a `torch.amp.GradScaler` scales the loss,
    these are norms of the gradients without that factor, and ``scaled_gradient_norm`` is that of the gradients as they
    are. ``optimizer_gradient_norm`` is that of what optimizers get, after unscaling, clipping, accumulation and averaging
    over ranks.

    Parameters are copied at the beginning of an active step: their memory is used twice in these steps. Operators of
    optimizers, and memory without values (``torch.empty``), are left out.

    Rows are by "series" (the default), or by "step" (each value). They cover the last `keep` active steps; files have all.
    See `Results` for `rows`, `table`, `to_pandas` and `reset`. `reset` does not change files.

    Arguments:
        model: a module, or an optimizer, whose parameters are compared; `watch` adds more. Without it, there are
            gradients of all parameters, but no norms of weights and updates.
        tools: tools with results. `OpStatistics` gives mean, std, min, max, norm, sparsity, nans and infs of every
            operator's result, `GradientStatistics` the norm of its gradient. All numbers of other tools are kept.
        parquet: a folder for Parquet files: ``pandas.read_parquet(f"{folder}/series")``, and ``alarms``. Each of
            several ranks adds its part, ``series/rank=3``; `amanda.report` compares them.
        tensorboard: a folder for TensorBoard. Each of several ranks has a folder inside.
        wandb: a run of Weights & Biases, as ``wandb.init(mode="offline")`` returns it. Names begin with "amanda/".
        resume: the folders have a run, which goes on. Their data of the first active step, and of later steps, is
            dropped.
        limits: the limits at which alarms are raised. With None, there are no alarms.
        on_alarm: called with each `Alarm`. By default, there is a `HistoryWarning` for the alarms of a step.
        keep: the number of active steps that are kept in memory.
        flush_seconds: files are written each time that so many seconds have passed, and when the scope is left.
        histograms: files also have, for each parameter, how many elements of its gradient, as optimizers get it, and of its
            update have which values; see `histograms`.
        find_loss: adds a series "loss", for programs that do not `log` one: the result with one element at which the
            step's first backward pass began, without the factor of a GradScaler.
        find_cuts: raises an alarm for parameters that get no gradient, and says where their path to the loss ends; see
            `GradientCuts`.

    Raises:
        TypeError: one of the tools has no results, or an argument has the wrong type.
        ValueError: `keep` is less than 1.
        ImportError: pyarrow or tensorboard is not installed.
        FileExistsError: a folder has another run.
        OSError: a folder cannot be written.
    """

    _speaker = "history"

    def __init__(
        self,
        model: Any = None,
        *,
        tools: Sequence[Results[Any, Any]] | None = None,
        parquet: str | os.PathLike[str] | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        wandb: Any = None,
        resume: bool = False,
        limits: Limits | None = Limits(),  # noqa: B008 -- it is frozen
        on_alarm: Callable[[Alarm], object] | None = None,
        keep: int = 1000,
        flush_seconds: float = FLUSH_SECONDS,
        histograms: bool = False,
        find_loss: bool = False,
        find_cuts: bool = False,
    ) -> None:
        super().__init__("history")
        self._tools = checked_tools([OpStatistics(), GradientStatistics()] if tools is None else tools)
        for tool in self._tools:
            if isinstance(tool, Tool):
                tool._keeps_evidence = True  # its results are forgotten after each step
        self._detectors = None if limits is None else Detectors(checked_limits(limits))
        if on_alarm is not None and not callable(on_alarm):
            raise TypeError(f"[history] on_alarm= is a function of an alarm, got {on_alarm!r}")
        self._limits, self._on_alarm = limits, on_alarm
        self._keep, self._flush_seconds = checked_keep(keep), flush_seconds
        self._finds_loss = bool(find_loss)
        self._skips = Skips("history")
        self._watched = Watched()
        self._updates = Updates(self._watched, self._skips, bool(histograms))
        self._optimizer_gradients = OptimizerGradients(self._watched, self._skips, bool(histograms))
        self._histograms: list[Histogram] = []
        self._gradients = ParameterGradients(self._watched)
        self._of_compiled = CompiledGradients(self._watched, self._skips)
        self._of_variables = VariableGradients(self._watched, self._skips, self._optimizer_gradients)
        self._loss_scales = LossScales(self._variables)
        self._dead = DeadUnits(limits.dead) if limits is not None else None
        self._cuts = _Cuts() if find_cuts and limits is not None else None
        self._left_out: set[int | None] = set()  # ids of operators
        self._views: set[int | None] = set()  # they compute nothing; some are of memory without values
        self._lock = locks.lock()  # guards the next three
        self._steps: collections.deque[StepValues] = collections.deque(maxlen=self._keep)
        self._alarms: list[Alarm] = []
        self._unread_before: collections.Counter[str] = collections.Counter()  # by tools, until they were reset last
        self._scalars: dict[str, list[float]] = {}
        self._step: int | None = None  # that has begun
        self._last: int | None = None  # that was recorded
        self._flushed = time.monotonic()
        if model is not None:
            self.watch(model)
        self._ask()
        self._files = Files(parquet, tensorboard, wandb, resume)

    def narrow(
        self, *, ops: str | Iterable[str] | None = None, modules: str | Iterable[str] | None = None, **unknown: Never
    ) -> None:
        """Restricts the tool as in all tools, and its `tools`, too. Series of parameters are not restricted.

        Raises:
            TypeError, ValueError, amanda.Error: as in all tools.
        """
        super().narrow(ops=ops, modules=modules, **unknown)
        for tool in self._looking:
            tool.narrow(ops=ops, modules=modules)

    def _ask(self) -> None:
        dead = [self._dead] if self._dead is not None else []
        self._looking: list[Any] = [*self._tools, *dead]
        self.depends_on(OptimizerPhase(), *self._looking, *([self._cuts] if self._cuts is not None else []))
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True, optional=True)

    def _analyze(self, context: OpContext) -> None:
        sides = Sides.of(context) if frameworks.is_torch(context) else None
        if sides is not None:
            self._loss_scales.analyze(context)
            if context.is_symbolic:
                self._of_compiled.analyze(context)
        if context.get(PHASE) == "optimizer" or (sides is not None and sides.is_uninitialized):
            self._left_out.add(context.op_id)
        if sides is not None and sides.is_view:
            self._views.add(context.op_id)
        if frameworks.is_tensorflow(context):
            self._of_variables.analyze(context)

    def _analyze_backward(self, context: OpContext) -> None:
        if frameworks.is_tensorflow(context):
            self._of_variables.analyze(context)
            return
        if not (frameworks.is_compiled(context) or eager_only.leaves_out(context, self._skips, WHY)):
            self._gradients.analyze(context)

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """The parameters that had gradients, with their names."""
        return itertools.chain(self._gradients.variables(), self._of_compiled.variables())

    # ---- what the program tells -------------------------------------------------------------------------------------

    def watch(self, model: Any) -> None:
        """Compares the parameters of another module, or of an optimizer, too, from now on.

        Each parameter is compared once. If two have the same name, the second gets a number: "0.weight #2".

        Raises:
            TypeError: it is neither.
        """
        self._watched.add(model)
        if self._step is not None:
            with own_work():
                self._updates.copy_new()

    def log(self, **values: Any) -> None:
        """Adds numbers of this step, such as ``loss=loss``: a series each; the mean, if a name comes several times.

        In steps that are not observed it does nothing. Names with "loss" in them are watched for divergence.

        Raises:
            TypeError: a value is not a number, or a tensor with one element.
        """
        if self._step is None:
            return
        for name, value in values.items():
            with own_work():
                try:
                    number = float(value.detach() if hasattr(value, "detach") else value)
                except (TypeError, ValueError, RuntimeError):
                    raise TypeError(
                        f"[history] log takes numbers and tensors with one element, got {name}={value!r}"
                    ) from None
            self._scalars.setdefault(name, []).append(number)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def on_step_begin(self, step: int) -> None:
        self._drop()
        if self._last is not None and step <= self._last:
            raise ValueError(
                f"[history] step {step} was recorded already; enter the same scope again, instead of a new one, or tell "
                f"the number of its first step: amanda.scheduled(history, first_step={self._last + 1})"
            )
        self._files.start(step)
        self._updates.begin()
        self._optimizer_gradients.begin()
        self._of_compiled.begin()
        self._of_variables.begin()
        self._loss_scales.begin()
        self._step = step

    def on_step_end(self, step: int) -> None:
        if self._step == step:
            self._last = step
            self._record(step, self._found())

    def on_schedule_end(self, error: BaseException | None) -> None:
        forgotten = self._step is not None and self._last is None and error is None and self._has_found()
        self._drop()
        self._files.close()
        if forgotten:
            warn_here(
                "[history] no step has ended, so nothing was recorded; call step() of the scope after each step, or count "
                "those of an optimizer: amanda.scheduled(history, steps=optimizer)",
                HistoryWarning,
            )

    def _has_found(self) -> bool:
        return bool(self._scalars) or any(rows for _, rows in self._found())

    def _found(self) -> list[tuple[Results[Any, Any], list[Any]]]:
        """The rows of each tool."""
        return [(tool, tool.rows()) for tool in self._tools]

    def _drop(self) -> None:
        """Forgets what was found in a step that has not ended."""
        self._step = None
        self._scalars.clear()
        self._updates.drop()
        self._optimizer_gradients.drop()
        self._of_compiled.drop()
        self._of_variables.drop()
        with self._lock:
            self._unread_before += _unread_by(self._tools)
        for tool in self._tools:
            tool.reset()
        if self._dead is not None:
            self._dead.drop_step()

    def _record(self, step: int, found: Sequence[tuple[Results[Any, Any], list[Any]]]) -> None:
        of_gradients = [rows for tool, rows in found if isinstance(tool, GradientStatistics)]
        scaled = [gradient for rows in of_gradients for gradient in self._gradients.of(rows)]
        if of_gradients:
            scaled += self._of_compiled.gradients({each.parameter for each in scaled})
        scaled += self._of_variables.gradients()
        scales = [self._loss_scales.of(each.parameter) for each in scaled]
        gradients = [each.unscaled(scale) for each, scale in zip(scaled, scales, strict=True)]
        points: list[Point] = []
        for tool, rows in found:
            points += points_of(tool, rows, self._left_out, self._loss_scales.common)
        points += self._updates.end()
        points += norms_of(gradients, GRADIENT_NORM)
        if any(scale is not None for scale in scales):
            points += norms_of(scaled, f"scaled_{GRADIENT_NORM}")
        points += self._optimizer_gradients.points()
        histograms = [*self._optimizer_gradients.histograms(), *self._updates.histograms()]
        points += [(scalar(name), sum(values) / len(values)) for name, values in self._scalars.items()]
        if self._finds_loss and "loss" not in self._scalars:
            loss = self._of_variables.loss()
            losses = loss_of(found, self._loss_scales.common) if loss is None else [loss]
            points += [(scalar("loss"), value) for value in losses]
        alarms: list[Alarm] = []
        if self._detectors is not None and self._dead is not None:
            computed = [point for point in points if point[0].op_id is None or point[0].op_id not in self._views]
            cuts = [] if self._cuts is None else self._cuts.findings()
            alarms = self._detectors.look(step, computed, gradients, self._dead.end_step(step), cuts)
        self._drop()
        with self._lock:
            self._steps.append(StepValues.of(step, points))
            self._alarms += alarms
            self._histograms = histograms
        self._files.add(step, points, alarms, histograms)
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self._flushed = time.monotonic()
            self._files.flush()
        self._raise(alarms)

    def _raise(self, alarms: Sequence[Alarm]) -> None:
        if self._on_alarm is not None:
            for alarm in alarms:
                self._on_alarm(alarm)
        elif alarms:
            more = f"\n  and {len(alarms) - MOST_TOLD} more" if len(alarms) > MOST_TOLD else ""
            lines = "\n  ".join(map(str, alarms[:MOST_TOLD]))
            warn_here(f"[history] {lines}{more}", HistoryWarning)

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms, in the order in which they were noticed."""
        with self._lock:
            return list(self._alarms)

    def histograms(self) -> list[Histogram]:
        """Those of the last step that was observed, with ``histograms=True``: of gradients, then of updates. Files have
        all steps'."""
        with self._lock:
            return list(self._histograms)

    @property
    def skipped(self) -> dict[str, int]:
        """How many parameters could not be read, and backward operators not be followed to parameters, by reason."""
        return self._skips.counts()

    def _unread(self) -> list[Unseen]:
        with self._lock:
            counts = self._unread_before + collections.Counter(self._skips.counts())
        return self._skips.unread(counts + _unread_by(self._looking))

    def reset(self) -> None:
        self.reset_evidence()
        self._drop()
        with self._lock:
            self._steps.clear()
            self._alarms.clear()
            self._unread_before.clear()
            self._histograms.clear()
        self._detectors = None if self._limits is None else Detectors(self._limits)
        if self._dead is not None:
            self._dead.reset()
        if self._cuts is not None:
            self._cuts.reset()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            steps = list(self._steps)
        return rows_of(steps, by)

    def answer(self) -> str:
        """The loss, the norm of all gradients, the ratios of updates, and the alarms, in a line each."""
        return answer_of(self.rows(), self.alarms)

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption(), *(f"alarm: {alarm}" for alarm in self.alarms[:MOST_TOLD])]

    _groupings = GROUPINGS


def _unread_by(tools: Iterable[Any]) -> collections.Counter[str]:
    """The numbers of values that the tools could not read, by reason."""
    counts: collections.Counter[str] = collections.Counter()
    for tool in tools:
        counts.update({one.reason: one.count for one in tool._unread()})
    return counts
