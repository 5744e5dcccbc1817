"""Writes what shipped tools look at, by regime of PyTorch, into docs/limitations.md: `python scripts/tool_regimes.py`.

A cell is what the tool's own evidence says after a program of that regime has run. tests/python/tools/test_regimes.py
compares them with the page.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amanda
import torch
from amanda.tools import (
    capture,
    diff,
    error_injection,
    flops,
    gradients,
    graph,
    histograms,
    history,
    memory,
    nonfinite,
    profile,
    pruning,
    quantization,
    statistics,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

PAGE = Path(__file__).parents[1] / "docs" / "limitations.md"
BEGIN, END = "<!-- tools: written by scripts/tool_regimes.py -->\n", "<!-- end of tools -->\n"


class Net(nn.Module):
    """A convolution, attention and a linear layer: each tool finds what it works on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.project, self.head = nn.Conv2d(2, 8, 3), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(self.conv(x).relu().flatten(2))  # (n, 8, 16)
        return self.head(nn.functional.scaled_dot_product_attention(x, x, x)).sum()


def image() -> torch.Tensor:
    return torch.ones(1, 2, 6, 6)


def run(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result = program(image())
    if result.requires_grad:
        result.backward()


def eager() -> None:
    run(Net())


def compiled() -> None:
    torch._dynamo.reset()
    run(torch.compile(Net(), backend="aot_eager"))


def checkpointed() -> None:
    run(lambda x: checkpoint(Net(), x, use_reentrant=False))


def vmapped() -> None:
    torch.func.vmap(Net(), randomness="different")(image()[None])


def forward_mode() -> None:
    torch.func.jvp(Net(), (image(),), (image(),))


def sparse() -> None:
    weight = torch.eye(4).to_sparse().requires_grad_()
    run(lambda x: torch.sparse.mm(weight, torch.ones(4, 4)).sum())


def distributed() -> None:
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    with _process_group():
        mesh = init_device_mesh("cpu", (1,))
        weight, x = (DTensor.from_local(torch.ones(4, 4), mesh, [Replicate()]) for _ in range(2))
        run(lambda _: torch.mm(weight.requires_grad_(), x).relu().sum())


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    hook, store = sys.excepthook, torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        sys.excepthook = hook  # PyTorch sets one that prefixes the rank


REGIMES: dict[str, tuple[Callable[[], None], dict[str, Any]]] = {
    "eager": (eager, {}),
    'compiled, "eager"': (compiled, {}),
    'compiled, "graph"': (compiled, {"compiled": "graph"}),
    'compiled, "opaque"': (compiled, {"compiled": "opaque"}),
    "checkpoint": (checkpointed, {}),
    "vmap": (vmapped, {}),
    "jvp": (forward_mode, {}),
    "sparse": (sparse, {}),
    "DTensor": (distributed, {}),
}

TOOLS: dict[str, Callable[[Path], amanda.Tool]] = {
    "ActivationPruning": lambda folder: pruning.ActivationPruning(threshold=0.1),
    "Capture": lambda folder: capture.Capture(),
    "DynamicQuantization": lambda folder: quantization.DynamicQuantization(),
    "ErrorInjection": lambda folder: error_injection.ErrorInjection(error_injection.BitFlip()),
    "FakeQuantization": lambda folder: quantization.FakeQuantization(),
    "Flops": lambda folder: flops.Flops(),
    "GradientStatistics": lambda folder: gradients.GradientStatistics(),
    "GraphTracing": lambda folder: graph.GraphTracing(),
    "History": lambda folder: history.History(),
    "MagnitudePruning": lambda folder: pruning.MagnitudePruning(sparsity=0.5),
    "NaNSentinel": lambda folder: nonfinite.NaNSentinel(),
    "OpStatistics": lambda folder: statistics.OpStatistics(),
    "PeakMemory": lambda folder: memory.PeakMemory(),
    "Profile": lambda folder: profile.Profile(),
    "Recorder": lambda folder: diff.Recorder(folder / "record"),
    "Trace": lambda folder: amanda.tools.trace.Trace("*: output.sum()"),
    "ValueHistograms": lambda folder: histograms.ValueHistograms(),
}


INFERENCE = ("DynamicQuantization",)  # what it makes has no gradient


def cell(tool: str, regime: str) -> str:
    """ "yes": it looked at all; else the reasons of its evidence, or "refuses": it says that it cannot work there."""
    program, options = REGIMES[regime]
    with tempfile.TemporaryDirectory() as folder, _quiet(), contextlib.ExitStack() as closed:
        made = TOOLS[tool](Path(folder))
        if isinstance(made, diff.Recorder):
            closed.enter_context(made)
        apply: Any = amanda.scheduled if isinstance(made, amanda.StepTool) else amanda.apply
        try:
            with torch.set_grad_enabled(tool not in INFERENCE), apply(made, **options):
                program()
        except (amanda.Error, RuntimeError):
            return "refuses"
        evidence = made.evidence()
    if evidence.unseen:
        return ", ".join(dict.fromkeys(one.reason for one in evidence.unseen))
    return "yes" if evidence.operators or evidence.backward_operators else "nothing"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("amanda")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(level)


def rewritten(page: str, cells: dict[tuple[str, str], str]) -> str:
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    lines = ["| tool | " + " | ".join(REGIMES) + " |\n", "| --- |" + " --- |" * len(REGIMES) + "\n"]
    lines += [f"| `{tool}` | " + " | ".join(cells[tool, regime] for regime in REGIMES) + " |\n" for tool in TOOLS]
    return "".join([before, BEGIN, *lines, END, after])


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """Those that the page has."""
    rows = page.split(BEGIN)[1].split(END)[0].splitlines()[2:]
    texts = [[text.strip() for text in row.strip("| ").split(" | ")] for row in rows]
    return {
        (tool.strip("`"), regime): found for tool, *all in texts for regime, found in zip(REGIMES, all, strict=True)
    }


if __name__ == "__main__":
    every = {(tool, regime): cell(tool, regime) for tool in TOOLS for regime in REGIMES}
    PAGE.write_text(rewritten(PAGE.read_text(), every))
