"""collectives-differ."""

from __future__ import annotations

import collections
import sys
import time
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code, outwards

from .. import ranks
from ..rule import Rule, Step

LAST = 64  # calls that are compared
WAITS_S = 2.0  # at the end, for the other ranks
_SAME_SIZES = ("allreduce_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "alltoall_")


class CollectivesDiffer(Rule):
    """The ranks of a program call different collectives, or the same one with other sizes. They hang then, fail, or mix
    up their data. An example is a mixture of experts whose ranks have other capacities.

    It compares the last 64 calls for the group of all ranks, at steps 1, 2, 3, 5, 9 and so on, and when the scope is left.
    There, also after an error, it waits for the other ranks for up to two seconds. It leaves out
    calls in C++, as of `DistributedDataParallel`, `send` and `recv`, and sizes that may differ, such as those of
    `all_gather` and of `all_to_all_single` with split sizes.
    """

    name = "collectives-differ"
    sentence = "ranks call different collectives"
    fix = "let all ranks compute the same sizes and conditions: reduce them over the ranks first"
    group = "of few operators"
    ops = ("c10d::*",)
    processes = 2
    bad = """
        torch.distributed.all_reduce(torch.ones(4) if rank else torch.ones(2, 2))
    """
    good = """
        torch.distributed.all_reduce(torch.ones(2, 2) * rank)
    """

    def begin(self) -> None:
        self._board: ranks.Board | None = None
        self._calls: collections.deque[tuple[str, Place]] = collections.deque(maxlen=LAST)
        self._number = self._steps = 0
        self._is_found = False

    def look(self, context: OpContext) -> None:
        if ranks.several() and not context.op.__name__.startswith(("send", "recv")):
            tensors = [name for name in context.op.input_names if name in ("tensors", "input", "output")]
            context.insert_before_op(self._on_call, inputs=tensors[:1], place=Place.of(context))

    def _on_call(self, given: Any = None, *, place: Place) -> None:
        call = _program_call()
        if call is None:
            return
        name = place.name.partition("::")[2]
        has_sizes = name in _SAME_SIZES and not call.get("output_split_sizes") and not call.get("input_split_sizes")
        self._calls.append((f"{name}{_sizes(given) if has_sizes else ''}", place))
        self._number += 1

    def after_step(self, step: Step) -> None:
        if self._number and ranks.several():
            if self._steps & (self._steps - 1) == 0:
                self._publish(f"step {self._steps}")
            self._compare()
        self._steps += 1

    def at_end(self, ended_well: bool) -> None:
        if self._number and ranks.several() and not self._is_found:
            self._publish("end")
            until = time.monotonic() + WAITS_S
            while self._compare() and time.monotonic() < until:
                time.sleep(0.02)
        self.begin()

    def _publish(self, key: str) -> None:
        if self._board is None:
            self._board = ranks.Board(self.name)
        calls = [(text, line_of_code(place.source)) for text, place in self._calls]
        self._board.put(key, {"first": self._number - len(calls), "calls": calls})

    def _compare(self) -> bool:
        """True if other ranks have not answered yet."""
        if self._board is None:
            return False
        for _, note, rank, other in self._board.answered():
            of_other = dict(enumerate(other["calls"], other["first"]))
            for number, (text, _) in enumerate(note["calls"], note["first"]):
                if number in of_other and of_other[number][0] != text:
                    self._report_call(number, f"{text} here, and {' at '.join(of_other[number])} on rank {rank}")
                    break
        return self._board.waits

    def _report_call(self, number: int, what: str) -> None:
        kept = number - (self._number - len(self._calls))
        if not self._is_found and kept >= 0:
            self._is_found = True
            self.found(self._calls[kept][1], f"call {number + 1} is {what}")


def _program_call() -> dict[str, Any] | None:
    """The arguments of the function of torch.distributed that runs, if it is for the group of all ranks; else None."""
    import torch.distributed

    outer = (
        one
        for one in outwards(sys._getframe(1))
        if one.f_globals.get("__name__") == "torch.distributed.distributed_c10d"
    )
    known = [one.f_locals for one in outer if "group" in one.f_locals]
    group = known[-1]["group"] if known else 0
    return dict(known[-1]) if known and group in (None, torch.distributed.group.WORLD) else None


def _sizes(given: Any) -> str:
    tensors = given if isinstance(given, (list, tuple)) else [given]
    return str([(tuple(one.shape), str(one.dtype)[6:]) for one in tensors if hasattr(one, "dtype")])
