"""The place of an operator call in a Python program, from which its id and its context's texts are computed.

Called once per place; afterwards the driver finds the place by the addresses of the frames' code, their instruction
offsets and modules. Compiled programs are named here, too: their steps come from the compiler.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from amanda import _fork
from amanda.drivers.torch import lifetimes, models, operands, port
from amanda.identity import frames, roots

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE_FILE = os.path.join(_TORCH, "nn", "modules", "module.py")
_CHECKPOINT_FILE = os.path.join(_TORCH, "utils", "checkpoint.py")
_COMPILER = os.path.join(_TORCH, "_dynamo") + os.sep
_lock = _fork.rlock()  # two threads that run a model for the first time must agree on its name


class Step(NamedTuple):
    """A Python frame on the way from an operator outwards, or a call that a compiler has inlined instead of one."""

    code: CodeType
    offset: int  # of the instruction that it is at
    python_module: str  # that the code belongs to
    runs: Any = None  # the nn.Module, if it is the frame of a module's call
    mark: roots.Mark | None = None  # of amanda.root
    enters: bool = False  # it entered an open scope

    @property
    def line(self) -> int:
        return frames.line_of(self.code, self.offset)


class Path(NamedTuple):
    """From an operator outwards to its root."""

    places: tuple[object, ...]
    modules: list[Any]  # the running modules, innermost first
    source: str


class Identity(NamedTuple):
    """Of an operator: its id, the name of the module that runs, and the source line."""

    id: int
    module_path: str
    source: str


def resolve(
    frame: FrameType | None, name_hash: int, tensors: Sequence[tuple[int, Any, bool]], recomputing: bool
) -> Identity:
    """Identifies the operator that `frame` calls; see identify()."""
    with naming():
        return identify(path_of(steps_from(frame)), name_hash, tensors, recomputing)


def identify(
    path: Path, name_hash: int, tensors: Sequence[tuple[int, Any, bool]], recomputing: bool = False
) -> Identity:
    """Identifies an operator on a path, inside naming().

    Arguments: name_hash: of the operator's name. tensors: for each tensor operand: (position, tensor, does it count as a
        parameter by its type). recomputing: is a backward operator recomputing a checkpointed region?
    """
    place = frames.hash_of((name_hash, path.places))
    named = []
    for position, tensor, counts in tensors:
        name = operands.operand(tensor, counts, path.modules, place, recomputing)
        if name is not None:
            named.append((position, name))
    module_path = frames.encodable(models.names_in(path.modules))
    return Identity(frames.hash_of((place, named)) or 1, module_path, frames.encodable(path.source))


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Around what names places and parameters: one thread at a time, and nothing in it is recorded or seen."""
    with _lock, _not_traced(), port.WithoutTorchFunctions():
        lifetimes.tell()
        yield


@contextlib.contextmanager
def _not_traced() -> Iterator[None]:
    """Under torch.jit.trace sizes are tensors: reading them would be recorded, and seen by tools."""
    state = port.get_tracing_state()
    if state is None:
        yield
        return
    port.set_tracing_state(None)
    try:
        yield
    finally:
        port.set_tracing_state(state)


def steps_from(frame: FrameType | None, resumed: bool = False) -> list[Step]:
    """The frame and its callers, innermost first. Not to be kept: the modules live as long as it.

    A function that the compiler has split at a graph break is one step: the frame of its last part, which those of the
    parts before have called. `resumed`: `frame` has called such a part.
    """
    steps: list[Step] = []
    for each in frames.outwards(frame):
        code, offset = original_of(each.f_code, each.f_lasti)
        mark, enters = roots.mark_of(each), roots.is_root(each)
        if resumed:
            steps[-1:] = [step._replace(mark=step.mark or mark, enters=step.enters or enters) for step in steps[-1:]]
        else:
            steps.append(Step(code, offset, frames.module_of(each), _module_run_by(each), mark, enters))
        resumed = code is not each.f_code
    return steps


def original_of(code: CodeType, offset: int) -> tuple[CodeType, int]:
    """The function that a part of it continues after a graph break, and the instruction there; any other code itself."""
    original = port.resumed_code(code)
    return (code, offset) if original is None else (original, frames.same_place(original, code, offset))


def path_of(steps: Sequence[Step]) -> Path:
    """The steps from the operator to the root, each as its function and the source position of the call in it.

    A step that runs a module is represented by the module's name in its model. The root is a `torch.utils.checkpoint`
    boundary, so that a recomputation has the ids of the first run; otherwise the outermost module that has state, so
    that ids do not depend on the loop around a model; otherwise the innermost frame that `amanda.root` marks; otherwise
    the innermost frame that entered a scope, so that ids do not depend on frames further out.
    """
    modules = [step.runs for step in steps if step.runs is not None]
    lent = any(step.code is port.FUNCTIONAL_CALL for step in steps)
    for module in reversed(modules):
        models.register_model(module)
        if not lent:
            operands.register_buffers(module)
    places: list[object] = []
    root = entered = 0
    mark: roots.Mark | None = None
    marked: tuple[object, ...] = ()
    for step in steps:
        lifetimes.watch(step.code)
        outside = len(places)
        if step.runs is not None:
            known = models.name_of(step.runs)
            places.append((known.model, known.name))
            if known.has_state:
                root = len(places)
        elif step.code.co_filename == _CHECKPOINT_FILE:
            root = len(places)
            break
        elif not is_machinery(step.code.co_filename):
            places.append(frames.place_of(step.python_module, step.code, step.offset))
        if mark is None and (mark := step.mark) is not None:
            marked = (*places[:outside], mark.place) if mark.place else tuple(places)
        if not entered and step.enters:
            entered = len(places)
    path = tuple(places[:root]) if root else marked or tuple(places[: entered or None])
    return Path(path, modules, _source(steps))


lifetimes.objects.listen(frames.forget)


@functools.cache
def is_machinery(filename: str) -> bool:
    """Is it a frame between a module or a compiled function and its code, or one of Amanda's, such as its replacements
    of torch's functions?"""
    return filename == _MODULE_FILE or filename.startswith(_COMPILER) or frames.is_ours(filename)


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not port.RUN_MODULE:
        return None
    module = frame.f_locals.get("self")
    runs = issubclass(type(module), torch.nn.Module) and port.without_compiler(module) is module
    return module if runs else None


def _source(steps: Sequence[Step]) -> str:
    """The innermost line outside torch and Amanda."""
    for step in steps:
        filename = step.code.co_filename
        if not filename.startswith(_TORCH) and not is_machinery(filename):
            return f"{filename}:{step.line}"
    return ""
