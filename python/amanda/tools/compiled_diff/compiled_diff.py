"""CompiledDiff: compares compiled functions with what they compute eagerly."""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from amanda import Tool
from amanda.toolkit import Results, Unseen, locks, own_work, preserved
from amanda.toolkit.compiled import listen_to_compiled_graphs
from amanda.toolkit.evidence import counted
from amanda.tools.diff import tolerances_of

from .options import Options
from .rows import GROUPINGS, GroupBy, Row, short


class CompiledDiff(Results[Row, GroupBy], Tool):
    """Compares the graphs of functions compiled with `torch.compile`, as the program's backend compiles them, with the same
    graphs run eagerly::

        diff = CompiledDiff()
        with amanda.apply(diff):
            compiled(x)
        print(diff.answer())

    Before each run of a graph, its compiled code and its operators run on copies of its inputs. Results, written inputs and
    gradients are compared. The gradients are those for random numbers in the place of the gradients of its results. The
    program itself runs as without the tool: no operator is kept from being fused, and all its results are the same.

    When a graph differs for the first time, it is cut at values of the eager run, and its parts are compiled. The result is
    the smallest set of operators that still differs when it is compiled as one: no operator can be left out of it. Rows
    name these operators, and the kernels that are generated for them. They also have the first part of the compiler with
    which these operators differ, options of inductor that remove the difference, and how far both are from the float64
    result.

    Arguments:
        rtol, atol: differences up to ``atol + rtol * abs(eager)`` are tolerated. By default, bits are compared.
        close: tolerates what `torch.testing.assert_close` does for each dtype, unless `rtol` or `atol` is given.
        backward: compares gradients, too.
        only_nonfinite: a value differs only if it is finite in one of the two. Then a graph runs eagerly only if its
            compiled code has given a value that is not finite.
        seconds: the time for the search in one graph. When it is over, the smallest set so far is reported.

    Raises:
        ValueError: a tolerance or `seconds` is negative.
    """

    _speaker = "compiled_diff"
    _groupings = GROUPINGS

    def __init__(
        self,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        close: bool = False,
        backward: bool = True,
        only_nonfinite: bool = False,
        seconds: float = 120.0,
    ) -> None:
        super().__init__("compiled_diff")
        if not seconds >= 0:
            raise ValueError(f"[compiled_diff] seconds= is the time for a search, 0 or more, got {seconds!r}")
        self._tolerances = tolerances_of(rtol, math.inf if only_nonfinite else atol, close)
        self._options = Options(backward, only_nonfinite, seconds)
        self._lock = locks.rlock()
        self._threads: collections.Counter[int] = collections.Counter()  # that have entered its scopes, how often
        self._end_listening: Callable[[], None] | None = None
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._graphs: dict[Any, Any] = {}  # GraphDiffs, by CompiledGraph
            self._numbers: collections.Counter[str] = collections.Counter()  # of graphs, by function
            self._skipped: collections.Counter[tuple[str, str]] = collections.Counter()  # runs, by function and reason
            self.reset_evidence()

    def on_enter(self) -> None:
        with self._lock:
            self._threads[threading.get_ident()] += 1
            if self._end_listening is None:
                self._end_listening = listen_to_compiled_graphs(self)

    def on_exit(self, error: BaseException | None) -> None:
        with self._lock:
            self._threads[threading.get_ident()] -= 1
            self._threads = +self._threads
            if not self._threads and self._end_listening is not None:
                self._end_listening()
                self._end_listening = None

    def before_run(self, graph: Any, inputs: Sequence[Any]) -> None:
        """For the driver: a compiled graph is about to run."""
        if threading.get_ident() not in self._threads:
            return
        with self._lock, own_work(), preserved(None):
            known = self._graphs.get(graph) or self._added(graph)
            try:
                known.compare(inputs)
            except Exception as error:  # the program goes on
                self._skipped[graph.function, _reason(error)] += 1

    @property
    def differs(self) -> bool:
        """True if there is a row."""
        return bool(self.rows())

    @property
    def not_compared(self) -> list[str]:
        """The parts that ran and were not compared, in words; empty if all was compared."""
        with self._lock:
            skipped = [
                f"{counted(count, 'run')} of {short(function)}: {reason}"
                for (function, reason), count in self._skipped.items()
            ]
        return skipped + [one.text for one in self._unseen_log.found() if one.reason in ("eager", "opaque")]

    @property
    def summary(self) -> str:
        """The number of differences, what was compared, and what was not, in sentences for a user."""
        rows, missing = self.rows(), self.not_compared
        with self._lock:
            graphs = [known for known in self._graphs.values() if known.runs]
        if not graphs:
            return "no compiled function ran, and nothing was compared"
        functions = len({known.graph.function for known in graphs})
        runs = sum(known.runs for known in graphs)
        what = f"{counted(len(graphs), 'graph')} of {counted(functions, 'compiled function')}, {counted(runs, 'run')}"
        gradients = ", forward and backward" if any(known.gradients for known in graphs) else ", forward"
        count = counted(len(rows), "difference") if rows else "no difference"
        where = "from eager mode in what was compared:" if missing and not rows else "from eager mode in"
        random = "; graphs that draw random numbers with fallback_random=True" * any(one.is_random for one in graphs)
        rest = f"; not compared: {', '.join(missing)}" if missing else ""
        return f"{count} {where} {what}{gradients}{random}{rest}"

    def answer(self) -> str:
        """For each row its sentences; "" if nothing differs."""
        return "\n\n".join("\n".join(_indented(row.sentences)) for row in self.rows())

    def _added(self, graph: Any) -> Any:
        from .graph_diff import GraphDiff  # here: it imports torch

        number = self._numbers[graph.function]
        self._numbers[graph.function] += 1
        made = GraphDiff(graph, number, self._tolerances, self._options)
        self._graphs[graph] = made
        return made

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            rows = [row for known in self._graphs.values() for row in known.rows.values()]
        return sorted(rows, key=lambda row: (row.direction != "forward",))

    def _remarks(self, by: GroupBy) -> list[str]:
        return [f"not compared: {part}" for part in self.not_compared]

    def _unread(self) -> list[Unseen]:
        with self._lock:
            return [
                Unseen("unsupported", count, f"{short(function)}: {why}")
                for (function, why), count in self._skipped.items()
            ]


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if type(error).__name__ == "NotComparedError" else f"{type(error).__name__}: {text}"


def _indented(sentences: Sequence[str]) -> list[str]:
    return [sentence if i == 0 else f"  {sentence}" for i, sentence in enumerate(sentences)]
