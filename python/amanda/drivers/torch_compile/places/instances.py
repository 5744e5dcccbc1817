"""The instances of a compiled graph: the layers that share it, and the places that the compiled function is called from.

The ids of the graph's operators depend on the instance. Nothing here keeps a module or a parameter alive.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx

from amanda import _core, _torch
from amanda.driver.identity import frames
from amanda.drivers.torch import port as torch_port
from amanda.drivers.torch.identity import call_path, lifetimes
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.places import capture

_MOST = 4096  # call stacks that are remembered; after that, all are looked at again


class Instance:
    """Equal instances are the same object."""

    def __init__(self, callers: Iterable[call_path.Step], modules: dict[str, Any]) -> None:
        self._callers = [
            (step._replace(runs=None), None if step.runs is None else weakref.ref(step.runs)) for step in callers
        ]
        self._modules = {source: weakref.ref(module) for source, module in modules.items()}
        self.built: dict[_core.Toolset, Any] = {}  # what its graph has become under each toolset

    def callers(self) -> list[call_path.Step]:
        """The steps around the compiled frame."""
        return [step if runs is None else step._replace(runs=runs()) for step, runs in self._callers]

    def module(self, traced: capture.Module) -> Any:
        """The instance's module in the place of one that was traced; None if it was not found."""
        known = self._modules.get(traced.source)
        return traced.traced() if known is None else known()


class Instances:
    """The instances of one graph."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self._lasting = tuple(i for i, example in enumerate(example_inputs) if _is_lasting(example))
        steps = [step for node in _nodes(gm) for step in capture.place_data(node)[-1:]]
        self._compiled: capture.Traced | None = steps[0] if steps else None
        self._modules = {
            step.runs.source: step.runs
            for node in _nodes(gm)
            for step in capture.place_data(node)
            if step.runs is not None and step.runs.source
        }
        # Those found in an epoch. One value: another thread may begin the next epoch at any time.
        self._found: tuple[int, dict[int, Instance]] = 0, {}
        self._known: dict[object, Instance] = {}

    def of(self, args: Sequence[Any]) -> Instance:
        """The instance that runs, or is compiled, on these inputs.

        To be called below the compiled frame, or below Dynamo's callback that compiles it.
        """
        epoch, key = _torch.raw_place(args, self._lasting)
        known = self._found
        if epoch != known[0] or len(known[1]) > _MOST:
            known = self._found = epoch, {}
        found = known[1].get(key)
        if found is None:
            found = known[1][key] = self._find(args)
        return found

    def _find(self, args: Sequence[Any]) -> Instance:
        with call_path.naming():
            frame, callers = _around(self._compiled)
            path = call_path.path_of(callers)
        key = path.places, tuple([id(args[i]) for i in self._lasting])
        known = self._known.get(key)
        if known is None:
            modules = {
                source: traced.traced() if frame is None else _evaluate(source, frame)
                for source, traced in self._modules.items()
            }
            found = {source: module for source, module in modules.items() if module is not None}
            made = Instance(callers, found)
            known = self._known.setdefault(key, made)
            if known is not made:  # another thread was first
                return known
            for i in self._lasting:  # another tensor may get the address
                weakref.finalize(args[i], self._forget, key).atexit = False
        return known

    def _forget(self, key: object) -> None:
        self._known.pop(key, None)
        self._found = 0, {}


def _is_lasting(example: Any) -> bool:
    """True if it is a parameter or a buffer. Other inputs are others in each run."""
    return isinstance(example, torch.nn.Parameter) or hasattr(example, port.STATIC_INPUT)


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _around(compiled: capture.Traced | None) -> tuple[FrameType | None, list[call_path.Step]]:
    """The compiled frame, and the steps around it. The frame is None while it is being compiled."""
    for frame in frames.outwards(sys._getframe(1)):
        if frame.f_code is port.RUN_CALLBACK:
            return None, _steps_around_callback(frame.f_back, compiled)
        if compiled is not None and _compiled_from(frame.f_code) is compiled.code:
            lifetimes.watch(frame.f_code)
            return frame, call_path.steps_from(frame)[1:]
    return None, []


def _steps_around_callback(frame: FrameType | None, compiled: capture.Traced | None) -> list[call_path.Step]:
    if compiled is None or not compiled.resumes:
        return call_path.steps_from(frame)
    while frame is not None and _compiled_from(frame.f_code) is not compiled.code:
        frame = frame.f_back
    return call_path.steps_from(frame, resumed=True)


def _compiled_from(code: CodeType) -> CodeType | None:
    """The program's code of which Dynamo has made this one, or what follows a graph break in it."""
    known = port.original_codes.get(code)
    return known and (torch_port.resumed_code(known) or known)


def _evaluate(source: str, frame: FrameType) -> Any:
    """The value of one of Dynamo's expressions in a compiled frame; None if it cannot be evaluated."""
    try:
        return eval(source, dict(port.names_in_sources()), {"L": frame.f_locals, "G": frame.f_globals})
    except Exception:  # whatever the program's own items and attributes raise
        return None
