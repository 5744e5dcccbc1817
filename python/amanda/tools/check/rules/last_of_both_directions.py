"""last-of-both-directions."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..rule import Rule, operands

_AFTER = ("linear", "dropout", "layer_norm", "batch_norm", "relu")
MOST = 1024  # results that are known


class LastOfBothDirections(Rule):
    """The last step of a bidirectional recurrent layer is taken for all of the sequence, as by ``out[:, -1]``. There the
    backward direction has seen one step alone: it ends at the first one. Half of the features then know nothing of the
    sequence.

    It looks at layers that get the last step of `nn.LSTM`, `nn.GRU` or `nn.RNN` as a whole, as autograd knows it. It
    says nothing about halves of it, as in ``out[:, -1, :hidden]``.
    """

    name = "last-of-both-directions"
    sentence = "at the last step, the backward direction has seen one step alone"
    fix = "take the last state of both directions: _, (h, _) = lstm(x); torch.cat([h[-2], h[-1]], -1); of a GRU, _, h"
    ops = ("lstm", "gru", "rnn_tanh", "rnn_relu", *_AFTER)
    bad = """
        layer, head = nn.GRU(4, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)
        for _ in range(2):
            out, _ = layer(torch.randn(4, 5, 4))
            F.cross_entropy(head(out[:, -1]), labels).backward()
    """
    good = """
        layer, head = nn.GRU(4, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)
        half = nn.Linear(8, 3)
        for _ in range(2):
            out, h = layer(torch.randn(4, 5, 4))
            F.cross_entropy(head(torch.cat([h[-2], h[-1]], -1)), labels).backward(retain_graph=True)
            F.cross_entropy(half(out[:, -1, :8]), labels).backward(retain_graph=True)
            F.cross_entropy(head(torch.cat([out[:, -1, :8], out[:, 0, 8:]], -1)), labels).backward(retain_graph=True)
            F.cross_entropy(head(out).mean(1), labels).backward(retain_graph=True)
            F.cross_entropy(head(out[:, 0]), labels).backward()
    """

    def begin(self) -> None:
        # The axis of steps, by the number of the result's node in autograd's graph.
        self._results: dict[int, int] = {}

    def look(self, context: OpContext) -> None:
        if context.op.__name__ in _AFTER:
            steps = self._steps(context.inputs[0])
            if steps:
                self.found_in(context, f"it gets step {steps - 1} of {steps}, of both directions")
            return
        given = operands(context)
        if given["bidirectional"] and "batch_first" in given:
            context.insert_after_op(self._on_result, outputs=[0], axis=int(given["batch_first"]))

    def _on_result(self, result: Any, axis: int) -> None:
        if result.grad_fn is not None and len(self._results) < MOST:
            self._results[result.grad_fn._sequence_nr()] = axis

    def _steps(self, tensor: Any) -> int:
        """The steps of the sequence, if this is the last one of a bidirectional layer; else 0."""
        node = getattr(tensor, "grad_fn", None)
        if node is None or node.name() != "SelectBackward0" or not self._results:
            return 0
        layer, axis, steps = node.next_functions[0][0], node._saved_dim, node._saved_self_sym_sizes[node._saved_dim]
        is_last = node._saved_index in (steps - 1, 2**64 - 1)
        is_result = layer is not None and self._results.get(layer._sequence_nr()) == axis
        return int(steps) if is_last and is_result and steps > 1 else 0
