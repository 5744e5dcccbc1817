"""The Python part of the TensorFlow driver. This file does not import tensorflow: it is loaded when the program does that,
because it takes seconds, and it reports when tensorflow is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from amanda.driver.protocol import Access, CoverageCounter, Option, Origin, VariableValue
from amanda.drivers.tensorflow import version as required
from amanda.drivers.tensorflow.vocabulary import TensorFlowVocabulary

_KINDS = ("", "-cpu", "-gpu", "-intel", "-macos")
_DISTRIBUTIONS = (*(f"tensorflow{kind}" for kind in _KINDS), "tf-nightly")
_NAME = re.compile(r"(tensorflow::)?[A-Z>_]\w*")
_NO_DATA = re.compile("Handle|HashTable|Iterator|Variable")  # operators whose results stand for something else


class TensorFlowDriver:
    """See `amanda.driver.protocol.Driver`."""

    framework = "TensorFlow"
    loaded_with = "tensorflow"
    namespace_of_new = "tensorflow"
    vocabulary = TensorFlowVocabulary()
    requires_gradient = "call a model with trainable variables, from eager code"
    options: Mapping[str, Option] = {}

    def __init__(self) -> None:
        self._patches: tuple[ModuleType, ...] = ()  # modules with `patch` and `unpatch`
        self._has_keras = False
        self.import_hooks: Mapping[str, Callable[[], object]] = {"keras": self._keras_is_there}

    def is_available(self) -> bool:
        return _is_installed() and _is_built()

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        if not _is_installed():
            return [("tensorflow", "not installed")]
        version = _installed_version()
        if not _is_built():
            return [("tensorflow", f"{version} is installed, but this build of amanda has no driver for it")]
        if not _fits(version):
            why = f"amanda needs TensorFlow {required.VERSION}, so that tools see nothing of it"
            return [("tensorflow", f"{version}; {why}")]
        if not self._patches:
            return [("tensorflow", f"{version}; amanda is ready for it when a program imports it")]
        return [("tensorflow", f"{version}; amanda is attached to it")]

    def variable_of(self, symbol: object) -> VariableValue | None:
        from amanda.drivers.tensorflow.view.variables import variable_of

        return variable_of(symbol)

    def is_array(self, symbol: object) -> bool:
        dtype = getattr(symbol, "dtype", None)
        return bool(getattr(dtype, "is_numpy_compatible", False))

    def could_name(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter | None:
        if not self.is_available():
            return None
        from amanda.drivers.tensorflow.view import coverage

        return coverage.make_counter(tools)

    def load(self) -> None:
        """Raises `ImportError` if this is another TensorFlow, or if it lacks something the driver needs."""
        _check_version()
        from amanda.drivers.tensorflow.eager import looking as eager
        from amanda.drivers.tensorflow.front import exports, function, session, unsupported
        from amanda.drivers.tensorflow.lower import gradients, vectorized
        from amanda.drivers.tensorflow.view import links, tapes, variable_gradients

        for part in (links, tapes, exports, variable_gradients):
            part.patch()  # for good: graphs outlive scopes
        gradients.register()
        vectorized.register()
        session.watch()
        function.watch()
        self._patches = (session, function, unsupported, eager)
        eager.attach()
        self._watch_keras()

    def _keras_is_there(self) -> None:
        self._has_keras = True
        self._watch_keras()

    def _watch_keras(self) -> None:
        """Keras imports TensorFlow before its own modules are there, or is imported later, or never."""
        if self._patches and self._has_keras:
            from amanda.drivers.tensorflow.front import steps
            from amanda.drivers.tensorflow.view import layers

            steps.watch()
            layers.watch()

    @property
    def closed_namespaces(self) -> frozenset[str]:
        """Empty, because operators of `tf.load_op_library` are in the same registry."""
        return frozenset()

    def operators(self) -> Iterator[str]:
        from amanda.drivers.tensorflow import port

        return (f"tensorflow::{name}" for name in port.registered_operators())

    def has_operator(self, name: str) -> bool:
        return False

    def operators_named_by(self, value: object) -> Sequence[str]:
        from amanda.drivers.tensorflow.front.called_operators import called_by

        return called_by(value)

    def origins(self, symbol: object) -> Sequence[Origin] | None:
        from amanda.drivers.tensorflow.view.origins import origins

        return origins(symbol)

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def access(self, namespace: str, operator: str) -> Access | None:
        if not namespace.startswith("tensorflow/"):
            return None
        hides_values = _NO_DATA.search(operator) is None
        return Access(can_replace=not namespace.endswith("/eager"), hides_values=hides_values, hides_inputs=True)

    def enter(self) -> None:
        for part in self._patches:
            part.patch()

    def leave(self) -> None:
        with contextlib.ExitStack() as unpatched:
            for part in self._patches:
                unpatched.callback(part.unpatch)

    def preserved(self, program: object) -> contextlib.AbstractContextManager[None]:
        from amanda.drivers.tensorflow.front.preserved import preserved

        return preserved(program)

    def recorded(self) -> contextlib.AbstractContextManager[Callable[[object], bool]]:
        from amanda.drivers.tensorflow.front.recording import recorded

        return recorded()

    def listen_to_optimizers(
        self, before: Callable[[Any], object], after: Callable[[Any], object]
    ) -> Callable[[], object]:
        from amanda.drivers.tensorflow.front import steps

        return steps.listen(before, after)

    def remarks(self) -> list[str]:
        """Lists what ran uninstrumented in scopes."""
        from amanda.drivers.tensorflow.front import unsupported

        return unsupported.remarks()


def _is_installed() -> bool:
    spec = importlib.util.find_spec("tensorflow")
    return spec is not None and spec.origin is not None  # a folder of that name is a namespace package


def _is_built() -> bool:
    return importlib.util.find_spec("amanda._tensorflow") is not None


def _installed_version() -> str:
    """The installed version of TensorFlow, without an import, which takes seconds."""
    imported = getattr(sys.modules.get("tensorflow"), "__version__", None)
    if isinstance(imported, str):
        return imported
    import importlib.metadata  # here: few programs have TensorFlow

    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of an unknown version"


def _fits(version: str) -> bool:
    return version.split(".")[:2] == required.VERSION.split(".")


def _check_version() -> None:
    version = _installed_version()
    if not _fits(version):
        raise ImportError(
            f"[tensorflow] this version of amanda is for TensorFlow {required.VERSION}, and TensorFlow {version} is "
            f"imported: it runs uninstrumented, and tools see nothing of it; install tensorflow=={required.VERSION}.*"
        )
