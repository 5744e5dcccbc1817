"""The backend that Dynamo calls in scopes: it hands what it instruments to the program's own backend."""

from __future__ import annotations

from typing import Any

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.front import failures
from amanda.drivers.torch_compile.front.compiled_function import CompiledFunction


class InstrumentingBackend:
    """Equal for equal backends: then Dynamo takes what it has compiled before, which knows by itself what tools are in
    force when it runs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._key = key = port.innermost_backend(inner)
        named = (getattr(key, name, None) for name in ("compiler_name", "__name__"))
        self.__name__ = next(filter(None, named), type(key).__name__)

    def __call__(self, gm: Any, example_inputs: list[Any]) -> Any:
        compiled = CompiledFunction(gm, example_inputs, self.inner, self.__name__)
        try:
            compiled.prepare(example_inputs)
        except port.RestartAnalysis:
            raise
        except Exception as error:
            if not compiled.inner_failed:
                failures.note(error)
            raise
        return compiled.run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstrumentingBackend) and bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)
