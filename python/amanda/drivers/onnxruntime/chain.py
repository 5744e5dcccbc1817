"""Chain: what runs in place of a session: sessions of parts of its graph, with routines of tools between them.

Where a routine may edit, the graph is cut. Values that routines only look at are further outputs of a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from amanda import _core
from amanda.drivers.onnxruntime import kinds, protos
from amanda.drivers.onnxruntime.program import Program
from amanda.drivers.onnxruntime.steps import Operands, Original, Part, Run, TapStep, locked
from amanda.drivers.onnxruntime.unsupported import warn

if TYPE_CHECKING:
    from amanda.drivers.onnxruntime.site import Shown


class Chain:
    """The steps, in the order in which they run.

    Arguments:
        shown: all operators of the graph, in their order.
        taps: by the operator's number.
        outputs: the names of the values that a run returns.
    """

    def __init__(
        self,
        program: Program,
        shown: Sequence[Shown],
        taps: Mapping[int, Sequence[_core.Tap]],
        outputs: Sequence[str],
    ) -> None:
        self._program = program
        self._steps: list[TapStep | list[Any]] = []  # a list of nodes becomes a part
        self._now: list[Any] = []  # nodes of the part that is being collected
        self._looking: list[TapStep] = []  # those that look at values of that part
        self._names: dict[str, str] = {}  # of values after edits
        self._edited = _Edited(program)
        for number, op in enumerate(shown):
            self._add(op, taps.get(number, ()))
        self._flush()
        self._fetches = [self._names.get(name, name) for name in outputs]
        self._parts = self._linked()
        steps = [step for step, _ in self._parts]
        self._shown = frozenset(name for step in steps if isinstance(step, TapStep) for name in step.shows)
        for step in steps:
            if isinstance(step, Part):
                step.shows(self._shown, frozenset(self._fetches))
        self._given = self._constants()

    def accepts(self, feeds: Mapping[str, Any]) -> bool:
        """False if the session refuses these inputs; then it says why."""
        inputs = self._program.inputs
        return feeds.keys() <= inputs | self._program.optional and inputs <= feeds.keys()

    def run(self, feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
        run = Run({**self._given, **feeds}, options)
        values = run.values
        for name in self._shown.intersection(values):
            values[name] = locked(values[name])
        for step, done_with in self._parts:
            step(run)
            for name in done_with:
                del values[name]
        return [run.results[name] if name in run.results else self._own(name, values[name]) for name in self._fetches]

    def _own(self, name: str, value: Any) -> Any:
        """A result that the program may write to."""
        is_given = name in self._given or name in self._program.inputs
        return value.copy() if isinstance(value, np.ndarray) and (is_given or not value.flags.writeable) else value

    # ---- building ---------------------------------------------------------------------------------------------------

    def _add(self, op: Shown, taps: Sequence[_core.Tap]) -> None:
        node = protos.renamed(op.node, self._names)
        inputs, outputs = Operands(node.input, op.inputs), Operands(node.output, op.outputs)
        share = _core.RunState if any(tap.shares_run for tap in taps) else None
        for tap in taps:
            if tap.point == "before":
                self._emit(TapStep(self._edited, op.site, tap, share, inputs), inputs)
                node.input[:] = inputs.names[: len(node.input)]
        replacing = next((tap for tap in taps if tap.point == "replace"), None)
        if replacing is None:
            self._now.append(node)
        else:
            original = Original(self._program, self._edited, node, inputs, outputs)
            self._emit(TapStep(self._edited, op.site, replacing, share, inputs, outputs, original), outputs)
        for tap in taps:
            if tap.point == "after":
                self._emit(TapStep(self._edited, op.site, tap, share, inputs, outputs), outputs)
        self._names.update(
            (old, new) for old, new in zip(node.output, outputs.names, strict=False) if old and new != old
        )

    def _emit(self, step: TapStep, edited: Operands) -> None:
        if not step.writes:
            hidden = [name for name in step.shows if not kinds.can_leave(self._edited.kind_of(name))]
            if hidden:
                warn(f"{hidden[0]!r}, a {self._edited.kind_of(hidden[0])}, can't leave the graph: no tool looks at it")
            else:
                self._looking.append(step)
            return
        self._flush()
        self._steps.append(step)
        for index, new in step.writes.items():
            self._edited.add(new, edited.names[index])
            edited.names[index] = new

    def _flush(self) -> None:
        if self._now:
            self._steps.append(self._now)
        self._steps += self._looking
        self._now, self._looking = [], []

    def _linked(self) -> list[tuple[Any, list[str]]]:
        """The steps that are needed, each with the values that no later one reads."""
        needed, linked = set(self._fetches), []
        is_alone = sum(isinstance(step, list) for step in self._steps) == 1
        for step in reversed(self._steps):
            if isinstance(step, list):
                made = [name for node in step for name in node.output if name in needed]
                if not made:
                    continue
                part = Part(self._program, self._edited, step, made, is_alone=is_alone)
                reads, makes, runs = part.reads, made, part
            else:
                reads, makes, runs = step.reads, list(step.writes.values()), step
            fresh = {name for name in (*reads, *makes) if name not in needed}
            needed.update(reads)
            linked.append((runs, list(fresh)))
        return linked[::-1]

    def _constants(self) -> dict[str, Any]:
        """The constants that parts and routines get, and the defaults of inputs."""
        asked = {name for step, _ in self._parts for name in step.reads} | set(self._fetches)
        constants = {name: self._program.constant(name) for name in asked if self._program.is_constant(name)}
        return {**self._program.defaults(), **constants}


class _Edited:
    """The values that routines make, each in place of one of the program's."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sources: dict[str, str] = {}

    def add(self, name: str, before: str) -> None:
        self._sources[name] = self._sources.get(before, before)

    def kind_of(self, name: str) -> str:
        return self._program.kind_of(self._sources.get(name, name))

    def is_constant(self, name: str) -> bool:
        """True if it stands for a constant, and so remains one: kernels prepare constants, and compute other bits from
        inputs."""
        return name in self._sources and self._program.is_constant(self._sources[name])
