"""The Python part of the ONNX Runtime driver. This file does not import onnxruntime: it is loaded when the program does
that, and it reports when onnxruntime is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amanda.driver.protocol import Access, CoverageCounter, Option, Origin, VariableValue
from amanda.drivers.onnxruntime.vocabulary import OnnxRuntimeVocabulary

_NAME = re.compile(r"((onnx|com\.microsoft[\w.]*)::)?[A-Z]\w*")


class OnnxRuntimeDriver:
    """See `amanda.driver.protocol.Driver`."""

    framework = "ONNX Runtime"
    loaded_with = "onnxruntime"
    namespace_of_new = "com.example"
    import_hooks: Mapping[str, Callable[[], object]] = {}
    vocabulary = OnnxRuntimeVocabulary()
    closed_namespaces = frozenset({"onnx"})
    requires_gradient = "ONNX Runtime computes no gradients; run the model in PyTorch"
    options: Mapping[str, Option] = {}

    def __init__(self) -> None:
        self._is_loaded = False

    def is_available(self) -> bool:
        return _is_installed("onnxruntime")

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        if not _is_installed("onnxruntime"):
            return [("onnxruntime", "not installed")]
        version = _installed_version()
        if not _is_installed("onnx"):
            return [("onnxruntime", f"{version}; {_NEEDS_ONNX}")]
        state = "is attached to it" if self._is_loaded else "is ready for it when a program imports it"
        return [("onnxruntime", f"{version}; amanda {state}")]

    def could_name(self, name: str) -> bool:
        """Without a domain, only an operator of ONNX itself: PyTorch's users write "Conv2d", and mean conv2d."""
        return _NAME.fullmatch(name) is not None and ("::" in name or _is_in_onnx(name))

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter | None:
        if not self.is_available():
            return None
        from amanda.drivers.onnxruntime import coverage

        return coverage.make_counter(tools)

    def load(self) -> None:
        """Raises `ImportError` if onnx is not installed, or if ONNX Runtime lacks something that the driver needs."""
        if not _is_installed("onnx"):
            raise ImportError(
                f"[onnxruntime] the program runs uninstrumented, and tools see nothing of it: {_NEEDS_ONNX}"
            )
        from amanda.drivers.onnxruntime import front

        front.watch()
        self._is_loaded = True

    def operators(self) -> Iterator[str]:
        from amanda.drivers.onnxruntime import op_types

        return op_types.registered()

    def has_operator(self, name: str) -> bool:
        return False

    def operators_named_by(self, value: object) -> Sequence[str]:
        return ()

    def origins(self, symbol: object) -> Sequence[Origin] | None:
        from amanda.drivers.onnxruntime.value import origins

        return origins(symbol)

    def variable_of(self, symbol: object) -> VariableValue | None:
        from amanda.drivers.onnxruntime.value import variable_of

        return variable_of(symbol)

    def is_array(self, symbol: object) -> bool:
        from amanda.drivers.onnxruntime.value import Value

        return isinstance(symbol, Value) and symbol.dtype is not None

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def access(self, namespace: str, operator: str) -> Access | None:
        if not namespace.startswith("onnxruntime/"):
            return None
        return Access(hides_values=True, hides_inputs=True, has_backward=False)

    def enter(self) -> None:
        from amanda.drivers.onnxruntime import front

        front.patch()

    def leave(self) -> None:
        from amanda.drivers.onnxruntime import front

        front.unpatch()

    def preserved(self, program: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # a session keeps nothing between runs

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Callable[[object], bool]]:
        yield lambda result: False

    def listen_to_optimizers(
        self, before: Callable[[Any], object], after: Callable[[Any], object]
    ) -> Callable[[], object]:
        return lambda: None  # it trains nothing

    def remarks(self) -> list[str]:
        """Lists what ran uninstrumented in scopes."""
        from amanda.drivers.onnxruntime import unsupported

        return unsupported.remarks()


_NEEDS_ONNX = "amanda needs onnx to read models: pip install 'amanda-nn[onnx]'"


def _is_in_onnx(name: str) -> bool:
    if not _is_installed("onnx"):
        return False
    import onnx.defs  # here: it takes a tenth of a second

    return any(schema.name == name for schema in onnx.defs.get_all_schemas())


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is a namespace package


def _installed_version() -> str:
    imported = getattr(sys.modules.get("onnxruntime"), "__version__", None)
    if isinstance(imported, str):
        return imported
    import importlib.metadata  # here: few programs have ONNX Runtime

    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of an unknown version"
