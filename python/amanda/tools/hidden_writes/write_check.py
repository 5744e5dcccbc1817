"""WriteCheck: the tools."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amanda import Evidence, OpContext, Tool
from amanda.toolkit import Place, Skips, Unseen, eager_only
from amanda.toolkit.schemas import ALLOCATES, COPIES, Sides

from .finding import HiddenWrite

if TYPE_CHECKING:
    from .memory import Memories, Seen

_COLLECTIVES = ("c10d::", "_c10d_functional::")  # they write to what they are given, maybe later
_LOOKS_AT_NO_ELEMENT = ("_has_compatible_shallow_copy_type", "is_same_size", "_has_same_storage_numel")
_WHY = "it compares the memory of tensors"


class _Tool(Tool):
    """A part of the check."""

    def __init__(self, skips: Skips) -> None:
        super().__init__("amanda")
        self._skips = skips


class WriteCheck:
    """Finds writes to tensors that change no version: through ``.data``, NumPy, pointers, and kernels whose schema does not
    declare them. Autograd does not know of them either, and computes gradients with the new values.

    It takes a checksum of the memory of each tensor that an operator makes, reads or writes to. It compares the
    checksum when the next operator reads the tensor, and when a backward operator is about to use it. Each place is
    reported once, in the log.

    Its routines run around those of the other tools: `first` before them, `last` after them.
    """

    def __init__(self) -> None:
        self._skips = Skips("amanda")
        self._found: dict[HiddenWrite, None] = {}
        self._said: set[tuple[object, ...]] = set()
        self._memories: Memories | None = None
        self._undecided = 0
        self.first: Tool = _Tool(self._skips)
        self.last: Tool = _Tool(self._skips)
        self.first.add_inst_for_op(self._before)
        self.last.add_inst_for_op(self._after)
        self.last.add_inst_for_op(self._before_backward, backward=True)

    def findings(self) -> list[HiddenWrite]:
        """The writes, in the order in which they were found: one for each place."""
        return list(self._found)

    def evidence(self) -> Evidence:
        """The operators that it looked at, and the tensors that it could not read."""
        known = self.last.evidence()
        if not self._undecided:
            return known
        text = f"{self._undecided} changes of memory, by whom is not known: the tensors that were in it are gone"
        unseen = (*known.unseen, Unseen("undecided", self._undecided, text))
        return Evidence(known.tool, known.operators, known.backward_operators, known.values, unseen)

    # ---- analysis ---------------------------------------------------------------------------------------------------

    def _before(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, _WHY):
            return
        sides, names = Sides.of(context), context.op.input_names
        read = set(sides.read) | set(sides.changed)
        looks = [name for name in names if name in read]
        passes_on = context.op.__name__ in COPIES or context.op.__name__ in _LOOKS_AT_NO_ELEMENT
        if looks and not sides.is_view and not context.op.name.startswith(_COLLECTIVES):
            context.insert_before_op(self._look, looks, place=Place.of(context), names=looks, passes_on=passes_on)

    def _after(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, _WHY):
            return
        from amanda.toolkit.torch import undeclared_writes

        op, sides = context.op, Sides.of(context)
        names, place = list(op.input_names), Place.of(context)
        if op.name.startswith(_COLLECTIVES):
            context.insert_after_op(self._forget, inputs=None)
        elif op.__name__ in ALLOCATES:
            context.insert_after_op(self._forget)  # there are no values yet
        elif sides.is_view:
            context.insert_after_op(self._note_views)
        elif op.__name__ in COPIES:
            context.insert_after_op(self._note_copies, inputs=[0], place=place)
        else:
            hidden = {name for of, name in undeclared_writes() if of == op.name}
            written = [name for name in names if name in hidden or name in sides.written]
            own = [] if op.name.startswith("aten::") else [name for name in names if name not in written]
            if written or own:
                inputs = [*written, *own]
                context.insert_after_op(self._note_written, inputs=inputs, place=place, written=written, own=own)
            else:
                context.insert_after_op(self._note_made, place=place)

    def _before_backward(self, context: OpContext) -> None:
        if eager_only.leaves_out(context, self._skips, _WHY):
            return
        node = context.backward_op.__name__
        if node != "AccumulateGrad":
            context.insert_before_backward_op(self._look_at_saved, [], place=Place.of(context), node=node)

    # ---- routines ---------------------------------------------------------------------------------------------------

    def _look(self, *inputs: Any, place: Place, names: Sequence[str], passes_on: bool) -> None:
        for name, tensor in self._readable(zip(names, inputs, strict=False)):
            self._compare(tensor, place, name, reads=not passes_on)

    def _look_at_saved(self, *, place: Place, node: str) -> None:
        from amanda.toolkit.torch import current_node

        from . import saved

        running = current_node()
        for name, tensor in self._readable(saved.tensors(running)):
            if self._known().of(tensor) is not None:
                number = running._sequence_nr() if name.startswith("result") else None
                self._compare(tensor, place, name, node=node, number=number)

    def _note_views(self, *outputs: Any) -> None:
        for _, tensor in self._readable(enumerated(outputs)):
            memory = self._known().of(tensor)
            if memory is not None:
                self._known().add(tensor, memory, None)

    def _forget(self, *outputs: Any, inputs: Sequence[Any] = ()) -> None:
        for _, tensor in self._readable(enumerated((*outputs, *inputs))):
            self._known().forget(tensor)

    def _note_copies(self, *outputs: Any, inputs: Sequence[Any], place: Place) -> None:
        """Results that are no copies have nothing new."""
        given = {one.untyped_storage()._cdata for _, one in self._readable(enumerated(inputs))}
        copies = [one for one in outputs if _address(one) not in given]
        self._note_made(*copies, place=place)

    def _note_made(self, *outputs: Any, place: Place) -> None:
        from .memory import Seen, checksum_of

        known = self._known()
        for _, tensor in self._readable(enumerated(outputs)):
            memory = known.of(tensor)
            if memory is None:
                known.made(tensor, checksum_of(tensor), Seen(place, True))
            else:
                known.add(tensor, memory, Seen(place, True))

    def _note_written(
        self,
        *outputs: Any,
        inputs: Sequence[Any],
        place: Place,
        written: Sequence[str],
        own: Sequence[str],
    ) -> None:
        for name, tensor in self._readable(zip((*written, *own), inputs, strict=False)):
            if name.partition("[")[0] in own:
                self._compare(tensor, place, name, how="undeclared")
            else:
                self._compare_written(tensor, place, name)
        self._note_made(*outputs, place=place)

    # ---- comparison -------------------------------------------------------------------------------------------------

    def _known(self) -> Memories:
        if self._memories is None:
            from .memory import Memories

            self._memories = Memories()
        return self._memories

    def _readable(self, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The tensors that have memory, also in lists, without wrappers."""
        import torch

        from . import checksum, memory

        for name, value in named:
            if isinstance(value, (list, tuple)):
                yield from self._readable((f"{name}[{i}]", one) for i, one in enumerate(value))
            elif isinstance(value, torch.Tensor) and not self._skips.unreadable(value):
                tensor = torch.func.debug_unwrap(value)
                if not checksum.can_be_read(tensor.untyped_storage()):
                    self._skips.add("failed", "a CUDA graph is captured")
                elif memory.has_elements(tensor):
                    yield name, tensor

    def _compare(
        self,
        tensor: Any,
        place: Place,
        name: str,
        *,
        node: str = "",
        number: int | None = None,
        how: str = "outside",
        reads: bool = True,
    ) -> None:
        from .memory import Seen, checksum_of

        known, found = self._known(), checksum_of(tensor)
        memory, alias = known.of(tensor), known.alias(tensor, number)
        if alias is not None and known.has_moved(tensor, alias):
            if alias.memory.checksum != found:
                self._report(tensor, place, node, name, "replaced", alias.seen)
        elif alias is not None and alias.memory is memory:
            if alias.missed(tensor, found):
                if memory.checksum == found and memory.writer is not None:  # it was seen, through another tensor
                    self._report(tensor, memory.writer, "", name, "alias", alias.seen)
                else:
                    self._report(tensor, place, node, name, how, alias.seen)
        elif memory is not None and memory.checksum != found:
            hidden = known.is_hidden(tensor, memory)
            if hidden:
                self._report(tensor, place, node, name, how, memory.seen)
            elif hidden is None:
                self._undecided += 1
        known.note(tensor, found, Seen(place, False) if reads else None)

    def _compare_written(self, tensor: Any, place: Place, name: str) -> None:
        """The operator was to write to it. Tensors that share its memory, and not its version, know nothing of that."""
        from .memory import Seen, checksum_of

        known, found = self._known(), checksum_of(tensor)
        memory = known.of(tensor)
        for alias, other in () if memory is None else memory.living():
            if other is not tensor and alias.version is not None and alias.missed(other, found):
                self._report(other, place, "", name, "alias", alias.seen)
                break
        known.note(tensor, found, Seen(place, True), writer=place)

    def _report(self, tensor: Any, place: Place, node: str, name: str, how: Any, since: Seen) -> None:
        from amanda.toolkit.torch import parameter_name

        from .memory import version_of

        key = (place, node, name, how)
        if key in self._said:
            return
        self._said.add(key)
        parameter, version = parameter_name(tensor) or "", version_of(tensor)
        finding = HiddenWrite(place, node, name, how, *since, tuple(tensor.shape), parameter, version)
        self._found[finding] = None
        logging.getLogger("amanda").warning("[amanda] %s", finding)


def _address(value: Any) -> int | None:
    try:
        return int(value.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):  # no tensor, or one without memory
        return None


def enumerated(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(i), value) for i, value in enumerate(values))
