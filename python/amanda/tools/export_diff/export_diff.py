"""ExportDiff: the tool."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from amanda import OpContext, Run, Tool
from amanda.toolkit import Column, Place, Results, Skips, TellsSkips, Unseen, arrays_in, eager_only, lock, own_work
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import short_line
from amanda.toolkit.schemas import Sides
from amanda.tools.flops import Flops

from .arrays import key_of
from .calls import Call, Calls, Ran
from .comparison import Comparison
from .forms import Times, forms
from .graphs import Exported
from .model_file import ModelFile
from .module_alignment import FileModules
from .node_times import node_times
from .origins import root_class
from .program_times import program_times
from .rows import GROUPINGS, Form, GroupBy, Row

BY_MODULE = (
    "by module: the nodes say of which modules they were made, as dynamo=False exports them, and not of which operators and"
    " lines; a row has the operator that made the module's result"
)


class ExportDiff(TellsSkips, Results[Any, GroupBy], Tool):
    """Names the nodes of an ONNX file that compute something else than the program that was exported::

        diff = ExportDiff("model.onnx")
        with amanda.apply(diff):
            model(x)
        print(diff.answer())
        print(diff.table())

    The program runs as without the tool. The result of each operator of the model is the reference for the value of the
    file that `torch.onnx.export(dynamo=True)` has made of it. ONNX Runtime then runs a copy of the file, in which
    whatever reads such a value gets the reference instead. So a value differs only if the nodes that compute it do,
    and several causes are found at once. A file of `dynamo=False` has only the modules of its nodes: it is compared by
    their results.

    Rows by "cause" (the default) are the values that differ, in the order of the file's nodes; those of a quantized file
    by their errors. By "value" they are all that were compared. By "unmatched" they are the operators of the file that
    no operator of the program was found for, and why. Their nodes are compared as a part of the values that they lead
    to. By "form" they are the operators of the program in the first call, with the nodes that they became in the file, and
    with those that ONNX Runtime fuses them into (`ORT_ENABLE_EXTENDED`). See `Results` for `rows`, `table`, `to_pandas`
    and `reset`.

    Arguments:
        path: the ONNX file. Weights may be in other files in its folder.
        written: the file that `torch.onnx.export` has written, if `path` was made of it by a quantizer or an optimizer:
            these drop what the exporter writes, and keep names of values.
        calls: how many calls of the model are compared. Calls whose arguments do not fit the file's inputs do not count.
        rtol: the relative error that is tolerated: the norm of the difference, divided by that of the reference. By
            default 1e-5, 5e-3 where a side has float16, 4e-2 for bfloat16, and 0.03 in a quantized file.
        exported: the `torch.export.ExportedProgram` of the model, which rows by "form" have, too.
        flops: whether rows by "form" have floating point operations, of the program and of the file's nodes as written,
            by the conventions of `tools.flops`.
        times: whether `measure_times` will be called: arguments of the first call are kept for it.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        ValueError: a file cannot be compared, or `calls` or `rtol` is not positive.
        OSError: a file cannot be read.
    """

    needs_eager = "it compares operator by operator"
    leaves_compiled_out = True
    _speaker, _groupings = "export_diff", GROUPINGS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        written: str | os.PathLike[str] | None = None,
        calls: int = 3,
        rtol: float | None = None,
        exported: Any = None,
        flops: bool = False,
        times: bool = False,
    ) -> None:
        super().__init__("export_diff")
        if calls < 1:
            raise ValueError(f"[export_diff] calls= is a number of calls, 1 or more, got {calls!r}")
        if rtol is not None and not rtol >= 0:
            raise ValueError(f"[export_diff] rtol= is a tolerance, 0 or more, got {rtol!r}")
        self._file = ModelFile(path)
        self._written = self._file if written is None else ModelFile(written)
        self._rtol, self._most = rtol, calls
        self._model = root_class(self._written.proto.graph.node)
        self._modules = None if self._model is not None else _modules(self._written)
        self._skips, self._lock = Skips("export_diff"), lock()
        self._exported = None if exported is None else Exported(exported)
        self._flops = Flops(cpu_attention=True) if flops else None
        self._calls = Calls(self._is_model, self._wants, self._ended, self._modules is not None, times)
        self._open = 0  # scopes
        self._thread = 0  # that ran the last operator
        self._keeps_calls = times
        self._optimized: Any = None  # the graph that ONNX Runtime makes of the file
        self.reset()
        if self._flops is not None:
            self.depends_on(self._flops)
        self.add_inst_for_op(self._analyze)

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def by_module(self) -> bool:
        """Whether rows are about modules: the file does not say of which operators its nodes were made."""
        return self._modules is not None

    @property
    def compared(self) -> int:
        """The number of calls that were compared."""
        return self._compared

    @property
    def output_error(self) -> float | None:
        """The relative error of the file's outputs in a session with ONNX Runtime's optimizations, the largest of all. None
        if the model does not return as many tensors as the file has outputs."""
        return self._comparison.output_error

    @property
    def without_value(self) -> dict[str, int]:
        """The operators that ran in the first call and whose results are no values of the file, by name, most first: an
        exporter folds a batch normalization into the convolution before it."""
        return dict(self._comparison.without_value.most_common())

    @property
    def flops(self) -> tuple[int | None, int | None]:
        """The floating point operations of the first call, and of the file's nodes in it. None if something that may
        multiply was not counted, or without `flops=True`."""
        join, file = self._comparison.join, self._comparison.file_flops
        return None if join is None else join.flops, None if file is None else file.total

    @property
    def uncounted(self) -> list[str]:
        """The operators of the first call and the types of the file's nodes that may multiply and were not counted."""
        join, file = self._comparison.join, self._comparison.file_flops
        return [] if join is None or file is None else [*join.uncounted, *file.uncounted]

    @property
    def times(self) -> Times | None:
        """The times of all operators of the first call, and of all nodes of the optimized graph; None if they are not
        measured."""
        return self._times

    @property
    def exported_unmatched(self) -> int:
        """The operators of `exported` that no operator of the first call was found for."""
        join = self._comparison.join
        return 0 if join is None else join.exported_unmatched

    @property
    def not_compared(self) -> list[str]:
        """The parts that were not compared, in words; empty if all nodes of the file were."""
        return list(self._missing())

    def answer(self) -> str:
        """The number of causes, the outputs' error, and what was compared, in sentences."""
        rows, missing = self._rows("cause"), self.not_compared
        if not self._compared:
            return f"nothing was compared: {', '.join(missing)}"
        comparison = self._comparison
        nodes = f"{len(comparison.covered):,} of {counted(comparison.nodes, 'node')}"
        values, calls = counted(len(comparison.rows), "value"), counted(self._compared, "call")
        basis = f"{values} that {nodes} compute, in {calls} of {self._name_of_model}"
        found = [_sentence(rows, basis)]
        if self.by_module:
            found.append(BY_MODULE)
        if self.output_error is not None:
            found.append(
                f"outputs of the file differ from the program's by {self.output_error:.2g}, as an optimized session"
            )
            if not rows and self.output_error > self._comparison.tolerance:
                found.append("no node does that by itself: smaller errors add up, or the session's optimizations do it")
        if rows and self._is_training:
            found.append(
                f"{self._name_of_model} was in training mode, where dropout and batch norm compute something else: eval()"
            )
        if missing:
            found.append(f"not compared: {', '.join(missing)}")
        return "\n".join(found)

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        with self._lock:
            self._comparison = Comparison(
                self._file, self._written, self._rtol, self._exported, self._flops is not None, self._modules
            )
            self._refused: collections.Counter[str] = collections.Counter()  # calls, by the reason
            self._compared, self._is_training = 0, False
            self._class = ""  # of the model, once it was called
            self._first: Call | None = None  # that can be made again
            self._times: Times | None = None

    def measure_times(self, runs: int = 10) -> None:
        """Measures times, which rows by "form" have from then on: medians of so many runs.

        The model is called again, with copies of the arguments of the first call that was compared, under
        `tools.profile.Profile`. Random states and buffers are put back. ONNX Runtime runs the optimized graph with its own
        profiler. Both have as many threads as they have by themselves, or as the program has set for PyTorch.

        Raises:
            ValueError: a scope of the tool is open, no call was compared, the model does not run again as it ran, or ONNX
                Runtime cannot profile the file. The text says why.
        """
        if runs < 1:
            raise ValueError(f"[export_diff] runs= is a number of runs, 1 or more, got {runs!r}")
        if self._open:
            raise ValueError("[export_diff] measure_times() runs the model again: call it after the scope")
        if self._first is None:
            why = "no call was compared" if self._keeps_calls else "make the tool with times=True"
            raise ValueError(f"[export_diff] there is nothing to measure: {why}")
        try:
            program = program_times(self._first, runs)
        except ValueError as error:
            raise ValueError(f"[export_diff] times can't be measured: {error}") from error
        nodes = node_times(self._file, self._comparison.given(self._first), runs)
        with self._lock:
            self._times = Times(runs, program, nodes)

    def _rows(self, by: GroupBy) -> list[Any]:
        with self._lock:
            if by == "unmatched":
                return list(self._comparison.unmatched.values())
            rows = self._comparison.sorted_rows()
            if by == "form":
                return self._forms(rows)
            return rows if by == "value" else [row for row in rows if row.differs]

    def _forms(self, rows: list[Row]) -> list[Form]:
        comparison = self._comparison
        if comparison.join is None:
            return []
        if self._optimized is None:
            self._optimized = self._file.optimized()
        in_order = sorted(rows, key=comparison.position)
        return forms(
            in_order, self._file.proto.graph, self._optimized, comparison.join, comparison.file_flops, self._times
        )

    def _columns(self, by: GroupBy, rows: Sequence[Any]) -> Sequence[Column]:
        """Without those that nothing was given for."""
        left_out = {
            *(("exported",) if self._exported is None else ()),
            *(("flops", "file_flops") if self._flops is None else ()),
            *(("ns", "optimized_ns") if self._times is None else ()),
        }
        return [column for column in super()._columns(by, rows) if column.field not in left_out]

    def _remarks(self, by: GroupBy) -> list[str]:
        by_module = [BY_MODULE] if self.by_module and by != "cause" else []  # the answer says it, too
        return [*by_module, *(f"not compared: {each}" for each in self.not_compared), *super()._remarks(by)]

    def _missing(self) -> Iterator[str]:
        with self._lock:
            for why, count in self._refused.items():
                yield f"{counted(count, 'call')} of {self._name_of_model}: {why}"
            if not self._compared:
                if not self._refused:
                    yield self._none_called()
                return
            left = self._comparison.nodes - len(self._comparison.covered)
            if left:
                yield f"{counted(left, 'node')} that lead to no value with a reference"

    @property
    def _name_of_model(self) -> str:
        return self._model or self._class or "the model"

    def _none_called(self) -> str:
        if self._model is not None:
            return f"the program has called no {self._model}, which is the model that was exported"
        return "the program has called no model that has all the modules in the names of the file's nodes"

    def _omissions(self) -> list[Unseen]:
        return [Unseen("uncompared", 1, text) for text in self._missing()]

    # ---- the program runs -------------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        self._open += 1
        if self._open == 1:
            self._calls.open()

    def on_exit(self, error: BaseException | None) -> None:
        self._open -= 1
        if not self._open:
            self._calls.close()

    def _is_model(self, module: Any) -> bool:
        if self._modules is None:
            return type(module).__name__ == self._model
        return self._modules.are_in(module)

    def _wants(self) -> bool:
        return self._compared < self._most

    def _analyze(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        names = context.parameter_names
        parameters = [name for each in names for name in (each if isinstance(each, tuple) else (each,)) if name]
        context.insert_before_op(self._before, with_run=True)
        context.insert_after_op(
            self._after,
            with_run=True,
            place=Place.of(context),
            parameters=frozenset(parameters),
            writes=bool(Sides.of(context).written),
        )

    def _before(self, *inputs: Any, run: Run) -> None:
        self._thread = threading.get_ident()
        if self._calls.current is not None:
            if self._flops is not None:
                run["flops"] = self._flops.total
            arrays = [array for value in inputs for array in arrays_in(value) if not self._skips.is_unreadable(array)]
            run["inputs"] = frozenset(map(key_of, arrays))

    def _after(self, *results: Any, run: Run, place: Place, parameters: frozenset[str], writes: bool) -> None:
        call, inputs = self._calls.current, run.pop("inputs", None)
        if call is None or inputs is None:
            return
        flops = self._taken(place.name, run.pop("flops")) if self._flops is not None else None
        arrays = [array for value in results for array in arrays_in(value)]
        kept = tuple(None if self._skips.unreadable(array) else call.store.kept(array) for array in arrays)
        if writes:
            readable = (array for array in arrays if not self._skips.is_unreadable(array) and array.numel())
            call.written.update(array.untyped_storage().data_ptr() for array in readable)
        call.ran.append(Ran(place, inputs, parameters, kept, flops))

    def _taken(self, name: str, before: int) -> int | None:
        """The operations since `before`, of an operator; None if it may multiply and was not counted, or another thread has
        run operators meanwhile."""
        assert self._flops is not None
        is_alone = self._thread == threading.get_ident()
        return self._flops.total - before if is_alone and name not in self._flops.uncounted_products else None

    def _ended(self, call: Call) -> None:
        with own_work(), self._lock:
            self._class = type(call.model).__name__
            try:
                if call.refused:
                    raise ValueError(call.refused)
                self._comparison.add(call)
            except Exception as error:  # the tool's, of which the program must not end
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                self._refused[why.removeprefix("[export_diff] ")] += 1
            else:
                if not self._compared and self._keeps_calls:
                    self._first = call
                self._compared += 1
                self._is_training |= call.is_training


def _modules(file: ModelFile) -> FileModules:
    found = FileModules(file.proto.graph)
    if not found.positions:
        raise ValueError(
            f"[export_diff] {file.path!r} does not say of which operators or modules of PyTorch its nodes were made: export"
            " it with torch.onnx.export(..., dynamo=True); if the file was made of such an export, give that, too (written="
            ", --export)"
        )
    return found


def _sentence(rows: list[Row], basis: str) -> str:
    if not rows:
        return f"no cause in {basis}"
    first = rows[0]
    which = "the only cause" if len(rows) == 1 else f"the first of {len(rows):,} causes"
    where = ", ".join(filter(None, [first.module_path, short_line(first.source)]))
    made = f", where the program runs {first.name}" if first.name else ", an output of the model"
    at = f" at {where}" if where else ""
    nodes = " ".join(first.op_types[-3:])
    return f"{which}: {nodes} ({first.value}){made}{at}: off by {first.error:.2g}, in {basis}"
