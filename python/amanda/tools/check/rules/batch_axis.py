"""batch-axis."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import running
from ..rule import Rule, operands

_LOSSES = ("cross_entropy_loss", "nll_loss_nd", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss",
           "l1_loss", "smooth_l1_loss", "huber_loss")  # fmt: skip
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LEAST = 2  # losses


@dataclasses.dataclass
class _Runs:
    place: Place
    sizes: tuple[int, int] | None = None  # of the last run: steps, examples
    wrong: int = 0
    right: int = 0
    evidence: str = ""


class BatchAxis(Rule):
    """A recurrent layer, or attention, takes the batch for the sequence: it was made with ``batch_first=False``, and gets a
    batch whose first axis is that of the examples. Each example then depends on those before it in the batch.

    It compares the inputs of `nn.LSTM`, `nn.GRU`, `nn.RNN` and `nn.MultiheadAttention` with the labels of the next loss. It
    reports a layer if there is a label for each step of the sequence, not for each example, in two losses or more and in
    all. It says nothing where there are as many steps as examples.
    """

    name = "batch-axis"
    sentence = "a layer goes over the examples of a batch as if they were a sequence"
    fix = "make the layer with batch_first=True, or transpose its input: x.transpose(0, 1)"
    ops = (*_RECURRENT, "scaled_dot_product_attention", *_LOSSES)
    bad = """
        layer, head = nn.GRU(4, 8), nn.Linear(8, 3)
        for _ in range(2):
            out, _ = layer(torch.randn(4, 5, 4))
            F.cross_entropy(head(out[:, -1]), labels).backward()
    """
    good = """
        layer, tagger, head = nn.GRU(4, 8, batch_first=True), nn.GRU(4, 8), nn.Linear(8, 3)
        for _ in range(2):
            out, _ = layer(torch.randn(4, 5, 4))
            F.cross_entropy(head(out[:, -1]), labels).backward()
            out, _ = tagger(torch.randn(4, 1, 4))  # a label for each step of one sequence
            F.cross_entropy(head(out[:, 0]), labels).backward()
            out, _ = tagger(torch.randn(4, 2, 4))  # and of two
            F.mse_loss(out, torch.zeros(4, 2, 8)).backward()
    """

    def begin(self) -> None:
        self._runs: dict[Place, _Runs] = {}

    def look(self, context: OpContext) -> None:
        name, given = context.op.__name__, operands(context)
        if name in _LOSSES:
            context.insert_before_op(self._on_loss, inputs=["target"])
        elif name in _RECURRENT:
            if given.get("batch_first") is False and getattr(given.get("input"), "dim", int)() == 3:
                runs = self._runs.setdefault(Place.of(context), _Runs(Place.of(context)))
                context.insert_before_op(self._on_recurrent, inputs=["input"], runs=runs)
        elif given["query"].dim() == 4 and any(_takes_the_first_axis(one) for one in running()[:1]):
            runs = self._runs.setdefault(Place.of(context), _Runs(Place.of(context)))
            context.insert_before_op(self._on_attention, inputs=["query"], runs=runs)

    def _on_recurrent(self, given: Any, runs: _Runs) -> None:
        runs.sizes = given.shape[0], given.shape[1]

    def _on_attention(self, query: Any, runs: _Runs) -> None:
        runs.sizes = query.shape[2], query.shape[0]

    def _on_loss(self, target: Any) -> None:
        for runs in self._runs.values():
            if runs.sizes is not None and target.dim() and runs.sizes[1] > 1 and runs.sizes[0] != runs.sizes[1]:
                steps, examples = runs.sizes
                if target.numel() == target.shape[0] == steps:
                    runs.wrong += 1
                    runs.evidence = f"{steps} labels, and an input of {steps} steps for {examples} examples"
                else:
                    runs.right += 1
            runs.sizes = None

    def at_end(self, ended_well: bool) -> None:
        for runs in self._runs.values():
            if runs.wrong >= LEAST and not runs.right:
                self.found(runs.place, runs.evidence, count=runs.wrong)
            runs.sizes, runs.wrong, runs.right = None, 0, 0


def _takes_the_first_axis(module: Any) -> bool:
    """It is `nn.MultiheadAttention`, and the first axis of its input is that of the sequence."""
    return type(module).__name__ == "MultiheadAttention" and getattr(module, "batch_first", True) is False
