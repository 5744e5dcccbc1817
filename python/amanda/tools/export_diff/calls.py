"""Calls of the model: the arguments, the operators that ran, and what the model returned."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from amanda.toolkit import Place, own_work

from .arrays import Kept, Key, Store
from .origins import scope_name
from .replay import Replay, tensors_in


class Ran(NamedTuple):
    """An operator that ran in a call."""

    place: Place
    inputs: frozenset[Key]
    parameters: frozenset[str]
    outputs: tuple[Kept | None, ...]  # None where one cannot be read
    flops: int | None = None  # None if they are not counted


class ModuleRun(NamedTuple):
    """A run of a module in a call."""

    path: str  # in the model
    scope: tuple[str, ...]  # the names of it and of the modules that run it, as TorchScript's exporter writes them
    start: int  # its operators in `Call.ran`
    end: int
    results: tuple[Kept, ...]


@dataclasses.dataclass
class Call:
    """A call of the model."""

    model: Any
    path: str  # of the model in the outermost module: "" if it is that
    is_training: bool
    store: Store = dataclasses.field(default_factory=Store)
    ran: list[Ran] = dataclasses.field(default_factory=list)
    modules: list[ModuleRun] = dataclasses.field(
        default_factory=list
    )  # in the order of their ends, if they are followed
    arguments: dict[str, list[Kept]] = dataclasses.field(default_factory=dict)  # the tensors of each argument
    results: list[Kept] = dataclasses.field(default_factory=list)
    written: set[int] = dataclasses.field(default_factory=set)  # addresses of the storages that operators wrote to
    names: dict[int, str] = dataclasses.field(default_factory=dict)  # the paths of modules, by ids; "" if there are two
    replay: Replay | None = None  # if calls are to be made again
    refused: str = ""  # the reason why it cannot be compared

    def path_inside(self, module_path: str) -> str:
        """The path of a module in the model."""
        if not self.path:
            return module_path
        return module_path.removeprefix(self.path).removeprefix(".")


class Calls:
    """Follows the calls of a model, with PyTorch's hooks for all modules, while they are open.

    Arguments:
        is_model: whether a module is the model.
        wants: whether a call that begins is to be followed.
        ended: gets each call at its end, on the thread that made it.
        follows_modules: whether calls have the runs of modules.
        keeps_arguments: whether they can be made again.
    """

    def __init__(
        self,
        is_model: Callable[[Any], bool],
        wants: Callable[[], bool],
        ended: Callable[[Call], object],
        follows_modules: bool,
        keeps_arguments: bool,
    ) -> None:
        self._is_model, self._wants, self._ended, self._follows_modules = is_model, wants, ended, follows_modules
        self._keeps_arguments = keeps_arguments
        self._local = threading.local()
        self._close: list[Callable[[], object]] = []

    @property
    def current(self) -> Call | None:
        """The call that this thread is in."""
        call: Call | None = getattr(self._local, "call", None)
        return call

    def open(self) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        from amanda.toolkit.torch import after_all_modules

        def begin(module: Any, arguments: Any) -> None:
            if not torch.compiler.is_compiling():  # else Dynamo would compile what follows into the program
                with own_work():
                    self._begin(module, arguments)

        def end(module: Any, arguments: Any, keywords: Mapping[str, Any], result: Any) -> None:
            if not torch.compiler.is_compiling():
                with own_work():
                    self._end(module, arguments, keywords, result)

        self._close = [register_module_forward_pre_hook(begin).remove, after_all_modules(end)]

    def close(self) -> None:
        while self._close:
            self._close.pop()()
        self._local = threading.local()

    def _begin(self, module: Any, arguments: Any) -> None:
        running = self._running()
        running.append(module)
        if self.current is not None:
            self._local.starts.append(len(self.current.ran))
            return
        if not self._wants() or not self._is_model(module):
            return
        call = Call(module, _path_in(running[0], module), module.training)
        call.arguments = {str(i): _kept(call, value) for i, value in enumerate(arguments)}
        if self._follows_modules:
            for name, each in module.named_modules(remove_duplicate=False):
                call.names[id(each)] = "" if id(each) in call.names else name
        if self._keeps_arguments:
            call.replay = Replay.of(arguments)
        self._local.call = call
        self._local.starts = []  # of the modules that run in the call: the number of operators before

    def _end(self, module: Any, arguments: Any, keywords: Mapping[str, Any], result: Any) -> None:
        running, call = self._running(), self.current
        if call is not None and self._local.starts:
            self._note_module(call, running, module, result)
        if running:
            running.pop()
        if call is None or call.model is not module or any(each is module for each in running):
            return
        self._local.call = None
        if result is None:
            return  # it has failed, or returns nothing
        call.results = _kept(call, result)
        call.arguments = {
            name: call.arguments.get(key) or _kept_at_end(call, name, value)
            for name, key, value in _bound(module, arguments, keywords)
        }
        if call.replay is not None:
            call.replay = call.replay.with_keywords(keywords)
        self._ended(call)

    def _note_module(self, call: Call, running: list[Any], module: Any, result: Any) -> None:
        start = self._local.starts.pop()
        if not self._follows_modules or result is None:
            return
        inside = [call.names.get(id(each), "") for each in running[-len(self._local.starts) - 1 :]]
        if all(inside):
            tensors = [tensor for tensor in tensors_in(result) if _unreadable(tensor) is None]
            results = tuple(call.store.kept(tensor) for tensor in tensors)
            call.modules.append(ModuleRun(inside[-1], tuple(map(scope_name, inside)), start, len(call.ran), results))

    def _running(self) -> list[Any]:
        """The modules that this thread runs, the outermost first."""
        if not hasattr(self._local, "running"):
            self._local.running = []
        running: list[Any] = self._local.running
        return running


def _path_in(outermost: Any, module: Any) -> str:
    return next((name for name, each in outermost.named_modules() if each is module), "")


def _bound(module: Any, arguments: Any, keywords: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The name of each argument in the order of the signature, its position if it was given by position, and its value."""
    try:
        bound = inspect.signature(module.forward).bind(*arguments, **keywords)
    except (TypeError, ValueError):
        yield from ((str(i), str(i), value) for i, value in enumerate(arguments))
        yield from ((name, "", value) for name, value in keywords.items())
        return
    position = 0
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            for each in value:
                yield f"{name}_{position}", str(position), each
                position += 1
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((key, "", each) for key, each in value.items())
        else:
            yield name, str(position) if position < len(arguments) and name not in keywords else "", value
            position += 1


def _kept_at_end(call: Call, name: str, value: Any) -> list[Kept]:
    """The tensors of an argument that was given by its name: hooks get it after the call only."""
    if any(tensor.untyped_storage().data_ptr() in call.written for tensor in tensors_in(value) if tensor.numel()):
        call.refused = f"the model writes to its argument {name}; the call is compared if that is given by position"
        return []
    return _kept(call, value)


def _kept(call: Call, value: Any) -> list[Kept]:
    found = []
    for tensor in tensors_in(value):
        why = _unreadable(tensor)
        if why:
            call.refused = call.refused or f"an argument or result is {why}"
        else:
            found.append(call.store.kept(tensor))
    return found


def _unreadable(tensor: Any) -> str | None:
    from amanda.toolkit.arrays import REASONS, known

    reason = known(tensor).why_unreadable(tensor)
    return None if reason is None else REASONS[reason]
