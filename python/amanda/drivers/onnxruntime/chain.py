"""Chain: what runs in place of a session: sessions of parts of its graph, with routines of tools between them.

Where a routine may edit, the graph is cut. Values that routines only look at are further outputs of a part. An If, a Loop
or a Scan with taps in its bodies is cut, too: its bodies are run one after another, as chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from amanda import _core
from amanda.drivers.onnxruntime import bodies, kinds, port, protos
from amanda.drivers.onnxruntime.operands import Operands, locked
from amanda.drivers.onnxruntime.program import Program, Unreadable
from amanda.drivers.onnxruntime.steps import Part, Replaced, Step
from amanda.drivers.onnxruntime.taps import Edited, Looks, Run, TapStep
from amanda.drivers.onnxruntime.unsupported import warn

if TYPE_CHECKING:
    from amanda.drivers.onnxruntime.site import Shown

Taps = Mapping[int, Sequence[_core.Tap]]  # by the number of an operator


class Chain:
    """Runs a session's graph.

    Arguments:
        shown: the operators of the graph, in their order.
        outputs: the names of the values that a run returns.
    """

    def __init__(self, program: Program, shown: Sequence[Shown], taps: Taps, outputs: Sequence[str]) -> None:
        self._program = program
        self._steps = Steps(program, EditedValues(program), shown, taps, outputs, {})
        self._defaults = program.defaults()

    def accepts(self, feeds: Mapping[str, Any]) -> bool:
        """False if the session refuses these inputs; then it says why."""
        inputs = self._program.inputs
        return feeds.keys() <= inputs | self._program.optional and inputs <= feeds.keys()

    def run(self, feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
        # Without options ONNX Runtime makes some for each part, which takes half a microsecond.
        return self._steps.run({**self._defaults, **feeds}, port.DEFAULT_OPTIONS if options is None else options)


class Steps:
    """Those of a graph, or of a body, in the order in which they run.

    Arguments:
        outputs: the names of the values that a run returns.
        names: of outer values after edits, which a body captures.
    """

    def __init__(
        self,
        program: Program,
        edited: EditedValues,
        shown: Sequence[Shown],
        taps: Taps,
        outputs: Sequence[str],
        names: Mapping[str, str],
    ) -> None:
        self._program, self._taps = program, taps
        self._steps: list[TapStep | Looks | Step | list[Any]] = []  # a list of nodes becomes a part
        self._now: list[Any] = []  # nodes of the part that is being collected
        self._looking: list[TapStep] = []  # those that look at values of that part
        self._names = dict(names)  # of values after edits
        self._edited = edited
        self._makes: set[str] = set()
        for op in shown:
            self._add(op, taps.get(op.number, ()))
        self._flush()
        self._fetches = [self._names.get(name, name) for name in outputs]
        self._linked_steps = self._linked()
        steps = [step for step, _ in self._linked_steps]
        self._shown = frozenset(name for step in steps if isinstance(step, TapStep | Looks) for name in step.shows)
        for step in steps:
            if not isinstance(step, TapStep | Looks):
                step.shows(self._shown, frozenset(self._fetches))
        asked = {name for step in steps for name in step.reads} | set(self._fetches)
        #: The constants that parts and routines get.
        self._constants = {name: program.constant(name) for name in asked if program.is_constant(name)}
        #: The values that a run has to be given.
        self.reads = [name for name in asked if name not in self._makes and name not in self._constants]

    def run(self, given: dict[str, Any], options: Any) -> list[Any]:
        values = {**self._constants, **given}
        run = Run(values, options)
        for name in self._shown.intersection(values):
            values[name] = locked(values[name])
        for step, done_with in self._linked_steps:
            step(run)
            for name in done_with:
                del values[name]
        return [run.results[name] if name in run.results else self._own(name, values[name]) for name in self._fetches]

    def _own(self, name: str, value: Any) -> Any:
        """A result that the program may write to."""
        is_given = name not in self._makes
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
        makes = self._step_of(op)
        if replacing is not None:
            original = Replaced(self._program, self._edited, node, inputs, outputs, makes or self._part_of)
            self._emit(TapStep(self._edited, op.site, replacing, share, inputs, outputs, original), outputs)
        elif makes is not None:
            self._flush()
            self._steps.append(makes(node, self._edited))
            self._makes.update(name for name in node.output if name)
        else:
            self._now.append(node)
        for tap in taps:
            if tap.point == "after":
                self._emit(TapStep(self._edited, op.site, tap, share, inputs, outputs), outputs)
        self._names.update(
            (old, new) for old, new in zip(node.output, outputs.names, strict=False) if old and new != old
        )

    def _step_of(self, op: Shown) -> Callable[[Any, Edited], Step] | None:
        """Makes the step of an operator with taps in its bodies. None if there are none."""
        if not any(number in self._taps for number in op.inside()):
            return None
        try:
            found = {
                name: bodies.Body(
                    body.proto, Steps(self._program, self._edited, body.shown, self._taps, body.outputs, self._names)
                )
                for name, body in op.bodies.items()
            }
        except Unreadable as why:
            warn(f"an operator {op.node.op_type} runs without tools in its bodies: {why}")
            return None
        return lambda node, edited: bodies.step(self._program, edited, node, found, self._part_of)

    def _part_of(self, node: Any, edited: Edited) -> Part:
        return Part(self._program, edited, [node], [name for name in node.output if name], is_alone=False)

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
            self._makes.add(new)

    def _flush(self) -> None:
        if self._now:
            self._steps.append(self._now)
        if self._looking:
            self._steps.append(Looks(self._looking))
        self._now, self._looking = [], []

    def _linked(self) -> list[tuple[TapStep | Looks | Step, list[str]]]:
        """The steps that are needed, each with the values that no later one reads."""
        needed, linked = set(self._fetches), []
        is_alone = not any(isinstance(step, bodies.Bodies) for step in self._steps)
        is_alone = is_alone and sum(isinstance(step, list) for step in self._steps) == 1
        for step in reversed(self._steps):
            runs: TapStep | Looks | Step
            if isinstance(step, list):
                made = [name for node in step for name in node.output if name in needed]
                if not made:
                    continue
                runs, makes = Part(self._program, self._edited, step, made, is_alone=is_alone), made
                self._makes.update(made)
            elif isinstance(step, TapStep | Looks):
                runs, makes = step, list(step.writes.values())
            else:
                runs, makes = step, list(step.makes)
            fresh = {name for name in (*runs.reads, *makes) if name not in needed}
            needed.update(runs.reads)
            linked.append((runs, list(fresh)))
        return linked[::-1]


class EditedValues:
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
