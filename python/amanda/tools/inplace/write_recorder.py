"""WriteRecorder: the tool that knows which operators write, and no more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from amanda import OpContext, Tool
from amanda.toolkit import Skips, TellsSkips, eager_only
from amanda.toolkit.schemas import Sides

from . import hint
from .finding import FREED, MESSAGE, InplaceFinding, SecondPass
from .refused import Begun, RefusedWrite, kind_of, leaf_of, refused_tensor
from .savers import Saver
from .writes import Writes

WHY = "it follows the versions of tensors"


class WriteRecorder(TellsSkips, Tool):
    """Adds a note to PyTorch's error "modified by an inplace operation": which operators have written to the tensor.

    It has routines only at operators that are named as those that write are, such as ``add_``. `InplaceErrors` also knows
    which operator saved the tensor, and sees writes by `out=`.
    """

    _speaker = "inplace"

    def __init__(self) -> None:
        super().__init__()
        self._skips = Skips("inplace")
        self._writes = Writes()
        self._found: list[InplaceFinding | RefusedWrite | SecondPass] = []
        self.unexplained = 0  #: errors of PyTorch for which no operator can be named
        self._entered: list[contextlib.ExitStack] = []
        self._ask()

    def _ask(self) -> None:
        self.add_inst_for_op(self._analyze)  # all: an operator inside of another one writes to that one's own tensors

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[InplaceFinding | RefusedWrite | SecondPass]:
        """The tensors that a backward operator needed and could not use, writes that PyTorch refused, and graphs that were
        gone through twice, in order."""
        return list(self._found)

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        self._found.clear()
        self.unexplained = 0

    # ---- the program's errors ---------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        entered = contextlib.ExitStack()
        with contextlib.suppress(ImportError):  # no torch is here
            from amanda.toolkit.torch import explained_by

            entered.enter_context(explained_by(self._explain))
        self._entered.append(entered)

    def on_exit(self, error: BaseException | None) -> None:
        self._entered.pop().close()
        begun = self._writes.take_begun()
        if not isinstance(error, RuntimeError):
            return
        from amanda.toolkit.torch import OVERWRITTEN_NOTE, is_explained

        if is_explained(error):
            return
        refused = None if begun is None else self._refused(begun, error)
        if refused is not None:
            self._found.append(refused)
            error.add_note(f"{OVERWRITTEN_NOTE}{refused}")
        elif MESSAGE in str(error):  # of a backward pass that was not begun in Python
            error.add_note(f"{OVERWRITTEN_NOTE}{self._unexplained()}")

    def _explain(self, error: RuntimeError, began: Sequence[Any]) -> str:
        """A text about an error of a backward pass."""
        if FREED in str(error):
            again = self._second_pass(began)
            if again is None:
                return (
                    f"`{hint.command()}` names the operators that connect this graph with that of an earlier backward()"
                )
            self._found.append(again)
            return str(again)
        found = self._finding(error, began)
        if found is None:
            return self._unexplained()
        self._found.append(found)
        return str(found)

    def _unexplained(self) -> str:
        self.unexplained += 1
        return f"no operator can be named that wrote to the tensor: {self._why_not}"

    _why_not = (
        "its operator is not one that is named as those that write are, such as add_, or it ran before the scope was "
        "entered, or several tensors have the same size and versions"
    )

    def _finding(self, error: RuntimeError, began: Sequence[Any]) -> InplaceFinding | None:
        from . import saved

        told = saved.Told.of(error)
        if told is None:
            return None
        needed = saved.overwritten(began, told)
        if needed is None:  # it is inside a node that shows nothing, or the program's hooks have packed it
            alike = self._writes.alike(told.size, told.expected, told.version)
            if len(alike) != 1:
                return None
            return InplaceFinding(None, "", "", "", False, told.shape, "", told.expected, tuple(alike[0]))
        writes = [write for write in self._writes.to(needed.storage) if write.after > told.expected]
        if not writes or writes[-1].after != told.version:
            return None  # another operator wrote last, which was not seen
        parameter = saved.parameter_in(needed.node, needed.storage)
        saver, more = self._saver_of(needed.node)
        operand, is_result = _operand(needed.name, parameter, saver)
        place = None if saver is None else saver.place
        where = (operand, is_result, told.shape, parameter, told.expected)
        return InplaceFinding(place, needed.node.name(), needed.name, *where, tuple(writes), more)

    def _second_pass(self, began: Sequence[Any]) -> SecondPass | None:
        """Looks for the part of a graph that an earlier pass has freed; None if it is not known."""
        return None

    def _saver_of(self, node: Any) -> tuple[Saver | None, str]:
        """The operator that made a node; or the command that finds it."""
        return None, hint.command()

    def _refused(self, begun: Begun, error: RuntimeError) -> RefusedWrite | None:
        from amanda.toolkit.torch import parameter_name

        kind = kind_of(error)
        found = None if kind is None else refused_tensor(kind, begun)
        if kind is None or found is None:
            return None
        name, tensor = found
        leaf = None if tensor.is_inference() else leaf_of(tensor)
        parameter = "" if leaf is None else parameter_name(leaf) or ""
        node = None if tensor.is_inference() else tensor.grad_fn
        saver = None if node is None else self._saver_of(node)[0]
        made = (None if saver is None else saver.place, "" if node is None else node.name())
        return RefusedWrite(begun.site.place, name, kind, tuple(tensor.shape), parameter, *made)

    # ---- operators --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        if not context.op.__name__.endswith("_") or eager_only.leaves_out(context, self._skips, WHY):
            return
        written = Sides.of(context).written
        if written:
            self._watch(context, written)

    def _watch(self, context: OpContext, written: Sequence[str]) -> None:
        """Schedules routines around an operator that writes to these inputs."""
        from amanda.toolkit.optimizer_phase import in_optimizer

        self._writes.watch(context, written, by_optimizer=in_optimizer(sys._getframe()))


def _operand(needed: str, parameter: str, saver: Saver | None) -> tuple[str, bool]:
    """An operator's name for what its node calls so, as far as it is known; and True if it is a result."""
    if saver is None:
        return "", False
    if needed in saver.inputs:
        return needed, False
    if needed.startswith(_RESULT):
        return f"output {needed.removeprefix(_RESULT) or 0}", True
    last = parameter.rpartition(".")[2]
    return (last if last in saver.inputs else ""), False


_RESULT = "result"
