"""FakeQuantization: quantization-aware training of any operator, including products of activations."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amanda import OpContext, Run
from amanda import ops as amanda_ops
from amanda.toolkit import NativeRoutine, Place, frameworks, fused_layers, natively, own_work
from amanda.toolkit.arrays import arrays_of, known
from amanda.toolkit.operators import access_to, complaint
from amanda.tools.mapping import keys_of, names_of, roles, words

from . import graph_operands
from .ranges import INT8, MakeObserver, Places, int8_by_roles
from .rows import OperandPlace, Quantization, Side

if TYPE_CHECKING:
    from amanda.toolkit.native import torch_tools

    from .array_observed import ArrayObserved
    from .observed import Observed


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

    In graphs of other frameworks, observers are those that `MovingRange` makes, with the same arithmetic in numpy. The
    range of a variable belongs to the variable: functions that train and evaluate a model share it. A gradient is clipped
    at the backward operator that computes it. Where there is none, it goes straight through: the gradient of ``x + y`` is
    passed on as it is.

    In functions that are compiled with taps (``compiled="graph"``), quantization becomes part of the compiled code; only
    observers are called in each run. Where `observe` is False when a function is compiled, its code keeps the ranges; to
    observe there again, call the scope's `cache_clear` or apply the tool anew. `quantize` may be changed at any time, but
    functions compiled without it call a routine in each run.

    Rows are by "id", one for each operand of each operator that was observed, in the order in which they first ran. See
    `Results` for `rows`, `table`, `to_pandas` and `reset`. After `reset` all observers are new.

    Arguments:
        inputs: maps operators, by name or pattern as in `Tool.add_inst_for_op`, to the observers of their inputs. These
            map a position or name to a factory of observers, such as `int8_activation`, another `MovingRange`, or the
            result of an observer class's `with_args`. A word of `amanda.tools.mapping` stands for the operators of other
            frameworks, too. Where an operator has no input of that name, it may be one of the vocabulary's roles, such as
            "weight". A role that an operator does not have is left out, and the first role of an operand counts.
        outputs: the same for outputs, by position.

    Raises:
        TypeError: a factory of observers is not callable.
        ValueError: when an operator runs that has no such input or output.
        amanda.Error: when an operand was never observed and `observe` is False. Also, if linear layers are selected,
            when PyTorch runs an encoder layer as one operator in evaluation; and, in a graph, if a factory is no
            `MovingRange`.
    """

    def __init__(self, inputs: Places = INT8, outputs: Places | None = None) -> None:
        super().__init__()
        self._fixed_in_code = False
        self._quantizes: dict[Any, Any] = {}  # what compiled code reads, by device
        self._observe = self._quantize = True
        self._native: torch_tools.FakeQuantizationState | None = None  # what routines in C++ read
        self._is_default = inputs is INT8
        self._add("input", inputs)
        if inputs is INT8:
            self._add("input", int8_by_roles())
        self._add("output", outputs or {})
        if "linear" in inputs:
            fused_layers.refuse_in(self)

    @property
    def observe(self) -> bool:
        """If True (the default), observers update their ranges."""
        return self._observe

    @observe.setter
    def observe(self, value: bool) -> None:
        self._observe = value
        if self._native is not None:
            self._native.observe = value
        if value:
            self._say_fixed()

    @property
    def quantize(self) -> bool:
        """If True (the default), operands are replaced; if False, the tool only calibrates."""
        return self._quantize

    @quantize.setter
    def quantize(self, value: bool) -> None:
        self._quantize = value
        if self._native is not None:
            self._native.quantize = value
        with own_work():
            for flag in self._quantizes.values():
                flag.fill_(bool(value))

    def on_exit(self, error: BaseException | None) -> None:
        if error is None and self._is_default:
            self._parameters.tell(self)

    def reset(self) -> None:
        super().reset()
        if self._native is not None:
            self._native.forget()
        self._say_fixed()

    def _say_fixed(self) -> None:
        if self._fixed_in_code:
            logging.getLogger("amanda").warning(
                "[quantization] functions that were compiled with observe = False keep their ranges in this scope; call "
                "its cache_clear(), or apply the tool again"
            )
            self._fixed_in_code = False

    def _add(self, side: Side, places: Places) -> None:
        for ops, observers in places.items():
            for position, make in observers.items():
                if not callable(make):
                    raise TypeError(
                        f"[quantization] {side} {position!r} of {ops!r} needs something that makes an observer, such as "
                        f"int8_activation; got {make!r}"
                    )
            analyze = functools.partial(self._analyze, ops, side, observers)
            is_default = self._is_default and side == "input"
            names = (
                []
                if is_default or ops not in words()
                else [name for name in names_of(ops) if not name.startswith("aten::")]
            )
            if (not is_default and not names) or complaint(ops) is None:
                names = [ops, *names]
            if names:  # a default may be of a framework that is not here
                self.add_inst_for_op(analyze, ops=names, optional=is_default)

    def _analyze(self, ops: str, side: Side, observers: Mapping[int | str, MakeObserver], context: OpContext) -> None:
        if frameworks.leaves_out(context, self._skips):
            return
        if frameworks.shows_after_run(context):
            raise frameworks.only_looks(context, self._speaker, "quantize")
        taken: set[int | str] = set()
        self._parameters.asked(context)
        self._note_handled(context, side, observers)
        for given, make in observers.items():
            position = given if side == "output" else _position(context, given)
            if position is None or position in taken:
                continue
            if position != given:
                taken.add(position)
            at = OperandPlace(Place.of(context), side, given)
            if not frameworks.is_torch(context):
                self._analyze_graph(context, ops, at, position, make)
                continue
            if context.is_symbolic and self.quantize and self._compile_in(context, ops, at, position, make):
                continue
            insert = context.insert_before_op if side == "input" else context.insert_after_op
            quantizer = self._quantizer(context)
            routine = self._fake_quantize
            if quantizer is not None:
                routine = NativeRoutine(quantizer.routine(), self._fake_quantize, edits=True)
            insert(routine, [position], differentiable=True, ops=ops, at=at, make=make, quantizer=quantizer)

    def _note_handled(self, context: OpContext, side: Side, observers: Mapping[int | str, MakeObserver]) -> None:
        if side == "output":
            return
        found = [position for given in observers if (position := _position(context, given)) is not None]
        self._parameters.handled(context, *found, or_computed=False)
        factors = amanda_ops.factors.get(context.op.__name__, ())
        if factors and {*factors} <= {*found}:
            self._parameters.handled_factors(context)

    def _quantizer(self, context: OpContext) -> torch_tools.FakeQuantizer | None:
        """Makes an object that does in C++ what can be done there; None if everything is done in Python."""
        native = natively(context)
        if native is None:
            return None
        with self._lock:
            if self._native is None:
                self._native = native.FakeQuantizationState()
        self._native.observe, self._native.quantize = self._observe, self._quantize
        quantizer: torch_tools.FakeQuantizer = native.FakeQuantizer(self._native)
        return quantizer

    def _fake_quantize(
        self,
        value: Any,
        ops: str,
        at: OperandPlace,
        make: MakeObserver,
        quantizer: torch_tools.FakeQuantizer | None,
    ) -> Any:
        from .observed import Observed

        arrays = arrays_of(value)
        if arrays is None or not arrays.is_floating(value) or self._skips.unreadable(value):
            return None
        key = ops, at.place.op_id, at.side, at.position
        generation = quantizer.generation if quantizer is not None else 0
        operand = self._operand(key, lambda: Observed.by(at, make))
        if arrays.is_transformed(value) and self._is_left(operand, value):
            return None
        if self.observe:
            operand.look_at(value)
        if quantizer is not None and operand.continued is not None:
            quantizer.follow(operand.continued, generation)
        return operand.fake_quantized(value) if self.quantize else None

    def _is_left(self, operand: Observed, value: Any) -> bool:
        """Returns True, and counts it, if a transformation of torch.func keeps the value from being quantized."""
        from amanda.toolkit.arrays import of_torch

        from . import straight_through

        if operand.by_channel and self._skips.is_several(value):
            return True
        if straight_through.is_functionalizing() and of_torch.has_tangent(value):
            self._skips.add("tangent")
            return True
        return False

    def _compile_in(
        self, context: OpContext, ops: str, at: OperandPlace, position: int | str, make: MakeObserver
    ) -> bool:
        """Quantizes an operand of a compiled function in the compiled code; returns False if that is not possible."""
        import torch

        from . import compiled
        from .observed import Observed

        operands = context.inputs if at.side == "input" else context.outputs
        value: Any = operands[context.op.input_names.index(position) if isinstance(position, str) else position]
        if not compiled.can_quantize(value):
            return False
        key = ops, at.place.op_id, at.side, at.position

        def operand() -> Observed:
            return self._operand(key, lambda: Observed.by(at, make))

        if value.device not in self._quantizes:
            self._quantizes[value.device] = torch.ones((), dtype=torch.bool, device=value.device)
        quantizes = self._quantizes[value.device]
        if self.observe:
            routine = compiled.observing(compiled.Live(operand, lambda: self.observe), quantizes)
        else:
            routine = compiled.fixed(operand(), quantizes)
            self._fixed_in_code = True
        insert = context.insert_before_op if at.side == "input" else context.insert_after_op
        insert(routine, [position], differentiable=True, traceable=True)
        return True

    def _analyze_graph(
        self, context: OpContext, ops: str, at: OperandPlace, position: int | str, make: MakeObserver
    ) -> None:
        found = graph_operands.find(context, at, position, make)
        if found is None:
            return
        key = ops, found.variable or at.place.op_id, at.side, at.position

        def operand() -> ArrayObserved:
            from .array_observed import ArrayObserved

            return self._operand(key, lambda: ArrayObserved(at, found.range, found.channels))

        arguments: dict[str, Any] = {"operand": operand, "key": key, "with_run": True}
        is_input = at.side == "input"
        insert = context.insert_before_op if is_input else context.insert_after_op
        insert(self._fake_quantize_array, [found.position], **arguments)
        if access_to(context.namespace, context.op.__name__).has_backward:
            clip = context.insert_after_backward_op if is_input else context.insert_before_backward_op
            clip(self._clip, [found.position], **arguments)

    def _fake_quantize_array(self, value: Any, operand: Callable[[], ArrayObserved], key: Any, run: Run) -> Any:
        arrays = known(value)
        if not arrays.is_floating(value) or self._skips.unreadable(value):
            return None
        observed = operand()
        if self.observe:
            observed.look_at(value)
        run.pop(key, None)
        observed.passed = None
        if not self.quantize:
            return None
        quantized, passed = observed.fake_quantized(value)
        run[key] = observed.passed = passed
        return quantized

    def _clip(self, gradient: Any, operand: Callable[[], ArrayObserved], key: Any, run: Run) -> Any:
        passed = run.get(key, operand().passed)  # a function's gradients may run by themselves, after it
        return None if gradient is None or passed is None else gradient * passed.astype(gradient.dtype)


def _position(context: OpContext, given: int | str) -> int | str | None:
    """The position or name to select; None if the operator does not have this role."""
    if not isinstance(given, str) or given in context.op.input_names or given not in roles():
        return given
    found: int | None = keys_of(context).get("roles", {}).get(given)
    return found
