"""loss-broadcast."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import outwards
from amanda.toolkit.frameworks import is_tensorflow

from ..computed import shape_of
from ..gradients import storage
from ..graph import inputs, kind
from ..memory import Memory
from ..modes import running
from ..rule import Rule, operands

_DECIDES = ("argmax", "topk", "max", "round", "gt", "ge")
_MOST = 64  # nodes of a graph
MOST = 64  # results of these that are known
_ELEMENTWISE = ("Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Exp", "Log", "Pow", "Clamp", "ClampMin", "ClampMax",
                "Softplus", "Sigmoid", "Tanh", "Relu", "ToCopy", "Clone", "Alias")  # fmt: skip


class LossBroadcast(Rule):
    """A prediction of shape (N, 1) and a target of shape (N,), or the other way round, are subtracted. The result has shape
    (N, N): each prediction is compared with each target, and the model learns the mean of all targets. The same happens
    with masks of shapes (N, 1, H, W) and (N, H, W).

    So it is where predictions are compared with labels, ``(predicted == labels).sum()``: the accuracy is that of all pairs,
    and may be more than 100%. Or where an advantage of shape (N, 1) multiplies the logarithms of probabilities, (N,).

    It looks at subtractions and products of a value that a gradient is computed for and one without, at losses of
    `torch.nn.functional`, and at comparisons with what `argmax`, `topk`, `max` or `round` gave. An axis that `unsqueeze`
    or an index adds is meant. In TensorFlow, it looks at differences of which one value is computed from a variable, or by
    a layer, and one is not. Differences of pairs that are meant have the same number of axes:
    ``a[:, None] - b[None, :]``. A tensor that a running module keeps, as its frequencies or centers, is no target. Keras'
    own losses give both the same shape.
    """

    name = "loss-broadcast"
    sentence = "prediction and target are broadcast, so that each meets all others"
    fix = "give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1)"
    ops = (
        *("sub", "sub_", "rsub", "mul", "eq", *_DECIDES, "to", "broadcast_tensors"),
        *("tensorflow::Sub", "tensorflow::SquaredDifference"),
    )
    bad = """
        predicted, target = nn.Linear(4, 1)(x), x[:, 0]
        loss = (predicted - target).square().mean()
        loss.backward()
    """
    good = """
        predicted, target = nn.Linear(4, 1)(x), x[:, 0]
        loss = (predicted.squeeze(-1) - target).square().mean()
        pairs = predicted[:, None] - target[None, :, None]  # meant
        (loss + pairs.square().mean()).backward()
        right = model(x).argmax(1, keepdim=True) == labels[:, None]
        alike = labels[:, None] == labels  # meant
        (model(x).logsumexp(1) * torch.randn(4)[:, None]).sum().backward()  # meant
    """

    def begin(self) -> None:
        self._decided: list[Memory] = []  # what was predicted

    def look(self, context: OpContext) -> None:
        if is_tensorflow(context):
            ranks = [len(shape) for one in context.inputs if (shape := shape_of(one)) is not None]
            trained = [one is not None and one.is_trained for one in inputs(context)]
            if sorted(trained) == [False, True] and len(ranks) == 2 and abs(ranks[0] - ranks[1]) == 1:
                context.insert_before_op(self._on_difference, inputs=[0, 1], place=Place.of(context))
            return
        name = context.op.__name__
        if name in (*_DECIDES, "to"):
            if name != "to" or self._is_decided(context.inputs[0]):
                context.insert_after_op(self._on_decision)
            return
        if name in ("eq", "mul"):
            pair = list(context.inputs[:2])
            is_met = all(hasattr(one, "grad_fn") and not _is_unsqueezed(one) for one in pair) and not _has_constant(
                pair
            )
            is_known = is_met and (self._is_comparison(*pair) if name == "eq" else _is_weighted(*pair))
            if is_known and (evidence := _broadcast(*pair)):
                self.found_in(context, evidence)
            return
        if name == "broadcast_tensors":
            pair, is_loss = list(context.inputs[0]), _in_loss_function()
        else:
            given = operands(context)
            pair = [given["self"], given["other"]]
            is_loss = all(hasattr(one, "requires_grad") for one in pair) and _is_prediction_and_target(*pair)
            is_loss = is_loss and not _has_constant(pair)
        if len(pair) == 2 and is_loss and (evidence := _broadcast(*pair)):
            self.found_in(context, evidence)

    def _on_decision(self, *results: Any) -> None:
        memories = [Memory(one) for one in results if storage(one) is not None]
        self._decided = [*self._decided[-MOST:], *memories]

    def _is_decided(self, value: Any) -> bool:
        return any(one.is_of(value) for one in self._decided)

    def _is_comparison(self, *pair: Any) -> bool:
        return sorted(map(self._is_decided, pair)) == [False, True]

    def _on_difference(self, one: Any, other: Any, place: Place) -> None:
        """Sizes of a graph's symbols may not be known before."""
        if evidence := _broadcast(one, other):
            self.found(place, evidence)


def _is_prediction_and_target(one: Any, other: Any) -> bool:
    computed = [each.grad_fn is not None for each in (one, other)]
    return sorted(computed) == [False, True] and [each.requires_grad for each in (one, other)] == computed


def _is_weighted(*pair: Any) -> bool:
    """One was computed for each example, and not from parameters alone."""
    return _is_prediction_and_target(*pair) and any(_is_of_examples(one.grad_fn) for one in pair)


def _is_of_examples(node: Any) -> bool:
    todo = [node]
    for _ in range(_MOST):
        node = todo.pop() if todo else None
        if node is None:
            continue
        if kind(node) not in (*_ELEMENTWISE, "torch::autograd::AccumulateGrad"):
            return True
        todo += [one for one, _ in node.next_functions]
    return False


def _is_unsqueezed(tensor: Any) -> bool:
    """An axis of size 1 was added to a view on purpose."""
    base, before = getattr(tensor, "_base", None), getattr(tensor.grad_fn, "_saved_self_sym_sizes", None)
    is_added = kind(tensor.grad_fn) == "View" and before is not None and len(before) < tensor.dim()
    return kind(tensor.grad_fn) == "Unsqueeze" or is_added or (base is not None and base.dim() < tensor.dim())


def _has_constant(pair: Sequence[Any]) -> bool:
    """A module that runs keeps one of them. Its length has nothing to do with that of the batch."""
    own = [
        one for module in running() for kept in (module.buffers(recurse=False), vars(module).values()) for one in kept
    ]
    return any(one is each for one in own for each in pair)


def _broadcast(one: Any, other: Any) -> str:
    shapes = [tuple(one.shape), tuple(other.shape)]
    grown = _grown(*shapes) or _grown(*shapes[::-1])
    return f"shapes {shapes[0]} and {shapes[1]} give {grown}" if grown else ""


def _grown(longer: tuple[int, ...], shorter: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result, if the longer shape has one axis more, of size 1, in last or second place, and the result
    is larger than both; else ()."""
    if len(longer) != len(shorter) + 1 or not shorter:
        return ()
    extra = [
        axis for axis in (len(longer) - 1, 1) if longer[axis] == 1 and longer[:axis] + longer[axis + 1 :] == shorter
    ]
    if not extra or (extra[0] == 1 and len(longer) == 3):  # (N, 1, D) and (N, D): distances of pairs
        return ()
    result = tuple(max(pair) for pair in zip(longer, (1, *shorter), strict=True))
    return result if any(size > before for size, before in zip(result, longer, strict=True)) else ()


def _in_loss_function() -> bool:
    """A loss of `torch.nn.functional` broadcasts its operands."""
    names = (f for f in outwards(sys._getframe(1)) if f.f_globals.get("__name__") == "torch.nn.functional")
    return any(frame.f_code.co_name.endswith("_loss") for frame in names)
