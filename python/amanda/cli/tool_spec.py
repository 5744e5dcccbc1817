"""A tool as a command line names it: "profile", "MagnitudePruning(sparsity=0.9)", "mypackage.tools:MyTool(3)"."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import os
import sys
import traceback
import types
from typing import Any, NamedTuple

from amanda.core import keywords, moved
from amanda.core.near_names import did_you_mean
from amanda.core.tool import Tool
from amanda.driver.identity import frames

#: The tools that ship and need no model or function to be made, by the names that commands know.
SHIPPED = {
    "capture": "amanda.tools.capture:Capture",
    "check": "amanda.tools.check:Check",
    "compiled_diff": "amanda.tools.compiled_diff:CompiledDiff",
    "cupti": "amanda.tools.cupti_profiler:CuptiProfiler",
    "cuts": "amanda.tools.cuts:GradientCuts",
    "flops": "amanda.tools.flops:Flops",
    "gradients": "amanda.tools.gradients:GradientStatistics",
    "graph": "amanda.tools.graph:GraphTracing",
    "histograms": "amanda.tools.histograms:ValueHistograms",
    "inplace": "amanda.tools.inplace:InplaceErrors",
    "memory": "amanda.tools.memory:PeakMemory",
    "nan": "amanda.tools.nonfinite:NaNSentinel",
    "profile": "amanda.tools.profile:Profile",
    "statistics": "amanda.tools.statistics:OpStatistics",
    "trace": "amanda.tools.trace:Trace",
    "activation_pruning": "amanda.research.pruning:ActivationPruning",
    "magnitude_pruning": "amanda.tools.pruning:MagnitudePruning",
    "tilewise_pruning": "amanda.research.pruning:TilewisePruning",
    "vectorwise_pruning": "amanda.tools.pruning:VectorwisePruning",
    "fake_quantization": "amanda.tools.quantization:FakeQuantization",
    "dynamic_quantization": "amanda.tools.quantization:DynamicQuantization",
}
_BY_CLASS = {place.partition(":")[2]: name for name, place in SHIPPED.items()}


class ToolSpec(NamedTuple):
    """The class of a tool, and the arguments that it is called with.

    Attributes:
        name: for options and files: "profile", "MyTool".
        place: "package.module:Class" or "path/to/file.py:Class".
    """

    name: str
    place: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> ToolSpec:
        """Reads NAME, NAME(arguments), MODULE:CLASS or FILE.py:CLASS. Nothing is imported; arguments are literals.

        Raises:
            ValueError: it is none of these.
        """
        head, parenthesis, _ = text.partition("(")
        args, kwargs = _arguments(text, "f" + text[len(head) :]) if parenthesis else ((), {})
        place = head.strip()
        if ":" in place:
            module, _, name = place.rpartition(":")
            if not module or not name.isidentifier():
                raise ValueError(f"{text!r} is no tool: expected MODULE:CLASS or FILE.py:CLASS before the arguments")
            return cls(name, place, args, kwargs)
        name = _BY_CLASS.get(place, place)
        if name not in SHIPPED:
            several = [one.strip() for one in place.split(",")]
            if len(several) > 1 and all(one in SHIPPED or one in _BY_CLASS for one in several):
                raise ValueError(f"a tool has a -t of its own: {' '.join(f'-t {one}' for one in several)}")
            meant = did_you_mean(place, [*SHIPPED, *_BY_CLASS]) or ";"
            raise ValueError(
                f"no tool is named {place!r}{meant} known are {', '.join(sorted(SHIPPED))}; name one of your own as "
                "MODULE:CLASS or FILE.py:CLASS"
            )
        return cls(name, SHIPPED[name], args, kwargs)

    def make(self) -> Tool:
        """Imports the class, and calls it.

        Raises:
            ValueError: there is no such module or class, it is not a tool's, it does not take these arguments, or its code
                raises something.
            ImportError: what a tool that ships needs is not installed.
        """
        try:
            return self._made()
        except _Mistake:
            raise
        except (Exception, SystemExit) as error:
            if self.place in SHIPPED.values() and isinstance(error, (ValueError, TypeError, ImportError)):
                raise  # the message says all
            kind = type(error).__name__
            raise ValueError(f"{self.name} of {self._module()} can't be made: {kind}: {error}{_line(error)}") from error

    def _made(self) -> Tool:
        kind = self._kind()
        try:
            inspect.signature(kind).bind(*self.args, **self.kwargs)
        except TypeError as error:
            known = keywords.options(kind)
            unknown = [name for name in self.kwargs if name not in known]
            meant = did_you_mean(unknown[0], known, "{}=") if unknown else ""
            takes = inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)
            raise _Mistake(
                f"{self.name}: {error}{meant or ';'} it takes {takes if takes.parameters else 'no arguments'}"
            ) from None
        tool: Tool = kind(*self.args, **self.kwargs)
        _ = tool.name  # raises if super().__init__() was not called
        return tool

    def _module(self) -> str:
        return self.place.rpartition(":")[0]

    def _kind(self) -> type[Tool]:
        module_name, _, class_name = self.place.rpartition(":")
        module = _of_file(module_name) if module_name.endswith(".py") else _of_path(module_name)
        kind = getattr(module, class_name, None)
        if not isinstance(kind, type) or not issubclass(kind, Tool):
            found = "is not there" if kind is None else f"is {kind!r}, not a subclass of amanda.Tool"
            raise _Mistake(moved.message(f"{module_name}.{class_name}") or f"{class_name} of {module_name} {found}")
        return kind


class _Mistake(ValueError):
    """A mistake in a command line's text about a tool."""


def _line(error: BaseException) -> str:
    """The innermost place outside Amanda through which an error was raised, as text; "" if there is none."""
    if isinstance(error, SyntaxError):
        return ""  # its text has it
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [f" ({file}:{line})" for file, line in lines if not frames.is_ours(file) and not file.startswith("<")]
    return places[-1] if places else ""


def _arguments(text: str, call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        parsed = ast.parse(call, mode="eval").body
        if not isinstance(parsed, ast.Call) or any(keyword.arg is None for keyword in parsed.keywords):
            raise SyntaxError
        args = tuple(ast.literal_eval(argument) for argument in parsed.args)
        return args, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in parsed.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r}: arguments are Python literals, as in NAME(0.9, mode='sum')") from None


def _of_path(name: str) -> Any:
    """The module, found as `python -m` finds it: the current folder comes first."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise _Mistake(f"there is no module {error.name!r}") from None
        raise
    finally:
        sys.path.remove(folder)


def _of_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise _Mistake(f"there is no file {path!r}")
    name = f"amanda tool {path}"  # one that the program cannot import
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = types.ModuleType(name)
    module.__file__, module.__loader__ = path, loader
    sys.modules[name] = module  # dataclasses look there
    loader.exec_module(module)
    return module
