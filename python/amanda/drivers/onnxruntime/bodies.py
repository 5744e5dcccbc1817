"""Bodies: an If, a Loop or a Scan with taps in its bodies. These run in sessions of their own, as often as the operator
runs them. The kernels are those of the whole session, and so are the bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx

from amanda import _core
from amanda.drivers.onnxruntime import protos
from amanda.drivers.onnxruntime.program import Program
from amanda.drivers.onnxruntime.steps import Results, Step
from amanda.drivers.onnxruntime.taps import Edited, Run


class Steps(Protocol):
    """Those of a body."""

    reads: list[str]

    def run(self, given: dict[str, Any], options: Any) -> list[Any]: ...


class Body(NamedTuple):
    proto: Any
    steps: Steps


class Bodies:
    """An operator with bodies.

    Arguments:
        whole: makes the step that runs the operator at once, as the session does.
    """

    def __init__(
        self,
        program: Program,
        edited: Edited,
        node: Any,
        bodies: Mapping[str, Body],
        whole: Callable[[Any, Edited], Step],
    ) -> None:
        self.makes = [name for name in node.output if name]
        captured = [name for body in bodies.values() for name in body.steps.reads]
        own = {each.name for body in bodies.values() for each in body.proto.input}
        asked = dict.fromkeys([*protos.reads(node), *(name for name in captured if name not in own)])
        self.reads = [name for name in asked if not program.is_constant(name)]
        self._constants = {name: program.constant(name) for name in node.input if name and program.is_constant(name)}
        self._inputs, self._outputs = list(node.input), list(node.output)
        self._bodies = bodies
        self._results = Results(edited, self.makes)
        self._whole = functools.partial(whole, node, edited)
        self._runs_whole: Step | None = None

    def shows(self, names: AbstractSet[str], results: AbstractSet[str]) -> None:
        self._results.shows(names, results)

    def __call__(self, run: Run) -> None:
        found = self._run(run)
        if found is None:
            if self._runs_whole is None:
                self._runs_whole = self._whole()
            inner = Run(dict(run.values), run.options)
            self._runs_whole(inner)
            found = [inner.values.get(name) for name in self._outputs]
        self._results.put(run, [each for name, each in zip(self._outputs, found, strict=True) if name])

    def _run(self, run: Run) -> list[Any] | None:
        """Its results. None if no body runs: only the operator itself knows what it gives then."""
        raise NotImplementedError

    def _input(self, run: Run, index: int) -> Any:
        """None if it is not given."""
        name = self._inputs[index] if index < len(self._inputs) else ""
        return self._constants[name] if name in self._constants else run.values[name] if name else None

    def _run_body(self, run: Run, name: str, inputs: Mapping[str, Any]) -> list[Any]:
        steps = self._bodies[name].steps
        given = {each: run.values[each] for each in steps.reads if each not in inputs}
        return steps.run({**given, **inputs}, run.options)


class Branches(Bodies):
    """An If."""

    def _run(self, run: Run) -> list[Any]:
        return self._run_body(run, "then_branch" if self._input(run, 0).item() else "else_branch", {})


class Repeated(Bodies):
    """A Loop."""

    def _run(self, run: Run) -> list[Any] | None:
        times, goes_on = self._input(run, 0), self._input(run, 1)
        limit = None if times is None else times.item()
        carried = [self._input(run, i) for i in range(2, len(self._inputs))]
        number, condition, *names = (each.name for each in self._bodies["body"].proto.input)
        of_number, of_condition, *_ = (_ones(each) for each in self._bodies["body"].proto.input)
        is_on = np.array(True if goes_on is None else goes_on.item()).reshape(of_condition)
        kept: list[list[Any]] = []
        while is_on.item() and (limit is None or len(kept) < limit):
            given = {number: np.array(len(kept), np.int64).reshape(of_number), condition: is_on}
            is_on, *results = self._run_body(run, "body", given | dict(zip(names, carried, strict=True)))
            carried = results[: len(names)]
            kept.append(results[len(names) :])
        if not kept:
            return None
        return [*carried, *(_stacked("Loop", each, 0) for each in zip(*kept, strict=True))]


class Scanned(Bodies):
    """A Scan."""

    def __init__(self, program: Program, edited: Edited, node: Any, *rest: Any) -> None:
        super().__init__(program, edited, node, *rest)
        found = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        count = found["num_scan_inputs"]
        self._carries = len(node.input) - count
        results = len(node.output) - self._carries
        self._axes = found.get("scan_input_axes", [0] * count)
        self._backwards = found.get("scan_input_directions", [0] * count)
        self._result_axes = found.get("scan_output_axes", [0] * results)
        self._results_backwards = found.get("scan_output_directions", [0] * results)

    def _run(self, run: Run) -> list[Any] | None:
        given = [self._input(run, i) for i in range(len(self._inputs))]
        carried, scanned = given[: self._carries], given[self._carries :]
        moved = [np.moveaxis(each, axis, 0) for each, axis in zip(scanned, self._axes, strict=True)]
        moved = [each[::-1] if back else each for each, back in zip(moved, self._backwards, strict=True)]
        names = [each.name for each in self._bodies["body"].proto.input]
        if not all(len(each) == len(moved[0]) for each in moved):
            return None  # the operator refuses them
        kept: list[list[Any]] = []
        for i in range(len(moved[0])):
            slices = [np.asarray(each[i], order="C") for each in moved]
            results = self._run_body(run, "body", dict(zip(names, [*carried, *slices], strict=True)))
            carried = results[: self._carries]
            kept.append(results[self._carries :])
        if not kept:
            return None
        columns = list(zip(*kept, strict=True))
        columns = [each[::-1] if back else each for each, back in zip(columns, self._results_backwards, strict=True)]
        return [*carried, *(_stacked("Scan", *each) for each in zip(columns, self._result_axes, strict=True))]


_KINDS: dict[str, type[Bodies]] = {"If": Branches, "Loop": Repeated, "Scan": Scanned}


def step(
    program: Program, edited: Edited, node: Any, bodies: Mapping[str, Body], whole: Callable[[Any, Edited], Step]
) -> Step:
    return _KINDS[node.op_type](program, edited, node, bodies, whole)


def _ones(value: Any) -> tuple[int, ...]:
    """The shape of a body's number or condition: it may be of one element, or a number."""
    return (1,) * len(value.type.tensor_type.shape.dim)


def _stacked(operator: str, results: tuple[Any, ...], axis: int) -> Any:
    if any(each.shape != results[0].shape for each in results):
        shapes = ", ".join(dict.fromkeys(str(each.shape) for each in results))
        raise _core.Error(
            f"[onnxruntime] {operator} can't stack results of its body: they have the shapes {shapes}; a result of a body "
            "that is stacked needs the same shape each time"
        )
    return np.stack(results, axis)
