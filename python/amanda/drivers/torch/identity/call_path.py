"""The place of an operator call in a Python program, from which its id and its context's texts are computed.

C++ names places by `RULES`, once per place; afterwards the driver finds the place by the addresses of the frames' code,
their instruction offsets and modules. It asks Python for what only Python knows: the names of models that are new, and
the marks of roots. Compiled programs are named here: their steps come from the compiler.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from amanda import _torch
from amanda.core import fork
from amanda.driver.identity import frames, roots
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import lifetimes, models, operands, traced_places
from amanda.drivers.torch.identity.place_rules import PlaceRules

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE_FILE = os.path.join(_TORCH, "nn", "modules", "module.py")
_CHECKPOINT_FILE = os.path.join(_TORCH, "utils", "checkpoint.py")
_COMPILER = os.path.join(_TORCH, "_dynamo") + os.sep
_NOTHING = contextlib.nullcontext()
_lock = fork.rlock()  # two threads that run a model for the first time must agree on its name


class Step(NamedTuple):
    """A Python frame on the way from an operator outwards, or a call that a compiler has inlined instead of one."""

    spot: _torch.Spot
    runs: Any = None  # the nn.Module, if it is the frame of a module's call
    mark: roots.Mark | None = None  # of amanda.root
    enters: bool = False  # it entered an open scope


class Path(NamedTuple):
    """The path from an operator outwards to its root."""

    places: str  # the text of a tuple of them
    modules: list[Any]  # the running modules, innermost first
    source: str
    traced: tuple[
        str, int
    ]  # of a graph's operator: the name of its module in a running one, and the number of that one
    in_model: bool  # steps outside the outermost module do not change the places


class Identity(NamedTuple):
    """The identity of an operator: its id, the name of the module that runs, the source line, and whether the first two
    are the same wherever the outermost module is called."""

    id: int
    module_path: str
    source: str
    in_model: bool


def identify(
    path: Path, name_hash: int, tensors: Sequence[tuple[int, Any, bool]], recomputing: bool = False
) -> Identity:
    """Identifies an operator on a path, inside naming().

    Arguments: name_hash: of the operator's name. tensors: for each tensor operand: (position, tensor, true if it counts
    as a parameter by its type). recomputing: true if a backward operator is recomputing a checkpointed region.
    """
    found, module_path = _torch.identify(path.places, path.modules, path.traced, name_hash, tensors, recomputing)
    return Identity(found, module_path, path.source, path.in_model)


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """A context in which places and parameters are named: one thread at a time, and nothing in it is recorded or
    seen."""
    with _lock, port.WithoutTorchFunctions(), _untraced():
        lifetimes.tell()
        yield


def _untraced() -> contextlib.AbstractContextManager[None]:
    """Under torch.jit.trace sizes are tensors: reading them would be recorded, and seen by tools."""
    return _NOTHING if port.get_tracing_state() is None else _suspended_trace()


@contextlib.contextmanager
def _suspended_trace() -> Iterator[None]:
    state = port.get_tracing_state()
    port.set_tracing_state(None)
    try:
        yield
    finally:
        port.set_tracing_state(state)


def steps_from(frame: FrameType | None, resumed: bool = False) -> list[Step]:
    """The frame and its callers, innermost first. Not to be kept: the modules live as long as it.

    A function that the compiler has split at a graph break is one step: the frame of its last part, which those of the
    parts before have called. `resumed`: `frame` has called such a part. Inside `naming()`: what is known of code objects
    that have died since is wrong.
    """
    return _steps_with_resumed(frame, True) if resumed else _torch.steps_from(frame)


def _steps_with_resumed(frame: FrameType | None, resumed: bool) -> list[Step]:
    entered = roots.entered_here()
    steps: list[Step] = []
    for each in frames.outwards(frame):
        code, offset = original_of(each.f_code, each.f_lasti)
        enters = entered.get(id(each)) is each.f_code
        step = Step(
            _torch.Spot(code, offset, frames.module_of(each)), _module_run_by(each), roots.mark_of(each), enters
        )
        if resumed:
            steps[-1:] = [
                last._replace(mark=last.mark or step.mark, enters=last.enters or step.enters) for last in steps[-1:]
            ]
        else:
            steps.append(step)
        resumed = code is not each.f_code
    return steps


def step_at(code: CodeType, offset: int, python_module: str, runs: Any = None, graph_module: Any = None) -> Step:
    """The step of a frame, or a call, that is at this instruction. `graph_module`: whose graph the code is made from."""
    return Step(_torch.Spot(code, offset, python_module, graph_module), runs, roots.mark_of_function(code, offset))


lifetimes.objects.listen(frames.forget)
lifetimes.objects.listen(_torch.forget_steps)


def original_of(code: CodeType, offset: int) -> tuple[CodeType, int]:
    """The function that a part of it continues after a graph break, and the instruction there; any other code itself."""
    original = port.resumed_code(code)
    return (code, offset) if original is None else (original, frames.same_place(original, code, offset))


def path_of(steps: list[Step]) -> Path:
    """The steps from the operator to the root, each as its function and the source position of the call in it.

    A step that runs a module is represented by the module's name in its model. The root is the first of these that
    exists. First, a `torch.utils.checkpoint` boundary, so that a recomputation has the ids of the first run. Second,
    the outermost module that has state, so that ids do not depend on the loop around a model. Third, the innermost
    frame that `amanda.root` marks. Last, the innermost frame that entered a scope, so that ids do not depend on frames
    further out.
    """
    modules = _torch.modules_of(steps)
    borrows = name_running(modules, any(step.spot.lends for step in steps))
    places, source, traced, in_model = _torch.path_of(steps)
    return Path(places, modules, source, traced, in_model and not borrows)


def name_running(modules: list[Any], lends: bool) -> bool:
    """Names the running modules, innermost first, and has the buffers of their models count as parameters. Inside
    naming().

    Returns true if some buffers do not count, because a caller lends a module other tensors than its own (`lends`).
    """
    settle(modules)
    borrows = False
    for module in reversed(modules):
        if operands.has_buffers_of(module):
            continue
        if lends:
            borrows = True
        else:
            operands.register_buffers(models.named_parts(module))
    return borrows


def settle(modules: list[Any]) -> None:
    """Names the running modules, innermost first, as they are in the models that run now. Inside naming()."""
    while (outermost := _torch.next_to_name(modules)) is not None:
        parts = models.named_parts(outermost)
        operands.forget_modules(models.register_model(parts))
        if operands.has_buffers_of(outermost):
            operands.register_buffers([part for part in parts if not operands.has_buffers_of(part[1])])


def running_modules() -> list[Any]:
    """The modules that this thread runs, innermost first."""
    return [module for each in _torch.running_modules() if (module := _unwrapped(each)) is not None]


@functools.cache
def is_machinery(filename: str) -> bool:
    """True if it is a file of frames between a module or a compiled function and its code, or one of Amanda's, such as
    its replacements of torch's functions."""
    return filename == _MODULE_FILE or filename.startswith(_COMPILER) or frames.is_ours(filename)


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not port.RUN_MODULE:
        return None
    return _unwrapped(frame.f_locals.get("self"))


def _unwrapped(module: Any) -> Any:
    """The module; None for anything else, and for a wrapper of the compiler's, which counts as the module in it."""
    return module if issubclass(type(module), torch.nn.Module) and port.without_compiler(module) is module else None


RULES = PlaceRules(
    module_class=torch.nn.Module,
    parameter_class=torch.nn.Parameter,
    name_class=models.Name,
    step_class=Step,
    buffers_class=operands.Buffers,
    home_class=operands.Home,
    names=models.names,
    registered=operands.registered,
    homes=operands.homes,
    blocks=roots.blocks(),
    run_module=port.RUN_MODULE,
    functional_call=port.FUNCTIONAL_CALL,
    compiler=port.EVAL_FRAME,
    torch_folder=frames.encodable(_TORCH),
    checkpoint_file=frames.encodable(_CHECKPOINT_FILE),
    graph_file=traced_places.GRAPH_FILE,
    lock=_lock,
    tell_deaths=lifetimes.tell,
    name_running=name_running,
    resumed_steps=_steps_with_resumed,
    mark_of=roots.mark_of,
    mark_of_function=roots.mark_of_function,
    entered=roots.entered_here,
    is_resumed=port.is_resumed,
    search=operands.path_in,
    watch_exchanges=operands.patch_exchanges,
    settle_buffers=operands.settle_buffers,
    shape_of=models.shape_of,
    hash=frames.hash_bytes,
    is_machinery=is_machinery,
    traced_place=traced_places.traced_place,
    file_of=traced_places.file_of,
    position_of=frames.position_of,
    line_of=frames.line_of,
    name_of_module=frames.name_of_module,
)
