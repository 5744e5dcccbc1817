"""OnnxModel: an ONNX file as the program of a command, which runs a session of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amanda.cli.model_arguments import ModelArguments, listed, named

SUFFIX = ".onnx"


class OnnxModel:
    """Runs of a session with the options that are ONNX Runtime's defaults, on the CPU.

    Arguments:
        argv: the file, and what follows it in the command line.

    Raises:
        OSError: the file cannot be read.
        ValueError: ONNX Runtime is not installed or cannot load the file, or an argument is wrong.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        path = argv[0]
        given = ModelArguments(argv)
        self._session = _opened(path)
        self._runs = given.runs
        self._feeds = _feeds(self._session, given.arrays, path)

    def run(self) -> None:
        """Runs the session."""
        for _ in range(self._runs):
            self._session.run(None, self._feeds)


def _opened(path: str) -> Any:
    try:
        ort = runtime()
    except ImportError as error:
        raise ValueError(f"{path!r} {error}") from None
    with open(path, "rb"):
        pass  # the error says why it cannot be read
    try:
        return ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"ONNX Runtime can't load {path!r}: {first}") from None


def runtime() -> Any:
    """ONNX Runtime. Raises `ImportError`: it is not installed, or onnx is not, without which tools are shown nothing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"needs onnx and onnxruntime: pip install 'amanda-nn[onnx]' ({error})") from error
    return onnxruntime


def _feeds(session: Any, arrays: Mapping[str, Any] | None, path: str) -> dict[str, Any]:
    inputs = {each.name: each.type for each in session.get_inputs()}
    optional = {each.name: each.type for each in session.get_overridable_initializers()}
    if arrays is None:
        if inputs:
            raise ValueError(f"{path!r} has no example inputs: give it --inputs FILE.npz with {listed(inputs)}")
        return {}
    feeds = named(arrays, [*inputs, *optional])
    for name, kind in (inputs | optional).items():
        if name not in feeds:
            if name in inputs:
                raise ValueError(f"argument --inputs: there is no array {name!r}; the model takes {listed(inputs)}")
        elif _kind_of(feeds[name]) != kind:
            raise ValueError(f"argument --inputs: {name!r} is {_kind_of(feeds[name])}, and the model takes {kind}")
    return feeds


def _kind_of(array: Any) -> str:
    """In ONNX Runtime's words: "tensor(float)"."""
    names = {"float32": "float", "float64": "double"}
    return f"tensor({names.get(str(array.dtype), str(array.dtype))})"
