"""The Python part of the PyTorch driver. This file does not import torch, because it also reports when torch is not
installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from amanda.driver.protocol import Access, CoverageCounter, Option, Origin
from amanda.drivers.torch import installed
from amanda.drivers.torch.builds import Builds
from amanda.drivers.torch.versions import KNOWN, is_newer_than_known
from amanda.drivers.torch.vocabulary import TorchVocabulary


class CompiledFunctions(Protocol):
    """The part that instruments compiled functions as graphs, as the driver calls it. The methods are those of
    `amanda.driver.protocol.Driver`."""

    def is_built(self) -> bool: ...
    def load(self) -> None: ...
    def describe(self) -> str: ...
    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter: ...
    def origins(self, symbol: object) -> Sequence[Origin] | None: ...
    def remarks(self) -> list[str]: ...


class TorchDriver:
    """See `amanda.driver.protocol.Driver`."""

    framework = "PyTorch"
    loaded_with = None
    namespace_of_new = "mylib"
    import_hooks: Mapping[str, Callable[[], object]] = {}
    vocabulary = TorchVocabulary()
    requires_gradient = "call a model with parameters that require one, outside torch.no_grad()"
    options: Mapping[str, Option] = {
        "compiled": Option(
            ("auto", "eager", "graph", "opaque"), "what functions compiled with torch.compile do, as in amanda.apply"
        ),
    }

    def __init__(self, builds: Builds, compiled: CompiledFunctions) -> None:
        self._builds = builds
        self._compiled = compiled
        self._patches: tuple[ModuleType, ...] = ()  # modules with `patch` and `unpatch`

    def is_available(self) -> bool:
        return installed.spec() is not None and bool(self._builds.minors())

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        builds = ", ".join(self._builds.minors())
        if installed.spec() is None:
            left = "".join(f", and {folder} is a folder without a package" for folder in installed.left_over())
            fits = "".join(f'; pip install "torch=={minor}.*"' for minor in self._builds.minors()[-1:])
            return [("torch", f"not installed{left}{fits}"), ("built for torch", builds or "no version")]
        if not builds:
            return [("torch", "installed, but this build of amanda has no driver for it")]
        import torch

        from amanda import _torch
        from amanda.drivers.torch import port

        folder = torch.__path__[0]
        mixed = installed.mixed(torch.__version__, folder)
        if is_newer_than_known(torch.__version__):
            builds += f"; newer than this amanda knows ({KNOWN[0]} to {KNOWN[-1]})"
        if whole:
            importlib.import_module(port.DYNAMO)
        cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        walk = "direct" if _torch.walks_frames_directly() else "by Python's public functions, slower"
        caught = _torch.caught_types()
        return [
            ("torch", f"{torch.__version__}, {cuda}, _GLIBCXX_USE_CXX11_ABI={torch.compiled_with_cxx11_abi():d}"),
            *((("torch's folder", mixed.removeprefix("[torch] ")),) if mixed else ()),
            *(("another torch", f"{other}, which is not imported") for other in installed.others(folder)),
            ("built for torch", f"{builds}; used: {self._builds.used}, compiled with {_torch.built_for()}"),
            ("private names", f"{len(port.names.found)} of torch's are used, and all are there"),
            ("dispatch keys", "{} where all tools name operators, {} else".format(*_torch.dispatch_keys())),
            ("walk over frames", walk),
            ("typed kernels", f"{_torch.typed_kernels()} operators"),
            ("caught for filters", f"{caught} operators, for the life of this process" if caught else "nothing"),
            ("torch.compile", self._compiled.describe()),
        ]

    def variable_of(self, symbol: object) -> None:
        """Parameters are tensors, in graphs too."""
        return None

    def is_array(self, symbol: object) -> bool:
        return False  # tools look at tensors

    def could_name(self, name: str) -> bool:
        return True

    def load(self) -> None:
        """Raises `ImportError` if torch cannot be imported, if there is no build for it, if the build does not load with
        it, or if this torch lacks something the driver needs."""
        torch = installed.load()
        folder = torch.__path__[0]
        installed.warn_if_mixed(torch)
        self._builds.use(torch.__version__, lambda: installed.others_as_text(folder))
        with self._builds.loading(torch.__version__, folder):
            from amanda import _torch  # noqa: F401
        from amanda.drivers.torch import attach, backward_pass, compiled, functions

        attach.attach()
        self._compiled.load()
        self._patches = (functions, backward_pass, compiled)

    @property
    def closed_namespaces(self) -> frozenset[str]:
        return frozenset({"aten"})

    def operators(self) -> Iterator[str]:
        """The operators registered with the dispatcher, and the subclasses of torch.autograd.Function."""
        from amanda.drivers.torch import port

        yield from port.registered_operators()
        classes = [port.FunctionBase]
        for cls in classes:
            classes += type.__subclasses__(cls)
        yield from (f"autograd::{cls.__name__}" for cls in classes)

    def has_operator(self, name: str) -> bool:
        from amanda import _torch

        try:
            name.encode()
        except UnicodeEncodeError:  # no operator has such a name
            return False
        return _torch.is_registered(name)

    def operators_named_by(self, value: object) -> Sequence[str]:
        """The name of torch.ops.aten.add or torch.ops.aten.add.Tensor."""
        from amanda.drivers.torch import port

        if isinstance(value, port.OpOverload):
            return [str(value.name())]
        if isinstance(value, port.OpOverloadPacket):
            return [str(value).replace(".", "::", 1)]
        return []

    def origins(self, symbol: object) -> Sequence[Origin] | None:
        return self._compiled.origins(symbol)

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        from amanda import _torch

        return _torch.OwnWork()

    def access(self, namespace: str, operator: str) -> Access | None:
        return Access() if namespace.startswith("pytorch/") else None

    def enter(self) -> None:
        for part in self._patches:
            part.patch()

    def leave(self) -> None:
        with contextlib.ExitStack() as unpatched:
            for part in self._patches:
                unpatched.callback(part.unpatch)

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter:
        from amanda import _torch
        from amanda.drivers.torch.coverage import Counters

        own = _torch.CoverageCounter(tools)
        return Counters(own, self._compiled.make_coverage_counter(tools)) if self._compiled.is_built() else own

    def preserved(self, program: object) -> contextlib.AbstractContextManager[None]:
        from amanda.drivers.torch.preserved import preserved

        return preserved(program)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Callable[[object], bool]]:
        """PyTorch records by itself."""
        from amanda.drivers.torch.differentiation import differentiate

        yield differentiate

    def listen_to_optimizers(
        self, before: Callable[[Any], object], after: Callable[[Any], object]
    ) -> Callable[[], object]:
        from torch.optim import optimizer as hooks

        handles = [
            hooks.register_optimizer_step_pre_hook(lambda optimizer, *_: before(optimizer) and None),
            hooks.register_optimizer_step_post_hook(lambda optimizer, *_: after(optimizer)),
        ]
        return lambda: [handle.remove() for handle in handles]

    def remarks(self) -> list[str]:
        """Lists the functions that the program or a library compiles, and that ran eagerly."""
        from amanda.drivers.torch import compiled

        functions = compiled.functions_run_eagerly()
        if not functions:
            return self._compiled.remarks()
        consequence = "results may differ from the compiled ones in the last bits"
        head = f"compiled with torch.compile, but run eagerly here: {consequence}"
        return [*self._compiled.remarks(), head, *(f"  {function}" for function in functions)]
