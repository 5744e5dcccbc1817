"""ModelFile: an ONNX file, checked as it is opened, and ONNX Runtime's sessions of it and of its twins."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import libraries
from .results import bodies

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_ORT_FORMAT = b"ORTM"  # at byte 4
_TENSOR = "tensor_type"


class ModelFile:
    """An ONNX file.

    Weights in files next to it are not read here: ONNX Runtime maps them into memory when a session is made. So a file
    with weights above 2 GiB takes no more memory than its session does.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        ValueError: it is no ONNX file that can be read, or its inputs or outputs are no tensors.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = Path(path).absolute()  # the program may change the current folder
        libraries.onnxruntime()
        self._stamp = self._stamped()
        self.proto = self._parsed()
        initializers = {each.name for each in self.proto.graph.initializer}
        self.inputs = [each for each in self.proto.graph.input if each.name not in initializers]
        self.outputs = [each.name for each in self.proto.graph.output]
        for each in (*self.inputs, *self.proto.graph.output):
            kind = each.type.WhichOneof("value")
            if kind != _TENSOR:
                what = (kind or "value without a type").removesuffix("_type")
                raise ValueError(
                    f"[export_diff] {self.path!r}: {each.name} is a {what}; only inputs and outputs that are tensors can "
                    "be compared"
                )

    @property
    def folder(self) -> str:
        """The folder in which the file is, and its weights."""
        return str(self._file.parent)

    def check_unchanged(self) -> None:
        """Raises `ValueError`: it is not the file that was opened."""
        try:
            is_same = self._stamped() == self._stamp
        except OSError:
            is_same = False
        if not is_same:
            raise ValueError(f"[export_diff] {self.path!r} has changed since the comparison began; run it again")

    def session(self, proto: Any, *, optimized: bool = False) -> Any:
        """A session of the file, or of a twin of it, on the CPU. `optimized`: as a deployed session is by default.

        Raises:
            ValueError: ONNX Runtime cannot load it.
        """
        ort = libraries.onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 4  # its errors are raised, too
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if any(each.data_location == each.EXTERNAL for each in proto.graph.initializer):
            options.add_session_config_entry(_WEIGHTS_FOLDER, self.folder)
        self.check_unchanged()
        try:
            return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no common base
            raise ValueError(f"[export_diff] ONNX Runtime can't load {self.path!r}: {_first_line(error)}") from error

    def optimized(self) -> Any:
        """The graph that ONNX Runtime makes of the file when it fuses operators. Its weights are not read.

        At the highest level of optimization, which is the default, it changes the layouts of convolutions in addition,
        in another way on each processor.

        Raises:
            ValueError: ONNX Runtime cannot load the file, or does not save its graph.
        """
        with self._saved() as (model, _):
            return model.graph

    @contextlib.contextmanager
    def optimized_session(self, *, profiled: bool = False) -> Iterator[tuple[Any, int]]:
        """A session of that graph, and the number of its nodes. Each node is named by its position, as "3"; those in bodies
        have no names.

        Raises:
            ValueError: as `optimized`.
        """
        ort = libraries.onnxruntime()
        with self._saved() as (model, folder):
            for i, node in enumerate(model.graph.node):
                node.name = str(i)
                _unname(node)
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.enable_profiling = profiled
            options.profile_file_prefix = os.path.join(folder, "profile")
            options.add_session_config_entry(_WEIGHTS_FOLDER, folder)
            try:
                session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            except Exception as error:  # its classes have no common base
                raise ValueError(
                    f"[export_diff] ONNX Runtime can't load its graph of {self.path!r}: {_first_line(error)}"
                ) from error
            yield session, len(model.graph.node)

    @contextlib.contextmanager
    def _saved(self) -> Iterator[tuple[Any, str]]:
        """The optimized model, and the folder of its weights, which exists meanwhile."""
        ort, onnx = libraries.onnxruntime(), libraries.onnx()
        with tempfile.TemporaryDirectory(prefix="amanda-onnx-") as folder:
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = path = os.path.join(folder, "model.onnx")
            options.add_session_config_entry(_WEIGHTS_FOLDER, self.folder)
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
            self.check_unchanged()
            try:
                ort.InferenceSession(self.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
                model = onnx.load(path, load_external_data=False)
            except Exception as error:  # its classes have no common base
                raise ValueError(
                    f"[export_diff] ONNX Runtime does not show its graph of {self.path!r}: {_first_line(error)}"
                ) from error
            yield model, folder

    def run(self, session: Any, names: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
        """The values with these names.

        Raises:
            ValueError: a node fails.
        """
        asked = {each.name for each in session.get_inputs()}
        try:
            found = session.run(names, {name: array for name, array in feeds.items() if name in asked})
        except Exception as error:
            raise ValueError(f"[export_diff] ONNX Runtime can't run {self.path!r}: {_first_line(error)}") from error
        return dict(zip(names, found, strict=True))

    def _stamped(self) -> tuple[int, int]:
        status = self._file.stat()
        return status.st_size, status.st_mtime_ns

    def _parsed(self) -> Any:
        with open(self._file, "rb") as file:
            if file.read(8)[4:] == _ORT_FORMAT:
                raise ValueError(
                    f"[export_diff] {self.path!r} has ONNX Runtime's own format; give the .onnx file that it was made of"
                )
        onnx = libraries.onnx()
        try:
            proto = onnx.load(self._file, load_external_data=False)
        except Exception as error:
            raise ValueError(
                f"[export_diff] {self.path!r} is no ONNX file, or is encrypted: {_first_line(error)}"
            ) from error
        if not proto.graph.node:
            raise ValueError(
                f"[export_diff] {self.path!r} has no nodes; give a file that torch.onnx.export has written"
            )
        return proto


def _unname(node: Any) -> None:
    for body in bodies(node):
        for each in body.node:
            each.name = ""
            _unname(each)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
