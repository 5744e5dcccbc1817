"""What the suite needs of a driver. One file in adapters/ for each: it defines `ADAPTER`, or raises `NotInstalled`."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import amanda
from description import Nested, Program


class NotInstalled(Exception):
    """The framework, or amanda's driver for it, is not there; the text is a reason."""


@dataclass(frozen=True)
class Capabilities:
    """Those of amanda::Capabilities that decide what a test expects."""

    backward: Literal["nodes", "operators", "one", "none"]
    """Which backward operators tools are shown: amanda::BackwardOps. "none": the framework computes no gradients."""
    keeps_gradients: bool = False
    """The gradients of what a replacement replaces stay."""
    symbolic: bool = False
    """Analyses are shown symbols."""
    both_sides: bool = False
    """After an operator its inputs can be shown, too."""
    shows_bodies: bool = True
    """The operators in loops and conditionals are shown."""
    has_views: bool = True
    """Some results share memory with an operand, and nothing can replace them."""


class Model(Protocol):
    """A program, built."""

    def run(self, *inputs: Nested) -> list[Nested]:
        """Its outputs."""

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        """Its outputs, and the gradients of its loss with respect to its parameters; zeros where there is none. If
        `backward` is "none", no gradients."""

    def saved(self) -> bytes:
        """Its parameters, as the framework saves them."""

    def exported(self) -> str:
        """The program, as the framework exports it; or what it shows of it."""

    def builds(self) -> int | None:
        """How many graphs were instrumented; None: the framework has none."""


class Adapter(Protocol):
    name: str
    """What `OpContext.namespace` is."""
    capabilities: Capabilities
    same_ids_as: str | None
    """Another adapter's name: one place of the program has the same id there."""
    namespace: str
    """Of the operators' names: "aten"."""
    ops: dict[str, str]
    """Of each kind, the operator's name."""
    backward_ops: dict[str, set[str]]
    """Of each kind, the names of the backward operators that tools are shown, leaves' apart."""
    leaf_ops: set[str]
    """Backward operators that stand for leaves."""

    def apply(self, *tools: amanda.Tool, on_error: Literal["raise", "disable"] = "raise") -> amanda.Scope:
        """A scope whose tools reach these programs."""

    def build(self, program: Program, beside: Any = None) -> Model:
        """`beside`: the model that the regime `same_ids_as` built of it. Its places are to have the same ids."""

    # Of the values that routines get.
    def nested(self, value: Any) -> Nested: ...
    def times(self, value: Any, factors: list[float]) -> Any:
        """Element by element."""


def named(adapter: Adapter, *kinds: str) -> list[str]:
    """For `ops=`. Names without a namespace are those of frameworks that are loaded."""
    return sorted({f"{adapter.namespace}::{adapter.ops[kind]}" for kind in kinds})


def installed() -> Iterator[Adapter]:
    for path in sorted((pathlib.Path(__file__).parent / "adapters").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"conformance_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except NotInstalled:
            continue
        yield module.ADAPTER
