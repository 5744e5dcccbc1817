"""Comparison: a file against calls of the model that was exported."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any

from . import libraries, twin
from .alignment import Alignment, Matched, kind_of
from .arrays import Array, Kept
from .calls import Call
from .distance import Distance, distance, tolerance_of
from .feeds import array_for, feeds_of
from .file_flops import FileFlops, file_flops
from .graphs import Exported
from .joined import Join
from .model_file import ModelFile
from .module_alignment import FileModules, ModuleAlignment
from .results import Cover, results_of
from .rows import Row, Unmatched
from .weights import Weights

MOVED = 1e-5  # the error of a value that is another operator's result
_ROUNDED = "DequantizeLinear"
_READABLE = re.compile(r"tensor\((bool|float|float16|double|u?int(8|16|32|64))\)")  # types as a session names them


class Comparison:
    """Compares calls, one after the other.

    Arguments:
        written: the export that `file` was made of, if an optimizer or a quantizer has rewritten it.
        tolerance: of relative errors; by default, that of the dtypes.
        exported: the program of torch.export that is joined with the first call.
        counts_flops: whether the file's operations are counted in it.
        modules: those in the names of the nodes, if these have no operators.
    """

    def __init__(
        self,
        file: ModelFile,
        written: ModelFile,
        tolerance: float | None,
        exported: Exported | None,
        counts_flops: bool,
        modules: FileModules | None,
    ) -> None:
        self._file, self._tolerance = file, tolerance
        self._exported, self._counts_flops = exported, counts_flops
        graph = file.proto.graph
        self._cover = Cover(graph)
        made = {name for node in graph.node for name in node.output if name}
        self._results = [each for each in results_of(written.proto.graph) if each.name in made]
        self._modules = modules
        self._names = [name for name in modules.values if name in made] if modules else [r.name for r in self._results]
        self._is_quantized = any(node.op_type == _ROUNDED for node in graph.node)
        self._weights = Weights(file)
        self._order = {name: i for i, node in enumerate(graph.node) for name in node.output}
        self.rows: dict[str, Row] = {}  # all that were compared, by value
        self.unmatched: dict[str, Unmatched] = {}
        self.covered: set[int] = set()  # positions of nodes
        self.without_value: collections.Counter[str] = collections.Counter()  # operators of the first call, by name
        self.output_error: float | None = None  # of the deployed session, the largest of all calls
        self.join: Join | None = None  # of the first call
        self.file_flops: FileFlops | None = None

    @property
    def nodes(self) -> int:
        return len(self._cover)

    @property
    def tolerance(self) -> float:
        """The largest of the values that were compared."""
        return max((row.tolerance for row in self.rows.values()), default=0.0)

    def add(self, call: Call) -> None:
        """Compares a call.

        Raises:
            ValueError: it cannot be compared. The text says why.
        """
        feeds = feeds_of(self._file.inputs, call)
        given = self.given(call)
        outputs = self._outputs(call)
        names = list(dict.fromkeys([*self._names, *outputs]))
        values = self._values(names, given)
        outputs = {name: kept for name, kept in outputs.items() if name in values}
        shapes = {name: (array.shape, kind_of(array)) for name, array in values.items()}
        types = {name: libraries.onnx().helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in values.items()}
        del values
        by_module = None if self._modules is None else ModuleAlignment(self._modules, shapes, call)
        alignment = Alignment(self._results, shapes, call, feeds) if by_module is None else by_module
        matched = {each.result.name: each for each in alignment.matched()}
        for each in alignment.unmatched():
            self.unmatched.setdefault(each.value, each)
        is_first = not self.rows
        if is_first:
            joined = {id(each.ran) for each in matched.values()}
            self.without_value.update(ran.place.name for ran in call.ran if id(ran) not in joined)
        if any(name in matched and matched[name].reference.key != kept.key for name, kept in outputs.items()):
            outputs = {}  # the model returns its results in another order
        references = {name: each.reference for name, each in matched.items()}
        references.update((name, kept) for name, kept in outputs.items() if name not in references)
        got, compared = self._healed(given, references, types)
        found = {name: got[compared[name]] for name in references}
        if by_module is not None and (moved := by_module.moved(found, self._tolerance or MOVED)):
            matched.update(moved)
            references.update((name, each.reference) for name, each in moved.items())
            got, compared = self._healed(given, references, types)
        self._compare(got, compared, references, types, matched, call)
        self._compare_outputs(given, outputs)
        if is_first:
            self.join = Join(call, matched, references, self._exported)
            self.file_flops = file_flops(self._file, given) if self._counts_flops else None

    def given(self, call: Call) -> dict[str, Any]:
        """The file's inputs in a call. Raises as `add`."""
        feeds = feeds_of(self._file.inputs, call)
        return {each.name: array_for(each.type.tensor_type.elem_type, feeds[each.name]) for each in self._file.inputs}

    def _outputs(self, call: Call) -> dict[str, Kept]:
        """The results of the model by the names of the file's outputs, if there are as many."""
        names = self._file.outputs
        return dict(zip(names, call.results, strict=True)) if len(names) == len(call.results) else {}

    def _values(self, names: list[str], given: dict[str, Any]) -> dict[str, Array]:
        """The values with these names, without those that ONNX Runtime's Python has no arrays for."""
        session = self._file.session(twin.shown(self._file.proto, names))
        readable = [each.name for each in session.get_outputs() if _READABLE.fullmatch(each.type)]
        return self._file.run(session, readable, given)

    def _run(self, proto: Any, names: list[str], feeds: dict[str, Any], *, optimized: bool = False) -> dict[str, Any]:
        return self._file.run(self._file.session(proto, optimized=optimized), names, feeds)

    def _healed(
        self, given: dict[str, Any], references: dict[str, Kept], types: dict[str, int]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """The values that are compared, and their names by those of their references."""
        proto, compared = twin.healed(self._file.proto, types, references)
        feeds = {twin.reference(name): array_for(types[name], kept) for name, kept in references.items()}
        return self._run(proto, list(compared.values()), {**given, **feeds}), compared

    def _compare(
        self,
        got: dict[str, Array],
        compared: dict[str, str],
        references: dict[str, Kept],
        types: dict[str, int],
        matched: dict[str, Matched],
        call: Call,
    ) -> None:
        for name, kept in references.items():
            nodes = self._cover.between(name, references)
            self.covered.update(nodes)
            value = got[compared[name]]
            coarse = {_dtype_name(types[each]) for each in self._cover.read_by(nodes) if each in types}
            tolerance = self._tolerance_of({value.dtype.name, kept.dtype, *coarse}, nodes, compared[name] != name)
            row = self._row(name, nodes, value, distance(value, kept.array), tolerance, matched.get(name))
            if row.differs and not row.note and name in matched:
                made = [self._cover.node(i) for i in nodes]
                note = self._weights.note(made, matched[name].ran, call, tolerance)
                row = dataclasses.replace(row, note=note)
            self.rows[name] = _merged(self.rows.get(name), row)

    def _tolerance_of(self, dtypes: set[str], nodes: list[int], is_rounded: bool) -> float:
        """That of the coarsest dtype among a value, its reference, and the values of which it is computed. A cast to a
        coarser one between these is a cause."""
        if self._tolerance is not None:
            return self._tolerance
        is_inexact = any(dtype.startswith(("float", "bfloat")) for dtype in dtypes)
        rounds = is_rounded or any(self._cover.node(i).op_type == _ROUNDED for i in nodes)
        return tolerance_of(dtypes, is_inexact and rounds)

    def _row(
        self, name: str, nodes: list[int], value: Array, found: Distance, tolerance: float, matched: Matched | None
    ) -> Row:
        made = [self._cover.node(i) for i in nodes]
        place = None if matched is None else matched.ran.place
        return Row(
            None if place is None else place.op_id,
            "" if place is None else place.name,
            "" if place is None else place.module_path,
            "" if place is None else place.source,
            name,
            tuple(node.name or node.output[0] for node in made),
            tuple(node.op_type for node in made),
            found.error,
            found.max_abs,
            tolerance,
            1,
            int(not found.error <= tolerance),
            value.dtype.name,
            value.shape,
            found.note,
        )

    def _compare_outputs(self, given: dict[str, Any], outputs: dict[str, Kept]) -> None:
        if not outputs:
            return
        got = self._run(self._file.proto, list(outputs), given, optimized=True)
        errors = [distance(got[name], kept.array).error for name, kept in outputs.items()]
        self.output_error = max([*errors, self.output_error or 0.0])

    def position(self, row: Row) -> int:
        """The position of its value's node in the file."""
        return self._order.get(row.value, -1)

    def sorted_rows(self) -> list[Row]:
        """In the order of the file's nodes; of a quantized file, the largest error first."""
        rows = sorted(self.rows.values(), key=self.position)
        return sorted(rows, key=lambda row: -row.error) if self._is_quantized else rows


def _merged(row: Row | None, other: Row) -> Row:
    """The call with the larger error counts."""
    if row is None:
        return other
    larger = max(row, other, key=lambda each: each.error)
    return dataclasses.replace(larger, calls=row.calls + 1, differs=row.differs + other.differs)


def _dtype_name(element_type: int) -> str:
    return str(libraries.onnx().helper.tensor_dtype_to_np_dtype(element_type).name)
