"""FakeQuantization: quantization-aware training of any operator, including products of activations."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch.ao.quantization.observer import UniformQuantizationObserverBase

from amanda import _core, _fork
from amanda.op_context import OpContext
from amanda.reports.columns import name_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import Place
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column
from amanda.tool import Tool
from amanda.tools import _fused_layers, _reading
from amanda.tools.quantization.observers import INT8, MakeObserver, Places

Side = Literal["input", "output"]
GroupBy = Literal["id"]


@dataclasses.dataclass(frozen=True)
class Row:
    """How one operand of one operator is quantized: ``q = clamp(round(x / scale) + zero_point, quant_min, quant_max)``."""

    op_id: int | None
    name: str  # "aten::linear"
    module_path: str
    source: str  # file:line of the call
    side: Side
    position: int | str  # as it was given: "weight"
    scale: torch.Tensor  # float32; one element, or one per channel
    zero_point: torch.Tensor  # integers, of the scale's shape
    quant_min: int
    quant_max: int


class FakeQuantization(Results[Row, GroupBy], Tool):
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

    _speaker = "quantization"
    _groupings = {
        "id": Grouping(
            [
                name_column("id"),
                Column("operand", lambda row: f"{row.side} {row.position}", left=True, field="side"),
                Column("scale", lambda row: _range(row.scale, ".3g"), field="scale"),
                Column("zero point", lambda row: _range(row.zero_point, "d"), field="zero_point"),
                Column("range", lambda row: f"{row.quant_min} to {row.quant_max}", field="quant_min"),
            ],
            fields_of(Row),
        )
    }

    def __init__(self, inputs: Places = INT8, outputs: Places | None = None) -> None:
        super().__init__()
        self.observe = True
        self.quantize = True
        self._operands: dict[tuple[str, int | None, Side, int | str], _Operand] = {}
        self._skips = _reading.Skips("quantization")
        self._lock = _fork.lock()  # guards the fields above
        self._add("input", inputs)
        self._add("output", outputs or {})
        if "linear" in inputs:
            _fused_layers.refuse_in(self)

    @property
    def skipped(self) -> dict[str, int]:
        """How many operands were left unchanged because their elements cannot be read, by reason."""
        return self._skips.counts()

    def reset(self) -> None:
        with self._lock:
            self._operands.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            return [operand.row() for operand in self._operands.values() if operand.scale is not None]

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption()]

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
            key = _Key(ops, Place.of(context), side, position)
            insert(self._fake_quantize, [position], differentiable=True, key=key, make=make)

    def _fake_quantize(self, value: Any, key: _Key, make: MakeObserver) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return None
        if self._skips.unreadable(value):
            return None
        same = key.ops, key.place.op_id, key.side, key.position
        with self._lock:
            operand = self._operands.get(same)
            if operand is None:
                with torch.inference_mode(False):  # its state must serve training, too
                    operand = self._operands[same] = _Operand(key, make())
        if self.observe:
            operand.look_at(value)
        return operand.fake_quantize(value) if self.quantize else None


class _Key(NamedTuple):
    """An operand of an operator, selected by a pattern."""

    ops: str
    place: Place
    side: Side
    position: int | str


@dataclasses.dataclass(eq=False)
class _Operand:
    key: _Key
    observer: UniformQuantizationObserverBase
    scale: torch.Tensor | None = None
    zero_point: torch.Tensor | None = None
    lock: threading.Lock = dataclasses.field(default_factory=_fork.lock)  # guards the last three fields

    def look_at(self, value: torch.Tensor) -> None:
        seen = torch.func.debug_unwrap(value.detach())
        if seen.shape != value.shape and self.by_channel:
            raise _core.Error(f"[quantization] {self.key.place.name} runs on several tensors at once, under torch.vmap")
        with self.lock, torch.no_grad():
            observer = self.observer.to(seen.device)
            observer(seen)
            scale, zero_point = map(torch.func.debug_unwrap, observer.calculate_qparams())
            self.scale, self.zero_point = scale, zero_point.to(torch.int32)

    @property
    def by_channel(self) -> bool:
        return self.observer.qscheme in (torch.per_channel_affine, torch.per_channel_symmetric)

    def fake_quantize(self, value: torch.Tensor) -> torch.Tensor:
        with self.lock:
            observer, scale, zero_point = self.observer, self.scale, self.zero_point
        if scale is None:
            raise _core.Error(
                f"[quantization] {self.key.side} {self.key.position!r} of {self.key.place.name} "
                f"({self.key.place.source}) has no range yet; "
                "run the program with observe = True first"
            )
        limits = observer.quant_min, observer.quant_max
        if self.by_channel:
            return torch.fake_quantize_per_channel_affine(value, scale, zero_point, observer.ch_axis, *limits)
        return torch.fake_quantize_per_tensor_affine(value, scale, zero_point, *limits)

    def row(self) -> Row:
        with self.lock:
            assert self.scale is not None
            assert self.zero_point is not None
            return Row(
                *self.key.place,
                side=self.key.side,
                position=self.key.position,
                scale=self.scale.clone(),
                zero_point=self.zero_point.clone(),
                quant_min=self.observer.quant_min,
                quant_max=self.observer.quant_max,
            )


def _range(values: torch.Tensor, form: str) -> str:
    """The value, or the smallest and the largest one."""
    smallest, largest = (format(extreme.item(), form) for extreme in values.aminmax())
    return smallest if smallest == largest else f"{smallest} to {largest}"
