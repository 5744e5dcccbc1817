"""NaNSentinel: the tool."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from amanda import OpContext, Tool
from amanda.toolkit import MEMORY, NativeRoutine, Place, Skips, Unseen, frameworks, natively, notebooks, warn_here
from amanda.toolkit.arguments import check_choice
from amanda.toolkit.frames import line_of_code
from amanda.toolkit.schemas import MOVES_GRADIENTS, Sides

from .allowed import Allowed
from .answer import answer_of
from .finding import Finding, NonfiniteError, NonfiniteWarning, Operand, flattened
from .graphs import GraphOperators
from .leaves import LeafGradients
from .ledger import At, Ledger, Named, Run, Sighting, unused
from .links import Link
from .reach import READS, Reach
from .trails import Trails
from .unread import Maker, Makers, Unread, unreadable

if TYPE_CHECKING:
    from .steps import Steps

TANGENT = "tangent"
MOST_SHOWN = 5  # findings, in notebooks
UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"  # GradScaler's own search for gradients that are not finite


class NaNSentinel(Tool):
    """Names the operator that produced the first NaN, and the one with which that began, as with an infinity::

        with amanda.apply(NaNSentinel()):
            train_one_epoch(model)  # raises NonfiniteError at that operator, forward or backward

    The error has the module, line, shapes, dtypes, the number of NaN elements, and the operand that was extreme. It
    lists the operators from the first value that was not finite to this one, with the elements that had some. If the NaN
    was in the data, in a parameter, or in the gradient that reached one, the error says so. If an input could not be read,
    the error names that input, and does not say that the operator produced the NaN. Operators that got a NaN and
    passed it on are only counted.

    In TensorFlow, and in functions that stay compiled (``compiled="graph"``), each result is read in Python when its
    operator has run, on all devices. Values that a backward operator saved are not shown there. In compiled functions, a
    finding has no chain; if the operator was given infinities, it names the operator that has made one before.

    On the CPU each result is read in C++ when the operator returns; operands are read only if it is not finite. Other
    devices are not waited for: each operator leaves a flag there, and the flags are read by `check()`, when the scope
    is left, and after every 4096 operators. Results that are views are not read, neither is memory without values
    (``torch.empty``) until it is written. Tensors without plain elements are skipped, and counted in `skipped`; so are
    tangents of forward-mode differentiation.

    With ``torch.amp.GradScaler``, infinite gradients, and NaNs that follow from them, are part of its search for a
    scale: use ``backward=False`` there, or ``action="warn"``.

    Arguments:
        inf: infinities count, too, but for masks: see `masks`.
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
        self._trails = Trails()
        self._leaves = LeafGradients(inf, self._skips, self._trails, self._on_leaf)
        self._steps: Steps | None = None  # imports PyTorch
        self._masks: dict[Place, None] = {}  # operators that wrote masks, or passed them on
        self._infinities: dict[tuple[Place, str], Link] = {}  # what made some, by operator
        self._reach = Reach()
        self._graphs = GraphOperators(
            inf,
            self._skips,
            lambda one, given: self._act(self._ledger.add(one, given)),
            lambda at, link: self._infinities.setdefault(at.key, link),
        )
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

    @property
    def masks(self) -> list[Place]:
        """With `inf`, the operators that wrote masks, or passed them on: their infinities do not count.

        A mask is an infinity that the program wrote, or was given from outside, and that only operators had which pass
        masks on. If a row has nothing else, or an operator computes with it as if it were none, it is a finding."""
        return list(self._masks)

    @property
    def infinities(self) -> list[Link]:
        """Without `inf`, the operators that made infinities of finite values, each once: they do not count, and NaNs may
        come of them. Masks are left out."""
        return list(self._infinities.values())

    def reached(self, finding: Finding) -> str:
        """After the end of the scope, under ``action="warn"``: which results of the program its values came to, or that
        they came to none, as a sentence. "" where values are not followed."""
        is_followed = finding.chain and not finding.name.startswith("tensorflow::")
        return self._reach.text(Ledger.key_of(finding)) if is_followed else ""

    def answer(self, *, ended_well: bool = True) -> str:
        """How many operators produced some; or that none did, and how much was looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        what = "NaN or infinity" if self.inf else "NaN"
        return answer_of(
            what,
            self.findings(),
            self.propagated,
            self.evidence(),
            masks=len(self._masks),
            infinities=self.infinities,
            ended_well=ended_well,
        )

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
        self._trails.clear()
        self._masks.clear()
        self._infinities.clear()
        self._reach.clear()
        if self._reads is not None:
            self._reads.reset()

    def on_enter(self) -> None:
        self._graphs.begin()
        if self.action == "raise":
            self._ledger.begin()

    def on_exit(self, error: BaseException | None) -> None:
        found = self._ledger.drain()
        self._reach.end(trail.found for trail in self._trails.living())
        self._trails.clear()  # outside of scopes nobody sees what is written
        self._graphs.end()
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
        if context.op.__name__ in READS and _runs_in_torch(context):
            routine = self._routine(context, self._on_read, counts=False)
            context.insert_before_op(routine, inputs=[0], at=at)
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
        context.insert_before_op(before, inputs=sides.changed, with_run=True, names=sides.changed)
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
        return NativeRoutine(native.are_finite(True, positions, reads), otherwise)  # infinities are followed, too

    # ---- where C++ has declined -------------------------------------------------------------------------------------

    # __tracebackhide__: pytest shows the program's line, and `--pdb` stops there, in place of what raises the error.

    def _on_changed(self, *changed: Any, run: Any, names: Sequence[str]) -> None:
        run["changed"] = self._flags(changed)
        if self._waits:
            run["carriers"] = self._steps_of_torch().carriers(
                [*zip((f"input {name}" for name in names), changed, strict=True)]
            )

    def _on_result(self, *outputs: Any, at: At, inputs: Sequence[Any] = (), run: Any = None) -> None:
        __tracebackhide__ = True
        from . import tensors

        assert at.sides is not None
        constants = tensors.constants(at.sides.read, inputs)  # first: lists of operands refer to them, too
        before: tuple[Any, Any] = (run.get("changed", ()), run.get("carriers", ())) if run is not None else ((), ())
        named = [(f"input {name}", value) for name, value in zip(at.sides.read, inputs, strict=False)]
        results = [(f"output {i}", value) for i, value in enumerate(outputs)]
        results += zip((f"output {name}" for name in at.sides.unreturned), inputs[len(named) :], strict=False)
        if left_out := unused(named):
            before = (), ()
        self._look(results, named, at, *before, constants, left_out)

    def _on_gradients(self, *gradients: Any, at: At, grad_outputs: Sequence[Any]) -> None:
        __tracebackhide__ = True
        named = [(f"grad_output {i}", value) for i, value in enumerate(grad_outputs)]
        self._look([(f"grad_input {i}", value) for i, value in enumerate(gradients)], named, at)

    def _on_read(self, value: Any, at: At) -> None:
        if self._waits:
            place = f"a number that the program read ({line_of_code(at.place.source)})"
            self._reach.add(self._steps_of_torch().found_in(value), place)

    def _on_leaf(self, sighting: Sighting, waits: bool) -> None:
        __tracebackhide__ = True
        self._reach.add(sighting.trail.found, sighting.gradient.replace("gradient that reached", "gradient of"))
        self._act(self._ledger.add(sighting, True) if waits else self._ledger.defer(sighting))

    def _flags(self, values: Sequence[Any], *, unwritten: bool = True, inf: bool | None = None) -> list[Any]:
        """For each tensor that can be read and may have some, a bool on its device. `unwritten`: for memory without
        values, too; `inf`: another answer than the tool's to whether infinities count."""
        from . import tensors

        floating = [value for value in flattened(values) if hasattr(value, "dtype") and hasattr(value, "device")]
        read = tensors.reader(self.inf if inf is None else inf)
        found = [self._skips.read(value, read, unwritten=unwritten) for value in floating]
        return [flag for flag in found if flag is not None]

    def _look(
        self,
        outputs: Named,
        inputs: Named,
        at: At,
        before: Sequence[Any] = (),
        carriers: Sequence[Any] = (),
        constants: Container[str] = (),
        left_out: Container[str] = (),
    ) -> None:
        """`before`, `carriers`: of what was overwritten, the flags, and the operands that have some. `left_out`: the inputs
        that the operator does not read."""
        __tracebackhide__ = True
        from . import tensors

        waits = self._waits and tensors.is_on_cpu([value for _, value in outputs])
        found = self._flags([value for _, value in outputs], unwritten=False, inf=self.inf or waits)
        if len(found) < _count(outputs):
            self._note_unread(outputs, [one for one in inputs if one[0] not in left_out], at, before)
        if not found:
            return
        self._reads.add_results(len(found))
        output = tensors.either(found)
        if waits and not output:
            return
        if at.sides is not None and at.sides.may_be_view and tensors.is_view(outputs[0][1], inputs):
            return
        saved, packed = tensors.saved() if at.backward_op else ([], [])
        run = Run(at, outputs, [*inputs, *saved], constants, packed, left_out)
        if waits:
            self._act(self._follow(run, carriers))
        else:
            self._act(self._ledger.defer(self._deferred(run, output, before)))

    def _follow(self, run: Run, overwritten: Sequence[Any]) -> Finding | None:
        """Notes how the values came. The finding, if this is a new one."""
        steps = self._steps_of_torch()
        step, sighting, finding = steps.step(run, overwritten), None, None
        if step.is_meant and self.inf:
            self._masks[run.at.place] = None
        elif step.made.nan or self.inf:
            _, unread = self._given(run)
            sighting = steps.sighting(run, step)._replace(
                outputs=_operands(run.outputs, True),
                inputs=_operands(run.used, True),
                unread=str(unread),
                follows=any(map(bool, unread.flags)),
            )
            finding = self._ledger.add(sighting, bool(sighting.given))
        elif not (step.carriers or step.is_meant):
            self._infinities.setdefault(run.at.key, step.trail.links[0])
        found = step.trail.found or (run.at.key if sighting is not None else None)
        for parameter in steps.note(run, step.trail._replace(found=found)):
            self._reach.add(found, f"parameter {parameter!r}")
        return finding

    def _deferred(self, run: Run, output: Any, before: Sequence[Any]) -> Sighting:
        """Its flags are still on the device."""
        from . import tensors

        given, unread = self._given(run)
        flags = [*before, *given]
        return Sighting(
            run.at,
            tensors.kept(output),
            tensors.kept(tensors.either(flags) if flags else tensors.none_of(output.device)),
            _operands(run.outputs, False),
            _operands(run.used, False),
            "",
            packed=run.packed,
            unread=str(unread),
            follows=tensors.either(unread.flags) if unread.flags else False,
        )

    def _given(self, run: Run) -> tuple[list[Any], Unread]:
        """The flags of what the operator was given, and what of that cannot be read."""
        flags = self._flags([value for _, value in run.read])
        return flags, Unread(run.read if len(flags) < _count(run.read) else (), self._makers)

    def _steps_of_torch(self) -> Steps:
        from .steps import Steps

        self._steps = self._steps or Steps(self.inf, self._trails)
        return self._steps

    def _note_unread(self, outputs: Named, inputs: Named, at: At, before: Sequence[Any]) -> None:
        """Who made those results that cannot be read, and from what."""
        hidden = [value for value, _ in unreadable([value for _, value in outputs])]
        if not hidden:
            return
        from . import tensors

        flags = [*before, *tensors.flags(inputs, self.inf), *Unread(inputs, self._makers).flags]
        maker = Maker(at, tensors.kept(tensors.either(flags)) if flags else False)
        for value in hidden:
            self._makers.note(value, maker)

    def _act(self, finding: Finding | None) -> None:
        __tracebackhide__ = True
        if finding is None:
            return
        if self.action == "raise":
            raise NonfiniteError(finding)
        warn_here(f"[nan] {finding}", NonfiniteWarning)


def _runs_in_torch(context: OpContext) -> bool:
    """True if PyTorch runs the operator when the program calls it."""
    return frameworks.is_torch(context) and not context.is_symbolic


def _count(named: Iterable[tuple[str, Any]]) -> int:
    """How many tensors there are, that may have flags."""
    return sum(hasattr(value, "dtype") and hasattr(value, "device") for value in flattened(value for _, value in named))


def _operands(named: Iterable[tuple[str, Any]], elements: bool) -> tuple[Operand, ...]:
    from . import tensors

    found = [
        tensors.described(name if len(parts) == 1 else f"{name}[{i}]", one, elements)
        for name, value in named
        for parts in [list(flattened([value]))]
        for i, one in enumerate(parts)
    ]
    return tuple(operand for operand in found if operand is not None)
