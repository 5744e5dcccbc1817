"""GraphDiff: one compiled graph, compared with the same graph run eagerly, and searched where it differs. Imports torch:
import it where a compiled graph runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from amanda.toolkit.compiled import CompiledGraph
from amanda.toolkit.frames import short_line
from amanda.tools.diff import Tolerances

from . import float64
from .copies import copies, why_not
from .options import Options
from .outcomes import Outcome, outcome
from .pieces import NoPieceError, Piece, piece_of
from .reference import Reference
from .rows import Direction, Row
from .scores import Distance, largest
from .search import Search, Units

_LAYERS = {
    "aot_eager": "AOTAutograd: the backend aot_eager makes a difference, too",
    "aot_eager_decomp_partition": "a decomposition: aot_eager_decomp_partition makes a difference, and aot_eager does not",
}
_INDUCTOR = "inductor's lowering and generated code: the backend aot_eager_decomp_partition makes no difference"
_OPTIONS: dict[str, Any] = {
    "emulate_precision_casts": True,
    "max_fusion_size": 1,
    "pattern_matcher": False,
    "reorder_for_locality": False,
    "layout_optimization": False,
}
_OPTIONS_OF_CPU: dict[str, Any] = {"cpp.simdlen": 1}
_OPTIONS_OF_GPU: dict[str, Any] = {
    "eager_numerics.division_rounding": True,
    "eager_numerics.use_pytorch_libdevice": True,
    "eager_numerics.disable_ftz": True,
}
_RANDOM = {"fallback_random": True}  # inductor draws other random numbers by design
_KERNEL = re.compile(r"\b(?:cpp|triton_\w+?)_fused_\w+|\bextern_kernels\.\w+")
_PART = 8.0  # what has less than this part of a score is not the same difference


class NotComparedError(Exception):
    """A graph was not compared. The text is the reason."""


class GraphDiff:
    """One graph of a compiled function.

    Arguments:
        number: of the graph in its function.
    """

    def __init__(self, graph: CompiledGraph, number: int, tolerances: Tolerances, options: Options) -> None:
        self.graph, self._number, self._tolerances, self._options = graph, number, tolerances, options
        self.rows: dict[Direction, Row] = {}
        self.runs = self.gradients = 0
        self.is_random = False

    def compare(self, inputs: Sequence[Any]) -> None:
        """One run. Raises `NotComparedError`."""
        run, self.runs = self.runs, self.runs + 1
        if reason := why_not(inputs) or _why_not(self.graph, inputs):
            raise NotComparedError(reason)
        if self._options.only_nonfinite:
            alone = outcome(self.graph.run, inputs, backward=self._options.backward)
            self.gradients += len(alone.backward)
            if alone.is_finite:
                return
        ours, theirs = self._outcomes(inputs)
        self.gradients += len(theirs.backward)
        found: dict[Direction, Distance] = {}
        for direction, pair in _pairs(ours, theirs).items():
            distance = largest(*pair, self._tolerances)
            if distance is not None:
                found[direction] = distance
        for direction, distance in found.items():
            known = self.rows.get(direction)
            self.rows[direction] = (
                _again(known, distance) if known else self._explained(direction, distance, run, inputs)
            )

    def _outcomes(self, inputs: Sequence[Any]) -> tuple[Outcome, Outcome]:
        """That of the compiled code, and the eager one."""
        graph, backward = self.graph, self._options.backward
        names = [node.name for node in graph.graph.graph.nodes if node.op == "placeholder"]
        theirs = outcome(graph.graph, inputs, names=names, backward=backward)
        if not theirs.is_random:
            return outcome(graph.run, inputs, names=names, backward=backward), theirs
        self.is_random = True
        if not graph.has_options:
            raise NotComparedError(
                f"it draws random numbers, and the backend {graph.backend} may draw others by design"
            )
        reference = Reference(graph.graph, inputs)
        whole = piece_of(reference, range(len(reference.units)))
        run = graph.compiled(whole.graph(), copies(whole.inputs), _RANDOM)
        ours = outcome(run, whole.inputs, names=whole.names, backward=backward)
        return ours, outcome(whole.graph(), whole.inputs, names=whole.names, backward=backward)

    def _explained(self, direction: Direction, distance: Distance, run: int, inputs: Sequence[Any]) -> Row:
        row = Row(
            self.graph.function,
            self._number,
            direction,
            distance.what,
            distance.dtype,
            distance.shape,
            1,
            run,
            distance.elements,
            distance.max_abs,
            distance.max_rel,
            (),
            False,
            (),
            "",
            (),
            None,
            None,
            distance.note,
        )
        try:
            reference = Reference(self.graph.graph, inputs)
        except Exception as error:  # it runs as a whole, and not node by node
            return dataclasses.replace(
                row, note=", ".join(filter(None, [row.note, f"not searched: {_first_line(error)}"]))
            )
        pieces = _Pieces(self.graph, reference, direction, self._tolerances, self.is_random)
        search = Search(len(reference.units), pieces.score, self._options.seconds)
        found = search.smallest(distance.score)
        return pieces.described(row, found.units, not found.is_cut and not pieces.failures)


class _Pieces:
    """Pieces of a graph, compiled and run eagerly, in one direction."""

    def __init__(
        self,
        graph: CompiledGraph,
        reference: Reference,
        direction: Direction,
        tolerances: Tolerances,
        is_random: bool,
    ) -> None:
        self._graph, self._reference, self._direction = graph, reference, direction
        self._tolerances, self._options = tolerances, _RANDOM if is_random else {}
        self.failures: list[str] = []  # why pieces could not be compiled or run

    def score(self, units: Units) -> float:
        try:
            piece = piece_of(self._reference, units)
            distance = self._distance(piece, self._outcome(piece, self._options))
        except NoPieceError as error:
            self.failures.append(str(error))
            return 0.0
        except Exception as error:  # of the backend: it compiles the whole, and not this piece
            self.failures.append(_first_line(error))
            return 0.0
        return 0.0 if distance is None else distance.score

    def described(self, row: Row, units: Units, is_smallest: bool) -> Row:
        """The row with all that is known of these units."""
        try:
            piece = piece_of(self._reference, units)
        except NoPieceError:
            return row
        operators = tuple(self._named(piece))
        row = dataclasses.replace(row, operators=operators, is_smallest=is_smallest)
        try:
            ours = self._outcome(piece, self._options)
            distance = self._distance(piece, ours)
            if distance is None:  # only the graph as a whole does, with other inputs' properties
                return dataclasses.replace(row, is_smallest=False)
            errors = self._errors(piece, ours, distance)
            kernels = self._kernels(piece) if self._graph.has_options else ()
            layer = self._layer(piece, distance)
            removed_by = self._removed_by(piece) if layer == _INDUCTOR else ()
        except Exception as error:
            return dataclasses.replace(row, note=", ".join(filter(None, [row.note, _first_line(error)])))
        ulps, reference = errors
        return dataclasses.replace(
            row, kernels=kernels, layer=layer, removed_by=removed_by, ulps=ulps, reference_ulps=reference
        )

    def _outcome(self, piece: Piece, options: dict[str, Any], backend: str = "") -> Outcome:
        example = copies(piece.inputs)
        if backend:
            run = self._graph.compiled_by(backend, piece.graph(), example)
        else:
            run = self._graph.compiled(piece.graph(), example, options)
        return outcome(run, piece.inputs, backward=self._is_backward)

    @property
    def _is_backward(self) -> bool:
        return self._direction == "backward"

    def _distance(self, piece: Piece, ours: Outcome) -> Distance | None:
        theirs = outcome(piece.graph(), piece.inputs, backward=self._is_backward)
        return largest(*_pairs(ours, theirs)[self._direction], self._tolerances)

    def _named(self, piece: Piece) -> list[str]:
        return [text for node in piece.nodes for text in _texts(self._graph, node, self._reference)]

    def _errors(self, piece: Piece, ours: Outcome, distance: Distance) -> tuple[float | None, float | None]:
        exact = float64.in_float64(piece.graph(), piece.inputs, self._is_backward)
        theirs = outcome(piece.graph(), piece.inputs, backward=self._is_backward)
        values = [getattr(one, self._direction).get(distance.what) for one in (exact, ours, theirs) if one is not None]
        if exact is None or self._options or any(value is None for value in values):
            return None, None
        return float64.ulps(values[1], values[0]), float64.ulps(values[2], values[0])

    def _kernels(self, piece: Piece) -> tuple[str, ...]:
        with self._graph.generated_code() as codes:
            self._outcome(piece, {**self._options, "fx_graph_cache": False})
        own = codes[1:] if self._is_backward and len(codes) > 1 else codes[:1]
        return tuple(dict.fromkeys(name for code in own for name in _KERNEL.findall(code)))

    def _layer(self, piece: Piece, distance: Distance) -> str:
        for backend, layer in _LAYERS.items():
            found = self._distance(piece, self._outcome(piece, {}, backend))
            if found is not None and found.score >= distance.score / _PART:
                return layer
        return _INDUCTOR if self._graph.has_options else f"the backend {self._graph.backend}"

    def _removed_by(self, piece: Piece) -> tuple[str, ...]:
        is_on_gpu = any(value.is_cuda for value in piece.inputs)
        options = {**_OPTIONS, **(_OPTIONS_OF_GPU if is_on_gpu else _OPTIONS_OF_CPU)}
        found = []
        for name, value in options.items():
            try:
                if self._distance(piece, self._outcome(piece, {**self._options, name: value})) is None:
                    found.append(f"{name}={value}")
            except Exception as error:
                self.failures.append(_first_line(error))
        return tuple(found)


def _texts(graph: CompiledGraph, node: Any, reference: Reference) -> list[str]:
    """The operators of a node, with modules and lines; the node's function, where they are not known."""
    inputs = [reference.values[one] for one in reference.graph.graph.nodes if one.op == "placeholder"]
    try:
        known = graph.operators(node, inputs)
    except Exception:  # the driver cannot follow the graph
        return [getattr(node.target, "__name__", str(node.target))]
    places = [(one.name, ", ".join(filter(None, [one.module_path, short_line(one.source)]))) for one in known]
    return [f"{name} ({place})" if place else name for name, place in places]


def _pairs(ours: Outcome, theirs: Outcome) -> dict[Direction, tuple[dict[str, Any], dict[str, Any]]]:
    return {"forward": (ours.forward, theirs.forward), "backward": (ours.backward, theirs.backward)}


def _again(row: Row, distance: Distance) -> Row:
    def larger(one: float | None, other: float | None) -> float | None:
        return max((value for value in (one, other) if value is not None), default=None)

    max_abs, max_rel = larger(row.max_abs, distance.max_abs), larger(row.max_rel, distance.max_rel)
    return dataclasses.replace(row, runs=row.runs + 1, max_abs=max_abs, max_rel=max_rel)


def _why_not(compiled: CompiledGraph, inputs: Sequence[Any]) -> str:
    graph = compiled.graph
    if any(getattr(value, "is_cuda", False) for value in inputs) and compiled.has_cuda_graphs:
        return "it may run as a CUDA graph, and another run would write over its results"
    if any(True for _ in graph.parameters()) or any(True for _ in graph.buffers()):
        return "the graph holds parameters or buffers that are no inputs of it"
    names = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    if any("c10d" in name or "collective" in name for name in names):
        return "it calls collectives, which other processes would have to call, too"
    return ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
