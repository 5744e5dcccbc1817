"""The Python part of the ONNX Runtime driver. This file does not import onnxruntime: it is loaded when the program does
that, and it reports when onnxruntime is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from amanda.driver.protocol import Access, CoverageCounter, Option, Origin

_NAME = re.compile(r"((onnx|com\.microsoft[\w.]*)::)?[A-Z]\w*")


class OnnxRuntimeDriver:
    """See `amanda.driver.protocol.Driver`."""

    framework = "ONNX Runtime"
    loaded_with = "onnxruntime"
    namespace_of_new = "com.example"
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
        return _NAME.fullmatch(name) is not None

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

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def access(self, namespace: str, operator: str) -> Access | None:
        if not namespace.startswith("onnxruntime/"):
            return None
        return Access(hides_values=True, hides_inputs=True)

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

    def remarks(self) -> list[str]:
        """Lists what ran uninstrumented in scopes."""
        from amanda.drivers.onnxruntime import unsupported

        return unsupported.remarks()


_NEEDS_ONNX = "amanda needs onnx to read models: pip install 'amanda-nn[onnx]'"


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
