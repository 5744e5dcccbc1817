"""An operator that has taps, as nodes of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from amanda import _core, _torch_compile
from amanda.drivers.torch_compile.lower import layout, operators, traceable
from amanda.drivers.torch_compile.lower.layout import Layout, Values
from amanda.drivers.torch_compile.lower.tap_nodes import NO_SLOT, Planned, TapNodes, grouped
from amanda.drivers.torch_compile.program import aliasing
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.program.program import Program, member_of, private_copies, publish
from amanda.drivers.torch_compile.program.symbols import is_float
from amanda.drivers.torch_compile.view import attach
from amanda.drivers.torch_compile.view.graph_site import Shown


class OperatorNodes:
    """Adds an operator with its taps at the end of a graph."""

    def __init__(self, nodes: TapNodes, program: Program, call: Call, planned: Planned) -> None:
        self._nodes, self._program, self._call, self._planned = nodes, program, call, planned
        self._run: list[fx.Node] = nodes.begin(call.node) if planned.shares_run else []
        self._operators: dict[bool, _torch_compile.Operator] = {}
        self._late: list[tuple[int, Values]] = []  # slots that run before the operator, with their values

    def emit(self, args: tuple[Any, ...], run: Callable[[Sequence[Any]], Sequence[Any]] | None = None) -> Sequence[Any]:
        """Returns what stands for its results. `run`: adds the operator itself, if it is not one of the dispatcher's."""
        call, planned = self._call, self._planned
        replaces = self._nodes.is_body or not planned.only_looks
        in_place = replaces and any(written is not None for written in call.result_is)
        inputs: Sequence[Any] = self._before(self._members(args, call.fakes))
        if in_place:
            inputs = private_copies(self._nodes.graph, call, tuple(inputs))
        results = self._replaced(inputs) or (
            run(inputs) if run else self._program.emit_call(self._nodes.graph, call, tuple(inputs))
        )
        results = self._after(inputs, self._members(results, call.outputs))
        return publish(self._nodes.graph, call, args, results) if in_place else results

    def _members(self, values: Sequence[Any], examples: Sequence[Any]) -> Sequence[Any]:
        """The values, with lists of nodes instead of nodes whose value is a list."""
        return [
            [member_of(self._nodes.graph, value, i) for i in range(len(example))]
            if isinstance(example, tuple | list) and isinstance(value, fx.Node)
            else value
            for value, example in zip(values, examples, strict=True)
        ]

    # ---- around the operator -----------------------------------------------------------------------------------------

    def _before(self, args: Sequence[Any]) -> Sequence[Any]:
        groups = list(grouped(self._planned.taps("before")))
        gradients = self._planned.taps("after", is_backward=True)
        for i, (kind, taps) in enumerate(groups):
            is_last = i == len(groups) - 1
            if gradients and is_last and kind == "plain":  # gradients come to the innermost tap first
                return self._edge("before", taps, gradients, args, ())
            args = self._group("before", kind, taps, args, ())
        return self._edge("before", [], gradients, args, ()) if gradients else args

    def _after(self, inputs: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        for slot, values in self._late:
            results = self._run_late(slot, values, results)
        groups = list(grouped(self._planned.taps("after")))
        gradients = self._planned.taps("before", is_backward=True)
        if gradients:
            joined = groups.pop(0)[1] if groups and groups[0][0] == "plain" else []
            results = self._edge("after", joined, gradients, inputs, results)
        for kind, taps in groups:
            results = self._group("after", kind, taps, inputs, results)
        return results

    def _group(
        self, point: str, kind: str, taps: list[_core.Tap], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Sequence[Any]:
        if kind == "plain":
            return self._edge(point, taps, [], inputs, outputs)
        (tap,) = taps
        if kind == "traceable" and not self._nodes.is_body:
            shown = self._shown(is_backward=False)
            inlined = traceable.inline(self._nodes.graph, tap, shown, inputs, outputs, self._nodes.constant)
            if inlined is not None:
                return inlined
        values = Values(self._nodes.graph)
        chosen = self._chosen(point, taps, inputs, outputs, values)
        if not tap.differentiable or not self._edited(point, taps, chosen):  # an unused result's node is removed
            return self._edge(point, taps, [], inputs, outputs)
        slot = self._slot(point, taps, chosen, values)
        made = self._nodes.opaque(self._call, values, self._run, slot, NO_SLOT, "", count=len(values.tensors))
        return self._put(point, taps, chosen, inputs if point == "before" else outputs, values, made)

    def _edge(
        self,
        point: str,
        taps: list[_core.Tap],
        gradients: list[_core.Tap],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Sequence[Any]:
        own = inputs if point == "before" else outputs
        values = Values(self._nodes.graph)
        chosen = self._chosen(point, taps, inputs, outputs, values)
        edits = any(tap.kind != "observe" for tap in taps)
        edited = self._edited(point, taps, chosen) if edits else []
        slot = self._slot(point, taps, chosen, values) if taps else NO_SLOT
        if not gradients and not edited and not self._nodes.is_body:
            self._nodes.look(self._call, values, self._run, slot)
            return own
        if self._nodes.is_body and slot != NO_SLOT:
            if not any(
                self._can_replace(point, i) and layout.tensors_of(chosen.get((point, i))) for i in range(len(own))
            ):
                if point == "before" and self._anchor_of(point, own) is None:
                    self._late.append((slot, values))
                    return own
                self._anchor(point, own, chosen, values)
            edited = list(range(len(values.tensors)))
        backward, watched = self._watch(point, gradients, own, chosen, values)
        if backward == NO_SLOT and slot == NO_SLOT:
            return own
        made = self._nodes.edge(
            self._call,
            values,
            self._run,
            slot,
            bool(edited),
            edited,
            backward,
            self._nodes.is_body or any(tap.kind != "observe" for tap in gradients),
            watched,
            point == "after" and (self._call.returned or bool(self._call.written_later[1])),
        )
        # The node's results require a gradient, also those that are as they were, such as running statistics.
        after = [made[i] if i in edited or i in watched else tensor for i, tensor in enumerate(values.tensors)]
        after = self._without_gradients(after, values, edited)
        return [
            layout.put(value, chosen.get((point, i)) if self._can_replace(point, i) else None, after)
            for i, value in enumerate(own)
        ]

    def _without_gradients(self, made: Sequence[fx.Node], values: Values, edited: Sequence[int]) -> list[fx.Node]:
        """The results of a node, where those that are edited require a gradient only if the values do: the backward of the
        operator may not compile, or take its time, with another gradient to compute."""
        if not any(example.requires_grad for example in values.examples):
            return list(made)
        detach = torch.ops.aten.detach.default
        return [
            self._nodes.graph.call_function(detach, (node,)) if i in edited and not example.requires_grad else node
            for i, (node, example) in enumerate(zip(made, values.examples, strict=True))
        ]

    def _can_replace(self, point: str, position: int) -> bool:
        """False if the operator writes to its argument, although its schema says that it reads it only, or if that is a
        number."""
        if point == "after":
            return True
        return position not in aliasing.undeclared_writes(self._call) and not is_float(self._call.fakes[position])

    def _chosen(
        self, point: str, taps: list[_core.Tap], inputs: Sequence[Any], outputs: Sequence[Any], values: Values
    ) -> dict[tuple[str, int], Layout]:
        """The operands that taps get, as ("before", position) and ("after", position)."""
        own, examples = (inputs, self._call.fakes) if point == "before" else (outputs, self._call.outputs)
        chosen: dict[tuple[str, int], Layout] = {}
        for i, value in enumerate(own):
            if any(tap.selects(i) for tap in taps):
                chosen[point, i] = values.add(value, examples[i])
        for i, value in enumerate(inputs if point == "after" else ()):
            if any(tap.shows_input(i) for tap in taps):
                chosen["before", i] = values.add(value, self._call.run_inputs[i])
        return chosen

    def _edited(self, point: str, taps: list[_core.Tap], chosen: dict[tuple[str, int], Layout]) -> list[int]:
        shown = self._shown(is_backward=False)
        return [
            number
            for (side, i), where in chosen.items()
            if side == point
            and any(tap.kind != "observe" and tap.selects(i) for tap in taps)
            and shown.refuse(point, i) is None
            for number in layout.tensors_of(where)
        ]

    def _put(
        self,
        point: str,
        taps: list[_core.Tap],
        chosen: dict[tuple[str, int], Layout],
        own: Sequence[Any],
        values: Values,
        made: Sequence[Any],
    ) -> Sequence[Any]:
        edited = set(self._edited(point, taps, chosen))
        after = [made[i] if i in edited else tensor for i, tensor in enumerate(values.tensors)]
        return [layout.put(value, chosen.get((point, i)), after) for i, value in enumerate(own)]

    def _anchor(self, point: str, own: Sequence[Any], chosen: dict[tuple[str, int], Layout], values: Values) -> None:
        """A tap that gets nothing runs where the operator does."""
        i = self._anchor_of(point, own)
        if i is None:
            raise NotImplementedError("a tap without a tensor, inside a higher-order operator")
        chosen[point, i] = values.add(own[i], (self._call.fakes if point == "before" else self._call.outputs)[i])

    def _anchor_of(self, point: str, own: Sequence[Any]) -> int | None:
        examples = self._call.fakes if point == "before" else self._call.outputs
        for i, value in enumerate(own):
            if isinstance(examples[i], torch.Tensor) and isinstance(value, fx.Node) and self._can_replace(point, i):
                return i
        return None

    def _run_late(self, slot: int, values: Values, results: Sequence[Any]) -> Sequence[Any]:
        """Runs taps after the operator, which has no operand that they could return before it."""
        chosen: dict[tuple[str, int], Layout] = {}
        self._anchor("after", results, chosen, values)
        edited = list(range(len(values.tensors)))
        made = self._nodes.edge(self._call, values, self._run, slot, True, edited, NO_SLOT, True, [], False)
        made = self._without_gradients(made, values, edited)
        return [layout.put(value, chosen.get(("after", i)), made) for i, value in enumerate(results)]

    def _watch(
        self,
        point: str,
        gradients: list[_core.Tap],
        own: Sequence[Any],
        chosen: dict[tuple[str, int], Layout],
        values: Values,
    ) -> tuple[int, list[int]]:
        """Adds the values whose gradients taps get, and those whose gradients show that the backward operator runs: it
        runs if any result has a gradient, whichever gradients taps get.
        """
        if not gradients:
            return NO_SLOT, []
        call = self._call
        examples = call.fakes if point == "before" else call.outputs
        positions = call.differentiable[0 if point == "before" else 1]
        if point == "before" and any(tap.shows_input(i) for tap in gradients for i in range(len(call.outputs))):
            raise NotImplementedError("after a backward operator, its incoming gradients are not shown")
        numbers: dict[int, int] = {}
        operands: list[Layout] = [None] * len(own)
        selected = [i for i in sorted(positions) if any(tap.selects(i) for tap in gradients)]
        for i in sorted(positions) if point == "after" or not selected else selected:
            if (point, i) not in chosen:
                chosen[point, i] = values.add(own[i], examples[i])
            is_list = isinstance(examples[i], list | tuple)
            for number in layout.tensors_of(chosen[point, i]):
                if not is_list or values.examples[number].requires_grad:  # of a list, some members may need none
                    numbers[number] = len(numbers)
            if i in selected:
                operands[i] = layout.moved(chosen[point, i], numbers)
        none: list[Layout] = [None] * len(call.outputs if point == "before" else call.fakes)
        sides = (none, operands) if point == "before" else (operands, none)
        slot = self._nodes.add_slot(
            self._operator(is_backward=True), [tap.id for tap in gradients], *sides, len(numbers)
        )
        return slot, list(numbers)

    # ---- in its place ------------------------------------------------------------------------------------------------

    def _replaced(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        taps, gradients = self._planned.taps("replace"), self._planned.taps("replace", is_backward=True)
        if not taps and not gradients:
            return None
        if taps and not gradients and taps[0].kind == "traceable" and not self._nodes.is_body:
            shown = self._shown(is_backward=False)
            inlined = traceable.inline(self._nodes.graph, taps[0], shown, inputs, (), self._nodes.constant)
            if inlined is not None:
                return inlined
        call, values = self._call, Values(self._nodes.graph)
        operands = [values.add(value, example) for value, example in zip(inputs, call.fakes, strict=True)]
        results, examples = self._results(len(values.tensors))
        forms: list[Any] = [(None, [])] * len(values.tensors) + [layout.form_of(example) for example in examples]
        slot = self._nodes.add_slot(
            self._operator(is_backward=False), [tap.id for tap in taps], operands, results, len(forms), forms
        )
        backward = self._backward_slot(gradients, operands, values, examples) if gradients else NO_SLOT
        name = operators.name_original(call.op, operands)
        made = self._nodes.opaque(call, values, self._run, slot, backward, name, count=len(examples))
        remaining = iter(made)
        return [_filled(example, remaining) for example in call.outputs]

    def _results(self, first: int) -> tuple[list[Layout], list[torch.Tensor]]:
        numbers = itertools.count(first)
        examples: list[torch.Tensor] = []

        def laid_out(example: Any) -> Layout:
            if isinstance(example, tuple | list):
                return [laid_out(member) for member in example]
            if not isinstance(example, torch.Tensor):
                return None
            examples.append(example)
            return "tensor", next(numbers)

        return [laid_out(example) for example in self._call.outputs], examples

    def _backward_slot(
        self, gradients: list[_core.Tap], operands: list[Layout], values: Values, examples: list[torch.Tensor]
    ) -> int:
        incoming, _ = self._results(0)
        moved = {number: number + len(examples) for number in range(len(values.tensors))}
        differentiable = self._call.differentiable[0]
        outgoing = [layout.moved(one, moved) if i in differentiable else None for i, one in enumerate(operands)]
        forms: list[Any] = [(None, [])] * len(examples) + [layout.form_of(example) for example in values.examples]
        return self._nodes.add_slot(
            self._operator(is_backward=True), [tap.id for tap in gradients], incoming, outgoing, len(forms), forms
        )

    # ---- slots -------------------------------------------------------------------------------------------------------

    def _slot(self, point: str, taps: list[_core.Tap], chosen: dict[tuple[str, int], Layout], values: Values) -> int:
        call = self._call
        inputs = [chosen.get(("before", i)) for i in range(len(call.fakes))]
        outputs = [chosen.get(("after", i)) for i in range(len(call.outputs))]
        ids = [tap.id for tap in taps]
        return self._nodes.add_slot(self._operator(is_backward=False), ids, inputs, outputs, len(values.tensors))

    def _shown(self, is_backward: bool) -> Shown:
        shown = self._planned.backward if is_backward else self._planned.forward
        assert shown is not None
        return shown

    def _operator(self, is_backward: bool) -> _torch_compile.Operator:
        if is_backward not in self._operators:
            self._operators[is_backward] = self._make_operator(is_backward)
        return self._operators[is_backward]

    def _make_operator(self, is_backward: bool) -> _torch_compile.Operator:
        call = self._call
        shown = self._planned.backward if is_backward else self._planned.forward or self._planned.backward
        assert shown is not None
        return _torch_compile.Operator(
            attach.COMPILE.name_space,
            shown.type if shown.is_backward == is_backward else attach.intern(call.op),
            shown.id if shown.is_backward == is_backward else shown.place.id,
            *operators.schema_of(call),
            module_path=shown.place.module_path,
            source=shown.place.source,
            refuse=shown.refuse if shown.is_backward == is_backward else None,
            forward=self._operator(is_backward=False) if is_backward else None,
        )


def _filled(example: Any, made: Iterator[fx.Node]) -> Any:
    if isinstance(example, tuple | list):
        return [_filled(member, made) for member in example]
    return next(made) if isinstance(example, torch.Tensor) else None
