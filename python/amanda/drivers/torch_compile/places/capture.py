"""The places in the program from which the nodes of Dynamo's graphs come, noted while Dynamo traces it."""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import fx

from amanda.driver.identity import frames
from amanda.drivers.torch import port as torch_port
from amanda.drivers.torch.identity import call_path
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.places.applied import Application, Applied


class Module:
    """An nn.Module whose call was inlined. `source` is the expression by which Dynamo finds it from the compiled frame,
    or "" if it was made in that frame."""

    def __init__(self, module: Any, source: str) -> None:
        self._made = None if source else module  # without parameters: Dynamo refuses to make them
        self._known = weakref.ref(module)
        self.source = source

    def traced(self) -> Any:
        """The module that was traced; None if it has died."""
        return self._known() if self._made is None else self._made


class Traced(NamedTuple):
    """A call that Dynamo has inlined, or the frame that it compiles."""

    code: CodeType
    offset: int
    python_module: str
    runs: Module | None = None
    resumes: bool = False  # it is what follows a graph break in a function of this code


class _Steps:
    """Among what Dynamo notes of a node, which copies of the node have, too; not in what is saved of it."""

    def __init__(self, steps: tuple[Traced, ...], applied: Applied | None = None) -> None:
        self.steps, self.applied = steps, applied

    def __deepcopy__(self, memo: object) -> _Steps:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Steps, ((),)


_KEY = "amanda_steps"
_NONE = _Steps(())
# Calls in traced frames for which Dynamo shows no frame. An item is the translator of the calling frame, the step, and
# a flag. The step is None if it does not count. The flag is true if it is a step only where `Module.__call__` runs. One
# thread traces at a time.
_calls: list[tuple[Any, Traced | None, bool]] = []
# The functions of the program's that are applied, innermost last.
_applications: list[Application] = []
# The generators that run, and the frames that have resumed them. Dynamo mistakes the frames that have made them for
# their callers.
_resumed: list[tuple[Any, Any]] = []
_lock = threading.Lock()
_capturing = 0


def place_data(node: fx.Node) -> tuple[Traced, ...]:
    """The calls around a node of Dynamo's, innermost first; the last one is the compiled frame. Empty if Dynamo has
    added the node by itself."""
    found: _Steps = node.meta.get(_KEY, _NONE)
    return found.steps


def applied_by(node: fx.Node) -> Applied | None:
    """The `torch.autograd.Function` that a node applies; None if it does something else, or this is not known."""
    found: _Steps = node.meta.get(_KEY, _NONE)
    return found.applied


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """A context of Dynamo's callback, in which calls are captured."""
    global _capturing
    with _lock:
        _capturing += 1
        if _capturing == 1:
            _patch()
    try:
        yield
    finally:
        with _lock:
            _capturing -= 1
            if _capturing == 0:
                _unpatch()


# ---- what Dynamo does -------------------------------------------------------------------------------------------------

_patched: list[tuple[port.Method, Any]] = []


def _patch() -> None:
    _replace(port.CREATE_NODE, _noting_nodes)
    _replace(port.CALL_MODULE, _noting_modules)
    _replace(port.CALL_CHECKPOINT, _noting_checkpoints)
    _replace(port.CALL_REGION, _noting_regions)
    _replace(port.CALL_FUNCTION, _noting_functions)
    _replace(port.RESUME_GENERATOR, _noting_generators)
    _replace(port.MAKE_LOSS, _noting_losses)


def _unpatch() -> None:
    while _patched:
        method, function = _patched.pop()
        setattr(method.cls, method.name, function)


def _replace(method: port.Method, wrap: Callable[[Any], Any]) -> None:
    function = getattr(method.cls, method.name)
    _patched.append((method, function))
    setattr(method.cls, method.name, functools.wraps(function)(wrap(function)))


def _noting_nodes(create: Any) -> Any:
    def create_node(self: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
        node = create(self, kind, *args, **kwargs)
        if kind.startswith("call"):
            applied = _applications[-1].by(self, node) if _applications else None
            node.meta[_KEY] = _Steps(_steps(self.output_graph.current_tx), applied)
        return node

    return create_node


def _noting_modules(call: Any) -> Any:
    def call_function(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.value
        known = None
        if torch_port.without_compiler(module) is module:
            known = _run_of(Module(module, self.source.name if self.source else ""))
        with _calling(tx, known, within=type(module).__call__ is not torch.nn.Module.__call__):
            return call(self, tx, *args, **kwargs)

    return call_function


def _noting_checkpoints(call: Any) -> Any:
    return _noting(call, Traced(torch_port.CHECKPOINT, 0, "torch.utils.checkpoint"))


def _noting_regions(call: Any) -> Any:
    runs = port.RUN_REGION
    return _noting(call, Traced(runs, _returned_calls(runs)[-1], port.REGION_MODULE))


def _noting_functions(call: Any) -> Any:
    apply = port.APPLY
    step = None if apply is None else Traced(apply, _returned_calls(apply)[0], port.FUNCTION_MODULE)

    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        application = Application(self.fn_cls.__name__, [*args, *kwargs.values()])
        _applications.append(application)
        try:
            with _calling(tx, step) if step else contextlib.nullcontext():
                result = call(self, tx, args, kwargs)
        finally:
            _applications.pop()
        application.end(result)
        return result

    return call_apply


def _noting(call: Any, step: Traced) -> Any:
    def _call_function(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        with _calling(tx, step):
            return call(self, tx, *args, **kwargs)

    return _call_function


def _noting_generators(resume: Any) -> Any:
    def run(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        _resumed.append((self.inline_tracer, tx))
        try:
            return resume(self, tx, *args, **kwargs)
        finally:
            _resumed.pop()

    return run


def _noting_losses(construct: Any) -> Any:
    """An nn.CrossEntropyLoss that the program makes while it is traced is a function of Dynamo's: it has no module."""
    forward = torch.nn.CrossEntropyLoss.forward
    runs = Traced(forward.__code__, _returned_calls(forward.__code__)[-1], forward.__module__)

    def _call_cross_entropy_loss(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        loss = construct(self, tx, *args, **kwargs)
        compute = loss.fn
        module = Module(torch.nn.CrossEntropyLoss.__new__(torch.nn.CrossEntropyLoss), "")

        def run(*args: Any, **kwargs: Any) -> Any:
            caller = tx.output.current_tx
            with _calling(caller, _run_of(module)), _calling(caller, runs):
                return compute(*args, **kwargs)

        loss.fn = run
        return loss

    return _call_cross_entropy_loss


def _run_of(module: Module) -> Traced:
    return Traced(torch_port.RUN_MODULE, 0, torch.nn.Module.__module__, module)


def _returned_calls(code: CodeType) -> list[int]:
    """The offsets of the calls whose results the function returns."""
    pairs = itertools.pairwise(dis.get_instructions(code))
    return [call.offset for call, following in pairs if following.opname == "RETURN_VALUE"]


@contextlib.contextmanager
def _calling(tx: Any, step: Traced | None, within: bool = False) -> Iterator[None]:
    _calls.append((tx, step, within))
    try:
        yield
    finally:
        _calls.pop()


def _steps(tx: Any) -> tuple[Traced, ...]:
    """The steps from the code that Dynamo traces outwards. A module runs where `Module.__call__` would be: inside a
    `__call__` of its class."""
    steps: list[Traced | None] = []
    running: list[int] = []  # where frames of Module.__call__ are among the steps
    while tx is not None:
        for caller, step, within in reversed(_calls):
            if caller is not tx:
                continue
            if running and (step is None or step.runs is not None):
                steps[running.pop()] = step
            elif not within:
                steps.append(step)
        if tx.f_code is torch_port.RUN_MODULE:
            running.append(len(steps))
            steps.append(None)
        elif tx.f_code not in port.TRACED_APPLY:
            code, offset = call_path.original_of(tx.f_code, _offset(tx))
            python_module = frames.name_of_module(tx.f_globals.get("__name__"))
            steps.append(Traced(code, offset, python_module, resumes=code is not tx.f_code))
        tx = _caller_of(tx)
    return tuple(step for step in steps if step is not None)


def _caller_of(tx: Any) -> Any:
    for generator, caller in reversed(_resumed):
        if generator is tx:
            return caller
    return tx.parent if isinstance(tx, port.InliningInstructionTranslator) else None


def _offset(tx: Any) -> int:
    """The offset of the instruction that is traced. Dynamo has renumbered it."""
    index = tx.instructions.index(tx.current_instruction)
    while index > 0 and tx.instructions[index].positions is None:  # added by Dynamo
        index -= 1
    what = _kind(tx.instructions[index])
    offsets = _offsets(tx.f_code).get(what) or _offsets(tx.f_code).get(("", what[1]), [0])
    ordinal = sum(_kind(other) == what for other in tx.instructions[:index])
    return offsets[min(ordinal, len(offsets) - 1)]


def _kind(instruction: Any) -> tuple[str, tuple[int | None, ...] | None]:
    positions = instruction.positions
    return instruction.opname, None if positions is None else tuple(positions)


_offsets_of: weakref.WeakKeyDictionary[CodeType, dict[Any, list[int]]] = weakref.WeakKeyDictionary()


def _offsets(code: CodeType) -> dict[Any, list[int]]:
    """The offsets of a code's instructions, by kind and source position, and by source position."""
    if code not in _offsets_of:
        found = _offsets_of[code] = collections.defaultdict(list)
        for instruction in dis.get_instructions(code):
            opname, positions = _kind(instruction)
            found[opname, positions].append(instruction.offset)
            found["", positions].append(instruction.offset)
    return _offsets_of[code]
