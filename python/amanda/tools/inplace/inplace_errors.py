"""InplaceErrors: the tool."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amanda import OpContext, Run, Tool
from amanda.toolkit import Place, Skips, TellsSkips, eager_only
from amanda.toolkit.schemas import Sides

from .finding import MESSAGE, InplaceFinding


class _Running(NamedTuple):
    """A backward operator that a thread runs."""

    node: Any
    saver: Place
    run: Run


class InplaceErrors(TellsSkips, Tool):
    """Names the operator that wrote to a tensor which the backward pass needs::

        with amanda.apply(InplaceErrors()):
            model(x).sum().backward()

    PyTorch's error, "one of the variables needed for gradient computation has been modified by an inplace operation", then
    has a note: the operator that saved the tensor, with module and line, the operators that have written to it since,
    through which view, and what to change. Without such an error the tool finds nothing: a write to a tensor that no
    backward operator needs is right.

    It sees writes by operators, those of optimizers included. It does not see writes through ``.data``, ``numpy()`` or
    custom kernels, which PyTorch does not see either: there is no error then. Tensors that an `autograd.Function` saves by
    ``save_for_backward`` are found by size and versions, and only if no other tensor has the same ones.

    If several operands have the same size and versions, none is named, and the error counts as `unexplained`.

    The tool keeps no tensor. The last backward operator of each thread lives until the next one. For each execution that
    autograd records, it keeps the versions of its operands as long as the graph lives; for each storage, the last writes.
    """

    needs_eager = "it follows the versions of tensors"
    leaves_compiled_out = True
    _speaker = "inplace"

    def __init__(self) -> None:
        super().__init__()
        self._skips = Skips("inplace")
        self._writes: Any = None
        self._running: dict[int, _Running] = {}  # by thread
        self._found: list[InplaceFinding] = []
        self.unexplained = 0  #: errors of PyTorch for which no operator can be named
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[InplaceFinding]:
        """The tensors that a backward operator needed and could not use, in order."""
        return list(self._found)

    def answer(self, *, ended_well: bool = True) -> str:
        """Which operator wrote to what another had saved; or that none did, and how much was looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        if self._found:
            return "\n".join(str(one) for one in self._found)
        evidence, until = self.evidence(), "" if ended_well else " until the program failed"
        unseen = "" if evidence.is_complete else f"; not looked at: {evidence.not_looked_at}"
        if self.unexplained:
            return (
                "a backward operator needed a tensor that was written to, and no operator that was seen can be named: the "
                "forward pass ran outside the scope, the write was none of an operator, or several tensors have the same "
                f"size and versions; seen: {evidence.looked_at}{unseen}"
            )
        return f'no error "{MESSAGE}" left the scope{until}, in {evidence.looked_at}{unseen}'

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        self._found.clear()
        self.unexplained = 0
        self._running.clear()

    def on_exit(self, error: BaseException | None) -> None:
        running = list(self._running.values())
        self._running.clear()
        if not isinstance(error, RuntimeError) or MESSAGE not in str(error):
            return
        found = [one for each in running for one in self._written_since(each)]
        self._found.extend(found)
        self.unexplained += not found
        for one in found:
            error.add_note(f"[inplace] {one}")

    # ---- forward ----------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        written, names = Sides.of(context).written, context.op.input_names
        if not written:
            context.insert_after_op(self._on_result, inputs=None, with_run=True, names=names)
            return
        from amanda.toolkit.optimizer_phase import in_optimizer

        given: dict[str, Any] = {"with_run": True, "place": Place.of(context), "names": written}
        given["by_optimizer"] = in_optimizer(sys._getframe())
        context.insert_before_op(self._before_write, inputs=None, with_run=True, names=names, written=written)
        context.insert_after_op(self._after_write, [], inputs=written, **given)

    def _on_result(self, *outputs: Any, inputs: Sequence[Any], run: Run, names: Sequence[str]) -> None:
        from . import saved

        run["operands"] = saved.operands(zip(names, inputs, strict=False), is_result=False)
        run["operands"] += saved.operands(_results(outputs), is_result=True)

    def _before_write(self, *inputs: Any, run: Run, names: Sequence[str], written: Sequence[str]) -> None:
        from . import saved

        named = dict(zip(names, inputs, strict=False))
        run["operands"] = saved.operands(named.items(), is_result=False)
        run["versions"] = [one._version for _, one in saved.tensors((name, named[name]) for name in written)]

    def _after_write(
        self, *, inputs: Sequence[Any], run: Run, names: Sequence[str], place: Place, by_optimizer: bool
    ) -> None:
        from . import saved
        from .writes import Writes

        self._writes = self._writes or Writes()
        changed = saved.tensors(zip(names, inputs, strict=False))
        for (name, one), before in zip(changed, run.pop("versions"), strict=False):
            if one._version > before:
                self._writes.add(one, saved.write(place, name, one, before, by_optimizer))
        run["operands"] += saved.operands(zip(names, inputs, strict=False), is_result=True)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def _analyze_backward(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        if context.backward_op.__name__ != "AccumulateGrad":
            context.insert_before_backward_op(self._on_node, [], with_run=True, saver=Place.of(context))

    def _on_node(self, run: Run, saver: Place) -> None:
        from amanda.toolkit.torch import current_node

        self._running[threading.get_ident()] = _Running(current_node(), saver, run)

    def _written_since(self, running: _Running) -> Iterator[InplaceFinding]:
        """The tensor that this node has saved, and that others have written to."""
        from . import saved

        needed = saved.overwritten(running.node)
        if needed is None or self._writes is None:
            return
        about = (running.saver, running.node.name(), needed.name)
        operands = running.run.get("operands", ())
        named = [one for one in operands if one.name == needed.name]
        since = [
            (operand, [write for write in self._writes.to(operand.storage) if write.after > operand.version])
            for operand in named or operands
        ]
        fitting = [(one, writes) for one, writes in since if writes and needed.may_be(one, writes[-1].after)]
        if len({one.storage for one, _ in fitting}) > 1:
            return  # the node does not say which it is
        for operand, writes in fitting[:1]:
            parameter = saved.parameter_in(running.node, operand.storage)
            where = (operand.name, operand.is_result, operand.shape, parameter, operand.version)
            yield InplaceFinding(*about, *where, tuple(writes))
            return
        alike = self._writes.alike(needed.size, needed.expected, needed.version)
        if len(alike) == 1:  # one tensor of that size has these versions
            (writes,) = alike
            yield InplaceFinding(*about, "", False, writes[0].shape, "", needed.expected, tuple(writes))


def _results(outputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"output {i}", value) for i, value in enumerate(outputs))
