"""Passes: the nodes of the last backward passes, for PyTorch's error that one of them runs a second time. Imports torch."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amanda.toolkit import Place, native
from amanda.toolkit.frames import line_of_code, program_line
from amanda.toolkit.torch import BackwardCall, next_sequence_number

from .called import at
from .finding import FREED, SecondPass
from .saved import nodes_of
from .savers import Savers

KEPT = 8  # of the last passes
_RAW = "_raw_saved_"


@dataclasses.dataclass(frozen=True)
class _Pass:
    line: str  # of the program: it called backward()
    end: int  # nodes made since have this number, or higher ones
    has: Callable[[int], bool]  # a node with this number, behind its losses


class Passes:
    """A `BackwardListener`. It keeps numbers of nodes, no node."""

    def __init__(self) -> None:
        self._running: dict[int, _Pass] = {}  # by the id of the call
        self._ended: collections.deque[_Pass] = collections.deque(maxlen=KEPT)

    def begin(self, call: BackwardCall) -> None:
        if not (call.keeps_graph or call.is_nested):
            self._running[id(call)] = _Pass(
                program_line(sys._getframe()), next_sequence_number(), _numbers(call.tensors)
            )

    def end(self, call: BackwardCall, error: BaseException | None, gradients: Sequence[Any]) -> None:
        ended = self._running.pop(id(call), None)
        if ended is not None:
            self._ended.append(ended)

    def clear(self) -> None:
        self._ended.clear()

    def found(self, began: Sequence[Any], savers: Savers) -> SecondPass | None:
        """Looks for the part of this graph that an earlier pass has freed. None if there is none."""
        nodes = sorted(nodes_of(began), key=_number, reverse=True)
        for node in nodes:
            if _is_freed(node):
                earlier = next((one for one in reversed(self._ended) if one.has(_number(node))), None)
                if earlier is not None:
                    return _finding(node, nodes, earlier, savers)
        return None


def _finding(freed: Any, nodes: Sequence[Any], earlier: _Pass, savers: Savers) -> SecondPass:
    users: dict[Any, Any] = {}
    for node in nodes:  # the last one made comes first
        for following, _ in node.next_functions:
            users.setdefault(following, node)
    last, user = _climbed(freed, users, lambda one: one < earlier.end)
    is_new = user is not None
    if not is_new:
        last, user = _climbed(freed, users, earlier.has)
    return SecondPass(
        user="" if user is None else _text(user, savers),
        used=_text(last, savers),
        freed=_text(freed, savers),
        backward=line_of_code(earlier.line) if earlier.line else "",
        is_carried_over=is_new,
    )


def _climbed(node: Any, users: dict[Any, Any], passes: Callable[[int], bool]) -> tuple[Any, Any]:
    """The last node, on a way to the loss, before the first whose number does not pass; and that one, or None."""
    last, user = node, users.get(node)
    while user is not None and passes(_number(user)):
        last, user = user, users.get(user)
    return last, user


def _numbers(began: Sequence[Any]) -> Callable[[int], bool]:
    """A predicate: a node with this number is behind these tensors, or edges."""
    if all(isinstance(end, torch.Tensor) for end in began):
        return native.torch_tools.GraphNodes(began).has
    return frozenset(map(_number, nodes_of(began))).__contains__


def _number(node: Any) -> int:
    """-1 of the nodes of all leaves, which PyTorch gives one number."""
    number = int(node._sequence_nr())
    return number if number < 1 << 63 else -1


def _text(node: Any, savers: Savers) -> str:
    saver = savers.of(node)
    place: Place | None = None if saver is None else saver.place
    return at(place) if place is not None else node.name()


def _is_freed(node: Any) -> bool:
    return any(_lacks(node, name.removeprefix(_RAW)) for name in dir(node) if name.startswith(_RAW))


def _lacks(node: Any, name: str) -> bool:
    try:
        raw = getattr(node, f"{_RAW}{name}")
        if (
            isinstance(raw, tuple) or raw.data is not None
        ):  # a list, or it is there: the program's hooks would unpack it
            return False
        getattr(node, f"_saved_{name}")
    except RuntimeError as error:
        return FREED in str(error)
    return False
