"""NaNSentinel: the tool."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any, Literal

from amanda import OpContext, Tool
from amanda.toolkit import MEMORY, NativeRoutine, Place, Skips, Unseen, natively, notebooks, warn_here
from amanda.toolkit.arguments import check_choice
from amanda.toolkit.schemas import MOVES_GRADIENTS, Sides

from .allowed import Allowed
from .answer import answer_of
from .finding import Finding, NonfiniteError, NonfiniteWarning, Operand, flattened
from .graphs import GraphOperators
from .leaves import LeafGradients
from .ledger import At, Ledger, Sighting
from .unread import Maker, Makers, Unread, unreadable

TANGENT = "tangent"
MOST_SHOWN = 5  # findings, in notebooks
UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"  # GradScaler's own search for gradients that are not finite


class NaNSentinel(Tool):
    """Names the operator that produced the first NaN: its inputs were finite, and its result is not::

        with amanda.apply(NaNSentinel()):
            train_one_epoch(model)  # raises NonfiniteError at that operator, forward or backward

    The error has the module, line, shapes, dtypes, the number of NaN elements, and the operand that was extreme. If the
    NaN was in the data, in a parameter, or in the gradient that reached one, the error says so. If an input could not be
    read, the error names that input, and does not say that the operator produced the NaN. Operators that got a NaN and
    passed it on are only counted.

    In TensorFlow, and in functions that stay compiled (``compiled="graph"``), each result is read in Python when its
    operator has run, on all devices. Values that a backward operator saved are not shown there. If the operator was
    given infinities, a finding names the operator that has made one before.

    On the CPU each result is read in C++ when the operator returns; operands are read only if it is not finite. Other
    devices are not waited for: each operator leaves a flag there, and the flags are read by `check()`, when the scope
    is left, and after every 4096 operators. Results that are views are not read, neither is memory without values
    (``torch.empty``) until it is written. Tensors without plain elements are skipped, and counted in `skipped`; so are
    tangents of forward-mode differentiation.

    With ``torch.amp.GradScaler``, infinite gradients, and NaNs that follow from them, are part of its search for a
    scale: use ``backward=False`` there, or ``action="warn"``.

    Arguments:
        inf: infinities count, too. Masks of -inf in attention then need an `allow_...`.
        backward: gradients, too. A finding has the module and line of the forward operator.
        action: "raise": a `NonfiniteError` out of the model's call or `backward()`, once for each operator, and again
            after the scope is entered again. "warn": a `NonfiniteWarning` for each operator that produced some, once,
            and the program goes on.
        allow_ops: operators that may produce some, with wildcards: "softmax", "aten::log*".
        allow_modules: modules that may, with those inside them: "encoder.layer.*.attention".
        allow_lines: files, or lines of files, that may: "masks.py", "model.py:12".

    Raises:
        TypeError: an `allow_...` is no list of strings.
        ValueError: there is no such `action`.
    """

    def __init__(
        self,
        *,
        inf: bool = False,
        backward: bool = True,
        action: Literal["raise", "warn"] = "raise",
        allow_ops: Iterable[str] = (),
        allow_modules: Iterable[str] = (),
        allow_lines: Iterable[str] = (),
    ) -> None:
        super().__init__()
        check_choice("[nan] action=", action, ("raise", "warn"))
        self.inf, self.action = inf, action
        self._allowed = Allowed(ops=allow_ops, modules=allow_modules, lines=allow_lines)
        self._waits = True  # False as on devices that are not waited for; for tests
        self._skips = Skips("nan", MEMORY)
        self._ledger, self._makers = Ledger(), Makers()
        self._graphs = GraphOperators(inf, self._skips, lambda one, given: self._act(self._ledger.add(one, given)))
        self._leaves = LeafGradients(inf, self._skips, self._on_leaf)
        self._reads: Any = None  # counts results in C++, and tangents: routines in Python are not shown any
        self.depends_on(MEMORY)
        self.add_inst_for_op(self._analyze)
        if backward:
            self.add_inst_for_op(self._analyze_backward, backward=True)

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The operators that produced some, in order, each once."""
        self._ledger.drain()
        return self._ledger.findings()

    @property
    def first(self) -> Finding | None:
        """The first of `findings()`; None if there is none."""
        return next(iter(self.findings()), None)

    def runs(self, finding: Finding) -> int:
        """The number of runs of that operator that produced some."""
        return self._ledger.runs(finding)

    def answer(self, *, ended_well: bool = True) -> str:
        """How many operators produced some; or that none did, and how much was looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        what = "NaN or infinity" if self.inf else "NaN"
        return answer_of(what, self.findings(), self.propagated, self.evidence(), ended_well=ended_well)

    def _repr_html_(self) -> str:
        """For notebooks: the answer, and the first findings."""
        first = self.findings()[:MOST_SHOWN]
        title = notebooks.heading(type(self).__name__)
        return notebooks.together([title, notebooks.text(self.answer()), *(one._repr_html_() for one in first)])

    @property
    def propagated(self) -> int:
        """The number of runs of operators that got some and passed it on."""
        self._ledger.drain()
        return self._ledger.propagated

    @property
    def skipped(self) -> dict[str, int]:
        """The number of tensors that could not be read, by reason. "tangent" counts results with a tangent of
        forward-mode differentiation."""
        counts = self._skips.counts()
        if self._reads is not None and self._reads.tangents:
            counts[TANGENT] = self._reads.tangents
        return counts

    def _unread(self) -> list[Unseen]:
        return self._skips.unread(self.skipped)

    def _values_read(self) -> int:
        return self._graphs.results + (self._reads.results if self._reads is not None else 0)

    def check(self) -> None:
        """Reads what is still on devices.

        Raises:
            NonfiniteError: an operator has produced some, also under ``action="warn"``.
        """
        first = self.first
        if first is not None:
            raise NonfiniteError(first)

    def reset(self) -> None:
        self.reset_evidence()
        self._ledger.clear()
        self._skips.reset()
        self._graphs.reset()
        self._makers.clear()
        if self._reads is not None:
            self._reads.reset()

    def on_enter(self) -> None:
        if self.action == "raise":
            self._ledger.begin()

    def on_exit(self, error: BaseException | None) -> None:
        found = self._ledger.drain()
        if TANGENT in self.skipped:
            self._skips.tell(TANGENT)
        if error is None and found is not None and self.action == "raise":
            raise NonfiniteError(found)

    # ---- scheduling -------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        sides = Sides.of(context)
        if sides.is_view or context.op.__name__ == UNSCALES:
            return
        at = At(Place.of(context), "", sides, self._allowed.has(context), context.op)
        if not _runs_in_torch(context):
            self._graphs.analyze(context, at)
            return
        if sides.is_uninitialized:
            return
        after = self._routine(context, self._on_result, sides.unreturned)
        if not sides.changed:
            context.insert_after_op(after, inputs=[*sides.read, *sides.unreturned], at=at)
            return
        before = self._routine(context, self._on_changed, counts=False)
        context.insert_before_op(before, inputs=sides.changed, with_run=True)
        context.insert_after_op(after, inputs=[*sides.read, *sides.unreturned], with_run=True, at=at)

    def _analyze_backward(self, context: OpContext) -> None:
        name = context.backward_op.__name__
        accumulates = name == "AccumulateGrad" and _runs_in_torch(context)
        if name in MOVES_GRADIENTS and not accumulates:
            return
        at = At(Place.of(context), name, None, self._allowed.has(context))
        if accumulates:
            self._leaves.analyze(context, at, functools.partial(self._routine, context, counts=False), self._waits)
            return
        if not _runs_in_torch(context):
            self._graphs.analyze_backward(context, at)
            return
        context.insert_after_backward_op(self._routine(context, self._on_gradients), grad_outputs=None, at=at)

    def _routine(self, context: OpContext, otherwise: Any, written: Sequence[Any] = (), *, counts: bool = True) -> Any:
        """`counts`: what it reads are results."""
        native = natively(context)
        if native is None:
            return otherwise
        self._reads = self._reads or native.Reads()
        if not self._waits:
            return otherwise
        positions = [context.op.input_names.index(name) for name in written]
        reads = self._reads if counts else None
        return NativeRoutine(native.are_finite(self.inf, positions, reads), otherwise)

    # ---- where C++ has declined -------------------------------------------------------------------------------------

    # __tracebackhide__: pytest shows the program's line, and `--pdb` stops there, in place of what raises the error.

    def _on_changed(self, *changed: Any, run: Any) -> None:
        run["changed"] = self._flags(changed)
        run["held"] = self._held_by([("", value) for value in changed]) if self._waits else ("", "")

    def _on_result(self, *outputs: Any, at: At, inputs: Sequence[Any] = (), run: Any = None) -> None:
        __tracebackhide__ = True
        from . import tensors

        assert at.sides is not None
        constants = tensors.constants(at.sides.read, inputs)  # first: lists of operands refer to them, too
        before, held = (run.get("changed", ()), run.get("held", ("", ""))) if run is not None else ((), ("", ""))
        named = [(f"input {name}", value) for name, value in zip(at.sides.read, inputs, strict=False)]
        results = [(f"output {i}", value) for i, value in enumerate(outputs)]
        results += zip((f"output {name}" for name in at.sides.unreturned), inputs[len(named) :], strict=False)
        self._look(results, named, at, before, held, constants)

    def _on_gradients(self, *gradients: Any, at: At, grad_outputs: Sequence[Any]) -> None:
        __tracebackhide__ = True
        named = [(f"grad_output {i}", value) for i, value in enumerate(grad_outputs)]
        self._look([(f"grad_input {i}", value) for i, value in enumerate(gradients)], named, at)

    def _on_leaf(self, sighting: Sighting, waits: bool) -> None:
        __tracebackhide__ = True
        self._act(self._ledger.add(sighting, True) if waits else self._ledger.defer(sighting))

    def _flags(self, values: Sequence[Any], *, unwritten: bool = True) -> list[Any]:
        """For each tensor that can be read and may have some, a bool on its device. `unwritten`: for memory without
        values, too."""
        from . import tensors

        floating = [value for value in flattened(values) if hasattr(value, "dtype") and hasattr(value, "device")]
        read = tensors.reader(self.inf)
        found = [self._skips.read(value, read, unwritten=unwritten) for value in floating]
        return [flag for flag in found if flag is not None]

    def _look(
        self,
        outputs: list[tuple[str, Any]],
        inputs: list[tuple[str, Any]],
        at: At,
        before: Sequence[Any] = (),
        held: tuple[str, str] = ("", ""),
        constants: Container[str] = (),
    ) -> None:
        __tracebackhide__ = True
        from . import tensors

        waits = self._waits and tensors.is_on_cpu([value for _, value in outputs])
        found = self._flags([value for _, value in outputs], unwritten=False)
        if len(found) < _count(outputs):
            self._note_unread(outputs, inputs, at, before)
        if not found:
            return
        self._reads.add_results(len(found))
        output = tensors.either(found)
        if waits and not output:
            return
        if at.sides is not None and at.sides.may_be_view and tensors.is_view(outputs[0][1], inputs):
            return
        saved, packed = tensors.saved() if at.backward_op else ([], [])
        inputs = [*inputs, *saved]
        read = [(name, value) for name, value in inputs if name not in constants]
        flags = self._flags([value for _, value in read])
        unread = Unread(read if len(flags) < _count(read) else (), self._makers)
        flags = [*before, *flags]
        given = tensors.either(flags) if flags else tensors.none_of(output.device)
        follows = tensors.either(unread.flags) if unread.flags else False
        described = _operands(outputs, waits), _operands(inputs, waits)
        sighting = Sighting(at, output, given, *described, "", packed=packed, unread=str(unread), follows=follows)
        if not waits:
            kept = sighting._replace(output=tensors.kept(output), given=tensors.kept(given))
            self._act(self._ledger.defer(kept))
            return
        parameter, memory = held if any(held) or not given else self._held_by(read)
        cause = functools.partial(_cause, at, outputs, inputs, self.inf, constants)
        sighting = sighting._replace(parameter=parameter, memory=memory, cause=cause, follows=bool(follows))
        self._act(self._ledger.add(sighting, bool(given)))

    def _note_unread(
        self, outputs: list[tuple[str, Any]], inputs: list[tuple[str, Any]], at: At, before: Sequence[Any]
    ) -> None:
        """Who made those results that cannot be read, and from what."""
        hidden = [value for value, _ in unreadable([value for _, value in outputs])]
        if not hidden:
            return
        from . import tensors

        flags = [*before, *tensors.flags(inputs, self.inf), *Unread(inputs, self._makers).flags]
        maker = Maker(at, tensors.kept(tensors.either(flags)) if flags else False)
        for value in hidden:
            self._makers.note(value, maker)

    def _held_by(self, inputs: list[tuple[str, Any]]) -> tuple[str, str]:
        """The parameter that has some, and the memory without values that has; "" if none is known."""
        from amanda.toolkit.torch import parameter_name

        for _, value in inputs:
            for one in flattened([value]):
                if hasattr(one, "dtype") and any(bool(flag) for flag in self._flags([one])):
                    base = getattr(one, "_base", None)
                    name = parameter_name(one) or (parameter_name(base) if base is not None else "")
                    memory = str(MEMORY.find(one) or "")
                    if name or memory:
                        return name, memory
        return "", ""

    def _act(self, finding: Finding | None) -> None:
        __tracebackhide__ = True
        if finding is None:
            return
        if self.action == "raise":
            raise NonfiniteError(finding)
        warn_here(f"[nan] {finding}", NonfiniteWarning)


def _runs_in_torch(context: OpContext) -> bool:
    """True if PyTorch runs the operator when the program calls it."""
    return context.namespace.startswith("pytorch/") and not context.is_symbolic


def _count(named: Iterable[tuple[str, Any]]) -> int:
    """How many tensors there are, that may have flags."""
    return sum(hasattr(value, "dtype") and hasattr(value, "device") for value in flattened(value for _, value in named))


def _cause(
    at: At, outputs: list[tuple[str, Any]], inputs: list[tuple[str, Any]], inf: bool, constants: Container[str]
) -> str:
    from . import causes, tensors

    for name, value in inputs:
        if name in constants and bool(tensors.nonfinite(value, inf)):
            return f"the program wrote {value.item()} for {name}"

    repeatable = at.op is not None and at.sides is not None and not at.sides.written and at.op.name.startswith("aten::")
    again = (lambda values: at.op(*values)) if repeatable else None
    name = at.backward_op or at.place.name.partition("::")[2].partition(".")[0]
    return causes.cause_of(name, outputs, inputs, inf, again)


def _operands(named: Iterable[tuple[str, Any]], elements: bool) -> tuple[Operand, ...]:
    from . import tensors

    found = [
        tensors.described(name if len(parts) == 1 else f"{name}[{i}]", one, elements)
        for name, value in named
        for parts in [list(flattened([value]))]
        for i, one in enumerate(parts)
    ]
    return tuple(operand for operand in found if operand is not None)
