"""The tools in the table of accuracy, with their settings. A case is an entry of `CASES`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch.nn.functional as F
from amanda import research
from amanda.research import BitFlip, ErrorInjection, StuckAt
from amanda.tools import pruning, quantization
from amanda.tools.rewriting import SubgraphRewriting

DIGITS = ("CNN", "transformer")
ATTENTION = ("transformer", "MiniLM")


def nothing(tool):
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    """A tool with its settings, as one row of the table."""

    tool: str  # as docs/tools.md names it: package.Class
    setting: str
    make: Callable[[int], Any]  # make(seed)
    tasks: tuple[str, ...] = (*DIGITS, "MiniLM")  # of `tasks.TASKS`, those that have something for the tool to edit
    trains: bool = True  # False: it is not made for training
    calibrates: bool = False  # sees training data before it is scored
    twice: bool = False  # begins to work when inputs of a size come for the second time
    before_scoring: Callable[[Any], object] = nothing
    before_training: Callable[[Any], object] = nothing
    parameters: Callable[[Any], Iterable[Any]] = lambda tool: ()  # of the tool, to be trained, too
    after_step: Callable[[Any], object] = nothing  # of the optimizer

    @property
    def title(self):
        return f"{self.tool}, {self.setting}"


def observe(on):
    def switch(tool):
        tool.observe = on

    return switch


def linear_gelu(linear, gelu):
    return F.gelu(F.linear(linear.input, linear.weight, linear.bias), approximate=gelu.approximate)


def folded(conv, norm):
    """A convolution with the batch normalization after it in its weight."""
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    bias = (conv.bias - norm.running_mean) * scale + norm.bias
    return F.conv2d(conv.input, conv.weight * scale.view(-1, 1, 1, 1), bias, padding=conv.padding)


CASES = [
    Case("pruning.MagnitudePruning", "sparsity 0.5", lambda seed: pruning.MagnitudePruning(0.5)),
    Case("pruning.MagnitudePruning", "sparsity 0.8", lambda seed: pruning.MagnitudePruning(0.8)),
    Case("pruning.MagnitudePruning", "sparsity 0.9", lambda seed: pruning.MagnitudePruning(0.9), DIGITS),
    Case("pruning.VectorwisePruning", "2 of 4", lambda seed: pruning.VectorwisePruning()),
    Case(
        "research.TilewisePruning",
        "half, tiles of 8",
        lambda seed: research.TilewisePruning(0.5, tile=8),
        calibrates=True,  # a first pass runs dense
    ),
    Case("research.ActivationPruning", "half of each sample's", lambda seed: research.ActivationPruning(sparsity=0.5)),
    Case(
        "pruning.SparsitySchedule",
        "magnitudes, 0 to 0.8",
        lambda seed: pruning.MagnitudePruning(pruning.SparsitySchedule(final=0.8, end=60, every=5)),
        DIGITS,
        after_step=lambda tool: tool.sparsity.step(),
    ),
    Case(
        "research.ChannelPruning",
        "half of the channels stay",
        lambda seed: research.ChannelPruning(0.5),
        ("CNN",),
        calibrates=True,  # makes the gates
        parameters=lambda tool: tool.parameters(),
    ),
    Case("research.CascadePruning", "3/4 of the tokens stay", lambda seed: research.CascadePruning(0.75), ATTENTION),
    Case(
        "research.HeadPruning",
        "1 head less in 2 layers",
        lambda seed: research.HeadPruning({0: [0], 1: [0]}),
        ATTENTION,
    ),
    Case(
        "quantization.FakeQuantization",
        "8 bits",
        lambda seed: quantization.FakeQuantization(),
        calibrates=True,
        before_scoring=observe(False),
        before_training=observe(True),
    ),
    *(
        Case(
            "research.LearnedStepQuantization",
            f"{bits} bits",
            lambda seed, bits=bits: research.LearnedStepQuantization(bits),
            calibrates=True,  # makes the step sizes
            parameters=lambda tool: tool.parameters(),
        )
        for bits in (3, 8)
    ),
    Case("quantization.DynamicQuantization", "8 bits", lambda seed: quantization.DynamicQuantization(), trains=False),
    Case(
        "quantization.StaticQuantization",
        "8 bits",
        lambda seed: quantization.StaticQuantization(),
        trains=False,
        calibrates=True,
        before_scoring=lambda tool: tool.convert(),
    ),
    Case(
        "research.ErrorInjection",
        "a bit in 100 000 results flips",
        lambda seed: ErrorInjection(BitFlip(), rate=1e-5, seed=seed, max_rows=0),
        trains=False,  # a flipped exponent ends the training
    ),
    Case(
        "research.ErrorInjection",
        "one of 100 results is 0",
        lambda seed: ErrorInjection(StuckAt(0.0), rate=1e-2, seed=seed, max_rows=0),
    ),
    Case(
        "rewriting.SubgraphRewriting",
        "linear and gelu as one function",
        lambda seed: SubgraphRewriting(["linear", "gelu"], linear_gelu),
        ATTENTION,
        twice=True,
    ),
    Case(
        "rewriting.SubgraphRewriting",
        "normalizations in convolutions",
        lambda seed: SubgraphRewriting(["conv2d", "batch_norm"], folded),
        ("CNN",),
        trains=False,
        twice=True,
    ),
]
