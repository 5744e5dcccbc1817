"""GradientCuts: the tool."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amanda import Action, OpContext, Run, Tool, is_enabled
from amanda.toolkit import Results, Skips, TellsSkips, eager_only, frameworks, locks, natively

from .answer import answer_of, answer_of_variables
from .cut import Finding
from .rows import GROUPINGS, GroupBy, Row, findings_of, rows_of
from .variables import Variables

if TYPE_CHECKING:
    from amanda.toolkit.torch import BackwardCall

    from .parameters import Parameter
    from .program import Program


class GradientCuts(TellsSkips, Results[Row, GroupBy], Tool):
    """Finds the parameters that get no gradient, or one that is zero, and where their path to the loss ends::

        cuts = GradientCuts()
        with amanda.apply(cuts):
            train_one_epoch(model)
        print(cuts.answer())

    It follows values from operator to operator, also where autograd does not: through ``detach``, ``no_grad``, ``.data``,
    results of integers. At the end of each backward pass it compares the parameters that require a gradient with those
    that got one. For one that got none it names the last operator whose result depends on it by autograd, the first
    at which the path ends on its way to the loss, and the reason. Where a gradient was zero it names the operator whose
    backward operator made it so; for that it reads the gradients of all operators in the first passes of each loss.

    The verdicts are "none", "zero", "not updated" (it has a gradient, but no optimizer uses it), "partial" (some passes
    of a loss, or some indices of the first dimension, had none) and "ok". The first three are `findings`, unless they
    are meant: parameters that require no gradient, or that no optimizer has, and those behind a factor that starts at
    zero, as in LoRA.

    The tool changes nothing and keeps no tensor. Once no loss has been new for 16 passes, it follows values no longer: it
    counts the gradients that arrive, and reads those of parameters that have not got one for each row. On CUDA, the host
    waits once per pass in which some are read. A value that leaves PyTorch, as by ``item()``, is not followed.

    In TensorFlow, it judges the variables whose gradients `tape.gradient` and `tf.gradients` were asked for, and finds
    those that got None, or zeros only. A tensor that got None is found, too. Updates are not looked at there. In a graph,
    or a function, each such call counts once.

    Rows are by "parameter". See `Results` for `rows`, `table`, `to_pandas` and `reset`.
    """

    needs_eager = "it follows values from operator to operator"
    leaves_compiled_out = True
    _speaker = "cuts"

    def __init__(self) -> None:
        super().__init__("cuts")
        self._skips = Skips("cuts")
        self._lock = locks.rlock()  # guards the program
        self._variables = Variables()  # of TensorFlow
        self._program: Program | None = None  # once an operator of PyTorch has run
        self._threads: list[int] = []  # that have a scope of this tool open
        self._stop: list[Callable[[], None]] = []  # listening
        self._actions: list[tuple[int, Action]] = []  # by the operator's id
        self._leaves: list[tuple[Action, set[Parameter]]] = []  # where the gradients of these arrive
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True, optional=True)
        self.add_inst_for_op(self._see, False, True, ops="tensorflow::*", optional=True)

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The parameters that are not trained, together where they have one reason."""
        with self._lock:
            found = [] if self._program is None else findings_of(self._program.parameters)
            refusal = None if self._program is None else self._program.refusal
            return [*found, *([] if refusal is None else [refusal]), *self._variables.findings()]

    def answer(self, *, ended_well: bool = True) -> str:
        """Which parameters are not trained, and why; or that all are, and how many were looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        with self._lock:
            evidence = self.evidence()
            of_variables = answer_of_variables(self._variables, evidence, ended_well=ended_well)
            if self._program is None and of_variables:
                return of_variables
            found = answer_of(self._program, evidence, ended_well=ended_well)
            return "\n\n".join(filter(None, [found, of_variables]))

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        with self._lock:
            if self._program is not None:
                self._program.reset()
            self._variables.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            found = [] if self._program is None else rows_of(self._program.parameters)
            return [*found, *self._variables.rows()]

    _groupings = GROUPINGS

    # ---- the scope --------------------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        with self._lock:
            self._threads.append(threading.get_ident())
            self._variables.begin()
            if self._program is not None:
                self._listen()

    def on_exit(self, error: BaseException | None) -> None:
        with self._lock:
            with contextlib.suppress(ValueError):
                self._threads.remove(threading.get_ident())
            while self._stop and not self._threads:
                self._stop.pop()()
            if not self._threads:
                self._variables.end()

    def _begin(self) -> Program:
        """The program, of which the first operator runs: torch is imported by now."""
        with self._lock:
            if self._program is None:
                from .program import Program

                self._program = Program(self._skips)
                self._listen()
            return self._program

    def _listen(self) -> None:
        if self._stop or not self._threads:
            return
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from amanda.toolkit.torch import listen_to_backward

        self._stop = [listen_to_backward(_Listener(self)), register_optimizer_step_pre_hook(self._on_step).remove]

    def _is_on(self) -> bool:
        return threading.get_ident() in self._threads and is_enabled()

    # ---- operators --------------------------------------------------------------------------------------------------

    def _see(self, context: OpContext) -> None:
        with self._lock:
            self._variables.see(context)

    def _analyze(self, context: OpContext) -> None:
        if frameworks.is_tensorflow(context):
            with self._lock:
                self._variables.analyze(context)
            return
        if eager_only.leaves_out(context, self._skips, GradientCuts.needs_eager):
            return
        from amanda.toolkit.optimizer_phase import in_optimizer

        if context.is_recompute or in_optimizer(sys._getframe()):
            return
        program = self._begin()
        from . import operands

        with self._lock:
            program.see_models()
        if program.is_settled or not operands.follows(context):
            return
        site, names = operands.site_of(context), operands.tensors_of(context)
        written = operands.written_by(context, names)
        if not written:
            self._keep(context, context.insert_after_op(self._on_op, inputs=names, with_run=True, site=site))
            return
        # After an operator that writes, its operands are not what they were; the first such run has copies of them.
        which = [names.index(name) for name in written]
        self._keep(context, context.insert_before_op(self._before_write, names, with_run=True, written=which))
        self._keep(context, context.insert_after_op(self._after_write, with_run=True, site=site))

    def _keep(self, context: OpContext, action: Action) -> None:
        with self._lock:
            self._actions.append((context.op_id, action))

    def _settle(self, program: Program) -> None:
        """Nothing new has come for many passes: from now on, only those gradients are looked at that arrive."""
        program.is_settled = True
        kept = [
            one for one in self._actions if one[0] in program.passes
        ]  # those of losses, which have to be known apart
        for one in self._actions:
            if one not in kept:
                one[1].remove()
        self._actions = kept

    def _leave_leaves(self) -> None:
        """Removes the routines of parameters whose gradients need not be read: ``.grad`` shows that one has come."""
        kept = []
        for action, leaves in self._leaves:
            if leaves and all(one.is_covered and one.is_told for one in leaves):
                action.remove()
            else:
                kept.append((action, leaves))
        self._leaves = kept

    def _on_op(self, *outputs: Any, run: Run, site: Any, inputs: Sequence[Any] = ()) -> None:
        program = self._program
        if program is not None and not program.is_in_backward():
            with self._lock:
                run["cuts"] = program.flow.add(site, program.flow.edges(inputs), outputs, ())

    def _before_write(self, *inputs: Any, run: Run, written: Sequence[int]) -> None:
        program = self._program
        if program is not None and not program.is_in_backward():
            with self._lock:
                run["cuts before"] = program.flow.before_write(inputs, written)

    def _after_write(self, *outputs: Any, run: Run, site: Any) -> None:
        program, before = self._program, run.pop("cuts before", None)
        if program is not None and before is not None:
            edges, written = before
            with self._lock:
                run["cuts"] = program.flow.add(site, edges, outputs, written)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def _analyze_backward(self, context: OpContext) -> None:
        if frameworks.is_tensorflow(context):
            with self._lock:
                self._variables.analyze(context)
            return
        if eager_only.leaves_out(context, self._skips, GradientCuts.needs_eager):
            return
        if context.backward_op.__name__ == "AccumulateGrad":
            leaves: set[Parameter] = set()
            on_leaf = self._begin().rows.routine(self._on_leaf) if natively(context) else self._on_leaf
            action = context.insert_before_backward_op(on_leaf, leaves=leaves)
            with self._lock:
                self._leaves.append((action, leaves))
        elif not self._begin().is_settled:
            action = context.insert_before_backward_op(self._on_node, with_run=True)
            with self._lock:
                self._actions.append((0, action))

    def _on_leaf(self, gradient: Any, leaves: set[Parameter]) -> None:
        program = self._program
        if program is not None and program.running is not None:
            with self._lock:
                parameter = program.add_leaf(gradient)
                if parameter is not None:
                    leaves.add(parameter)

    def _on_node(self, *gradients: Any, run: Run) -> None:
        running = None if self._program is None else self._program.running
        if running is None or not running.reads_all:
            return
        step = run.get("cuts")
        if step is not None:
            with self._lock:
                running.add_step(step, gradients)

    def _begin_pass(self, call: BackwardCall) -> None:
        program = self._program
        if program is not None and self._is_on() and not call.is_nested:
            with self._lock:
                program.begin_pass(call)

    def _end_pass(self, call: BackwardCall, error: BaseException | None) -> None:
        program = self._program
        if program is not None and self._is_on() and not call.is_nested:
            with self._lock:
                program.end_pass(call, error)
                if program.has_nothing_new():
                    self._settle(program)
                if program.is_settled:
                    self._leave_leaves()

    def _on_step(self, optimizer: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        program, closure = self._program, next(iter(arguments[1:]), options.get("closure"))
        if program is not None and self._is_on():
            with self._lock:
                program.parameters.on_step(optimizer, has_closure=closure is not None)


class _Listener:
    """Passes on to the tool when backward passes begin and end."""

    def __init__(self, tool: GradientCuts) -> None:
        self._tool = tool

    def begin(self, call: BackwardCall) -> None:
        self._tool._begin_pass(call)

    def end(self, call: BackwardCall, error: BaseException | None, gradients: Sequence[Any]) -> None:
        self._tool._end_pass(call, error)
