"""Program: the graph that a session runs, and sessions of its parts."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx
import onnxruntime
from onnx import numpy_helper

from amanda import _core
from amanda.drivers.onnxruntime import graphs, kinds, op_types, port, protos
from amanda.drivers.onnxruntime.graphs import Graph
from amanda.drivers.onnxruntime.protos import Array
from amanda.drivers.onnxruntime.value import Value

_OFF = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_WEIGHTS, _LEAST = "weights", "1024"  # the file next to an optimized model for constants of this many bytes or more
_ORT_FORMAT = b"ORTM"  # at byte 4
_ERRORS_ONLY = 3


class Unreadable(Exception):
    """Why a session runs without tools."""


class Program:
    """The graph that a session runs: ONNX Runtime made it of the model.

    Parts of it, which are not optimized again, run the same kernels. A part that was cut out of the model as it was written
    would be fused otherwise, and compute other bits.

    Raises:
        Unreadable: the graph is not to be had.
    """

    def __init__(self, session: Any) -> None:
        source = _checked(port.source_of(session))
        self._options = functools.partial(port.options_of, port.inner_of(session))
        self._providers = session.get_providers()
        self._provider_options = session.get_provider_options()
        self._folder = tempfile.mkdtemp(prefix="amanda-onnx-")  # sessions map its weights into memory from there
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.model = self._optimized(source)
        written = _parsed(source)
        self.digest = hashlib.blake2b(written.SerializeToString(deterministic=True), digest_size=8).hexdigest()
        self.graph = graphs.read(written.graph, self.model.graph, self.digest, op_types.versions_of(self.model))
        protos.give_unique_names(self.model.graph)
        self.inputs = frozenset(each.name for each in session.get_inputs())
        self.optional = frozenset(each.name for each in session.get_overridable_initializers())
        self.outputs = tuple(each.name for each in session.get_outputs())
        self.outputs_set = frozenset(self.outputs)
        self.cache = _core.ArtifactCache()
        self._weights = protos.initializers(self.model.graph)
        self._constants = {each.name: each for each in self._weights if each.name not in self.optional}
        self._arrays: dict[str, Array] = {}
        self._made_by: dict[str, int] = {}  # the id of its operator, by the name of a value
        self._kinds = self._kinds_outside()
        self._add_kinds(self.graph)

    # ---- values -----------------------------------------------------------------------------------------------------

    def value(self, name: str) -> Value | None:
        if not name:
            return None
        kind, shape = self._kinds.get(name, ("", None))
        is_constant = name in self._constants
        return Value(name, kinds.dtype_of(kind), shape, is_constant, self._made_by.get(name, 0), self.digest)

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def kind_of(self, name: str) -> str:
        """Its type; "" if it is not known."""
        return self._kinds.get(name, ("", None))[0]

    def constant(self, name: str) -> Array:
        """The elements of a constant, which are read when they are asked for first."""
        if name not in self._arrays:
            self._arrays[name] = numpy_helper.to_array(self._constants[name], base_dir=self._folder)
        return self._arrays[name]

    def defaults(self) -> dict[str, Array]:
        """The values of inputs that need not be given."""
        found = [each for each in self.model.graph.initializer if each.name in self.optional]
        return {each.name: numpy_helper.to_array(each, base_dir=self._folder) for each in found}

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def part(
        self,
        nodes: Sequence[Any],
        inputs: Mapping[str, str],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
        *,
        is_alone: bool,
    ) -> Any:
        """A session of some of its nodes.

        Arguments:
            inputs: their types by name.
            constants: more than it has.
            is_alone: it is the only part. The threads of several wait asleep, so that one part does not slow another.

        Raises:
            Unreadable: ONNX Runtime cannot make it.
        """
        types = {name: kinds.proto_of(kind) for name, kind in inputs.items()}
        model = protos.part(self.model, self._weights, nodes, types, outputs, constants)
        try:
            return self._session(model, {} if is_alone else {"session.intra_op.allow_spinning": "0"})
        except Exception as error:  # its classes have no common base
            raise Unreadable(f"ONNX Runtime can't run a part of its graph ({first_line(error)})") from error

    def _session(self, model: Any, entries: Mapping[str, str] = MappingProxyType({})) -> Any:
        options = self._options()
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        options.graph_optimization_level = _OFF
        options.enable_profiling = False
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", self._folder)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=self._providers, provider_options=self._options_of_providers()
        )

    def _optimized(self, source: str | bytes) -> Any:
        options, path = self._options(), os.path.join(self._folder, "model.onnx")
        options.optimized_model_filepath = path
        options.enable_profiling = False
        options.log_severity_level = _ERRORS_ONLY  # it warns that the file is for this machine, which it is
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", _LEAST)
        try:
            onnxruntime.InferenceSession(
                source, options, providers=self._providers, provider_options=self._options_of_providers()
            )
        except Exception as error:  # its classes have no common base
            raise Unreadable(f"ONNX Runtime does not save the graph that it runs ({first_line(error)})") from error
        model = onnx.load(path, load_external_data=False)
        protos.drop_repeated_constants(model.graph)
        return model

    def _options_of_providers(self) -> list[dict[str, str]]:
        return [dict(self._provider_options.get(name, {})) for name in self._providers]

    def _kinds_outside(self) -> dict[str, tuple[str, tuple[int | str | None, ...] | None]]:
        """The element type and shape of each constant and input, by name."""
        found: dict[str, tuple[str, tuple[int | str | None, ...] | None]] = {
            each.name: (kinds.of_tensor(each.data_type), tuple(each.dims)) for each in self._weights
        }
        for each in self.model.graph.input:
            found[each.name] = kinds.of_type(each.type), kinds.shape_of(each.type)
        return found

    def _add_kinds(self, graph: Graph) -> None:
        """Those of the results of operators: as the runtime infers them, which knows its own operators."""
        for operator in graph.operators:
            self._made_by.update((name, operator.id) for name in operator.node.output if name)
        results = [name for operator in graph.operators for name in operator.node.output if name]
        if results:
            outside = [*(each.name for each in graph.proto.input), *protos.captured(graph.proto)]
            types = {name: kinds.proto_of(*self._kinds[name]) for name in outside if not self.is_constant(name)}
            nodes = [operator.node for operator in graph.operators]
            session = self._session(protos.part(self.model, self._weights, nodes, types, results, {}))
            for each in session.get_outputs():
                self._kinds[each.name] = each.type, tuple(each.shape) or None  # it has none for unknown ranks, too
        for operator in graph.operators:
            try:
                for body in operator.bodies.values():
                    for each in body.proto.input:
                        self._kinds[each.name] = kinds.of_type(each.type), kinds.shape_of(each.type)
                    self._add_kinds(body)
            except Exception:  # of onnx, or of ONNX Runtime: its classes have no common base
                operator.bodies.clear()


def stamp(source: str | bytes | None) -> tuple[int, int] | None:
    """The size and time of a file, by which a change is noticed. None if there is no file."""
    if not isinstance(source, str):
        return None
    try:
        status = os.stat(source)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _checked(source: str | bytes | None) -> str | bytes:
    if source is None:
        raise Unreadable("it keeps neither the path nor the bytes of its model")
    try:
        head = source[:8] if isinstance(source, bytes) else _head(source)
    except OSError as error:
        raise Unreadable(f"its file can't be read ({error.strerror})") from error
    if head[4:] == _ORT_FORMAT:
        raise Unreadable("its model has ONNX Runtime's own format; load the .onnx file that it was made of")
    return source


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(8)


def _parsed(source: str | bytes) -> Any:
    try:
        if isinstance(source, bytes):
            return onnx.load_from_string(source)
        return onnx.load(source, load_external_data=False)
    except Exception as error:
        raise Unreadable(f"its model is no ONNX file ({first_line(error)})") from error
