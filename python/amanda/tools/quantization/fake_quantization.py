"""FakeQuantization: quantization-aware training of any operator, including products of activations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from amanda.op_context import OpContext
from amanda.reports.places import Place
from amanda.tools import _fused_layers
from amanda.tools.quantization.observed import Observed, OperandPlace
from amanda.tools.quantization.observers import INT8, MakeObserver, Places
from amanda.tools.quantization.rows import Quantization, Side


class FakeQuantization(Quantization):
    """Rounds operands to values of a quantized type, while the program computes and trains in floating point::

        quantization = FakeQuantization({"linear": {"input": int8_activation, "weight": int8_weight}})
        with amanda.apply(quantization):
            fine_tune(model)
        quantization.observe = False  # from here on the ranges stay
        with amanda.apply(quantization):
            evaluate(model)

    Each time an operator runs, an observer of `torch.ao.quantization` observes the operand, and the operand is replaced
    by its value after quantization with the observer's scale and zero point. Its gradient is that of the
    straight-through estimator with clipping: passed on where the value was in range, zero where it was clamped. Both
    are bit-equal to a `torch.ao.quantization.FakeQuantize` module in that place. But no module is needed:
    ``q @ k``, ``x + y`` and attention are quantized too.

    B. Jacob et al.: Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, CVPR
    2018; R. Krishnamoorthi: Quantizing deep convolutional networks for efficient inference, arXiv:1806.08342, 2018.

    Observers belong to the tool and to a place in the program, `context.op_id`, and persist across scopes. An operand
    that two patterns select is quantized twice. Operands that are not floating-point tensors (the 3 in ``x + 3``) are
    left unchanged; so are those whose elements cannot be read (for instance nested and distributed ones), which count
    in `skipped`. If an input is a new leaf with a gradient in each step, each step makes a new place: pass ``x * 1`` to
    the operator instead. A region that checkpointing recomputes is observed again, as with modules, so a moving range
    may have changed by then.

    Rows are by "id", one for each operand of each operator that was observed, in the order in which they first ran. See
    `Results` for `rows`, `table`, `to_pandas` and `reset`. After `reset` all observers are new.

    Arguments:
        inputs: maps operators, by name or pattern as in `Tool.add_inst_for_op`, to the observers of their inputs. These
            map a position or name to a factory of observers, such as the result of an observer class's `with_args`.
        outputs: the same for outputs, by position.

    Attributes:
        observe: if True (the default), observers update their ranges.
        quantize: if True (the default), operands are replaced; if False, the tool only calibrates.

    Raises:
        TypeError: a factory of observers is not callable.
        ValueError: when an operator runs that has no such input or output.
        amanda.Error: when an operand was never observed and `observe` is False; and, if linear layers are selected,
            when PyTorch runs an encoder layer as one operator in evaluation.
    """

    def __init__(self, inputs: Places = INT8, outputs: Places | None = None) -> None:
        super().__init__()
        self.observe = True
        self.quantize = True
        self._add("input", inputs)
        self._add("output", outputs or {})
        if "linear" in inputs:
            _fused_layers.refuse_in(self)

    def _add(self, side: Side, places: Places) -> None:
        for ops, observers in places.items():
            for position, make in observers.items():
                if not callable(make):
                    raise TypeError(
                        f"[quantization] {side} {position!r} of {ops!r} needs something that makes an observer, such as "
                        f"int8_activation; got {make!r}"
                    )
            analyze = functools.partial(self._analyze, ops, side, observers)
            self.add_inst_for_op(analyze, ops=ops, optional=places is INT8)

    def _analyze(self, ops: str, side: Side, observers: Mapping[int | str, MakeObserver], context: OpContext) -> None:
        insert = context.insert_before_op if side == "input" else context.insert_after_op
        for position, make in observers.items():
            at = OperandPlace(Place.of(context), side, position)
            insert(self._fake_quantize, [position], differentiable=True, ops=ops, at=at, make=make)

    def _fake_quantize(self, value: Any, ops: str, at: OperandPlace, make: MakeObserver) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return None
        if self._skips.unreadable(value):
            return None
        key = ops, at.place.op_id, at.side, at.position
        operand = self._operand(key, lambda: Observed(at, make()))
        if self.observe:
            operand.look_at(value)
        return _fake_quantized(value, operand) if self.quantize else None


def _fake_quantized(value: torch.Tensor, operand: Observed) -> torch.Tensor:
    scale, zero_point = operand.qparams("run the program with observe = True first")
    observer = operand.observer
    limits = observer.quant_min, observer.quant_max
    if operand.by_channel:
        return torch.fake_quantize_per_channel_affine(value, scale, zero_point, observer.ch_axis, *limits)
    return torch.fake_quantize_per_tensor_affine(value, scale, zero_point, *limits)
