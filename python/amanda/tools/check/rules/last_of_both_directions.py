"""last-of-both-directions."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit.frameworks import is_tensorflow

from ..computed import Computed
from ..graph import behind, inputs
from ..rule import Rule, operands

_AFTER = ("linear", "dropout", "layer_norm", "batch_norm", "relu")
MOST = 1024  # results that are known


class LastOfBothDirections(Rule):
    """The last step of a bidirectional recurrent layer is taken for all of the sequence, as by ``out[:, -1]``. There the
    backward direction has seen one step alone: it ends at the first one. Half of the features then know nothing of the
    sequence.

    It looks at layers that get the last step of `nn.LSTM`, `nn.GRU` or `nn.RNN` as a whole, as autograd knows it. In
    TensorFlow it looks at products with a weight that get that of Keras' `Bidirectional`, with
    ``return_sequences=True``. It says nothing about halves of it, as in ``out[:, -1, :hidden]``.
    """

    name = "last-of-both-directions"
    sentence = "at the last step, the backward direction has seen one step alone"
    fix = (
        "take the last state of both directions: _, (h, _) = lstm(x); torch.cat([h[-2], h[-1]], -1); of a GRU, _, h; in "
        "Keras, leave out return_sequences"
    )
    ops = ("lstm", "gru", "rnn_tanh", "rnn_relu", *_AFTER, "tensorflow::MatMul")
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
        if is_tensorflow(context):
            self._look_at_product(context)
            return
        if context.op.__name__ in _AFTER:
            steps = self._steps(context.inputs[0])
            if steps:
                self.found_in(context, f"it gets step {steps - 1} of {steps}, of both directions")
            return
        given = operands(context)
        if given["bidirectional"] and "batch_first" in given:
            context.insert_after_op(self._on_result, outputs=[0], axis=int(given["batch_first"]))

    def _look_at_product(self, context: OpContext) -> None:
        step = _before_dropout(inputs(context)[0])
        if step is None or step.kind != "StridedSlice" or step.axis is None:
            return
        layer = step.inputs[0]
        if layer is None or layer.shape is None or not _has_directions(layer, step.axis):
            return
        steps = layer.shape[step.axis]
        if step.index == -1 or (steps is not None and steps > 1 and step.index == steps - 1):
            of = f" of {steps}" if steps is not None else ""
            self.found_in(context, f"it gets the last step{of} of {layer.module_path}, of both directions")

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


def _before_dropout(value: Computed | None) -> Computed | None:
    """The values that moves, and the product and the choice of a dropout, get."""
    value = behind(value)
    while value is not None and value.kind in ("mul", "SelectV2"):
        value = behind(value.inputs[1] if value.kind == "SelectV2" else value.inputs[0])
    return value


def _has_directions(value: Computed, axis: int) -> bool:
    """True for the results of two loops along the axis, of which the second is in the other direction."""
    if value.kind != "cat" or len(value.members) < 2:
        return False
    forward, backward = value.members[:2]
    is_reversed = backward is not None and backward.kind == "ReverseV2" and backward.axis == axis
    return is_reversed and backward is not None and _is_loop(forward) and _is_loop(backward.inputs[0])


def _is_loop(value: Computed | None) -> bool:
    found = behind(value)
    return found is not None and found.kind in ("TensorListStack", "stack", "Pack")
