"""Flops of operators of compiled functions, which do not show what they call: it is called again, without values."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from amanda import OpContext, Run, Tool, apply
from amanda.toolkit import frameworks, locks
from amanda.toolkit.native import NativeTool, tools

COMPOSITE = (
    *("linear", "matmul", "einsum", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
    *("conv_transpose3d", "scaled_dot_product_attention"),
)
"""Operators that consist of operators with a formula."""
_CACHED = 4096  # calls of different shapes

Row: TypeAlias = tuple[str, str, bool]  # operator, module, backward


@dataclasses.dataclass(frozen=True)
class _Counted:
    """The result for a call: runs and operations by operator, and calls of products that have no formula."""

    forward: dict[str, tuple[int, int]]
    backward: dict[str, tuple[int, int]]  # by autograd node
    uncounted: dict[str, int]
    uncounted_backward: dict[str, int]

    @property
    def has_products(self) -> bool:
        return bool(self.forward or self.uncounted)


@dataclasses.dataclass(eq=False)
class _Operator:
    """An operator of a compiled function at its place."""

    context: OpContext  # asked for what tools have scheduled, when it runs
    name: str
    overload: str
    module_path: str
    shown: Any  # its operands when it was analyzed; None if they are known only in a run


class CompiledFlops(Tool):
    """Counts, for `Flops`, what operators of compiled functions take.

    It reads shapes at every run: a function that is compiled again for other shapes is not analyzed again.

    Arguments:
        counts: what is counted of operators that are not compiled.
        options: of `make_flops`.
    """

    def __init__(self, counts: Any, uncounted: bool, cpu_attention: bool) -> None:
        super().__init__("flops.compiled")
        self._native, self._lists, self._cpu_attention = counts, uncounted, cpu_attention
        self._narrowed: tuple[tuple[str, ...], ...] = ()
        self._lock = locks.lock()  # guards the next three
        self._rows: dict[Row, list[int]] = {}  # runs and operations
        self._uncounted: collections.Counter[str] = collections.Counter()
        self._products: collections.Counter[str] = collections.Counter()
        self._operators: dict[int, _Operator] = {}  # by op_id, those with products
        ops = None if uncounted else [*(f"aten::{name}" for name in COMPOSITE), *tools.flop_operators()]
        self.add_inst_for_op(self._analyze, ops=ops, optional=True)
        self.add_inst_for_op(self._analyze_backward, backward=True, ops=ops, optional=True)

    def narrow_to(self, ops: Sequence[str] | None, modules: Sequence[str] | None) -> None:
        """Counts these operators only, also inside others, and only in these modules."""
        if ops is not None:
            self._narrowed = (*self._narrowed, tuple(ops))
        if modules is not None:
            self.narrow(modules=modules)

    def rows(self) -> dict[Row, tuple[int, int]]:
        """Runs and operations."""
        with self._lock:
            return {row: (runs, flops) for row, (runs, flops) in self._rows.items()}

    def uncounted(self) -> collections.Counter[str]:
        with self._lock:
            return self._uncounted.copy()

    def uncounted_products(self) -> collections.Counter[str]:
        with self._lock:
            return self._products.copy()

    def clear(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._rows.clear()
            self._uncounted.clear()
            self._products.clear()

    def on_exit(self, error: BaseException | None) -> None:
        self._operators.clear()  # they have contexts of the scope

    # ---- routines ---------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        if not frameworks.is_compiled(context):
            return
        from amanda.toolkit.inner_calls import UnknownOperandError, shapes_of

        recorded = any(getattr(output, "requires_grad", False) for output in context.outputs)
        try:
            shown = shapes_of(context.inputs, recorded, hints=True)
            has_products = self._count(context.op.name, context.op.overload, shown).has_products
        except UnknownOperandError:
            shown, has_products = None, True
        if has_products:
            operator = _Operator(context, context.op.name, context.op.overload, context.module_path, shown)
            self._operators[context.op_id] = operator
            context.insert_before_op(self._before, with_run=True, operator=operator)
            context.insert_after_op(self._after, outputs=[], with_run=True, operator=operator)
        elif self._lists and not self._narrowed and "(a)" not in context.op.schema.rpartition("->")[2]:
            context.insert_after_op(self._list, outputs=[], name=context.op.name)

    def _analyze_backward(self, context: OpContext) -> None:
        if frameworks.is_compiled(context) and context.op_id in self._operators:
            operator, node = self._operators[context.op_id], context.backward_op.__name__
            context.insert_after_backward_op(self._after_backward, with_run=True, operator=operator, node=node)

    def _before(self, *inputs: Any, run: Run, operator: _Operator) -> None:
        from amanda.toolkit.inner_calls import UnknownOperandError, as_shown, is_replaced, shapes_of

        try:
            run["flops.operands"] = as_shown(shapes_of(inputs, recorded=False), operator.shown)
        except UnknownOperandError:
            run["flops.operands"] = None
        if is_replaced(operator.context):
            run["flops.before"] = self._native.total()

    def _after(self, run: Run, operator: _Operator) -> None:
        operands = run["flops.operands"]
        if "flops.before" in run:  # its replacement reports what it counts
            if self._native.total() == run["flops.before"]:
                self._add({}, {operator.name: 1}, operator)
        elif operands is None:
            self._add({}, {operator.name: 1}, operator)
        else:
            counted = self._count(operator.name, operator.overload, operands)
            self._add(counted.forward, counted.uncounted, operator)

    def _after_backward(self, *gradients: Any, run: Run, operator: _Operator, node: str) -> None:
        from amanda.toolkit.inner_calls import with_gradients

        operands = run.get("flops.operands")
        if operands is None:
            self._add({}, {node: 1}, operator)
        elif "flops.before" not in run:
            counted = self._count(operator.name, operator.overload, with_gradients(operands, gradients))
            self._add(counted.backward, counted.uncounted_backward, operator, backward=True)

    def _list(self, name: str) -> None:
        with self._lock:
            self._uncounted[name] += 1

    # ---- counts -----------------------------------------------------------------------------------------------------

    def _count(self, name: str, overload: str, operands: tuple[Any, ...]) -> _Counted:
        how = name, overload, operands, self._cpu_attention, self._narrowed
        try:
            hash(operands)
        except TypeError:
            return _counted.__wrapped__(*how)
        return _counted(*how)

    def _add(
        self, rows: dict[str, tuple[int, int]], uncounted: dict[str, int], operator: _Operator, backward: bool = False
    ) -> None:
        with self._lock:
            for op, (runs, flops) in rows.items():
                sums = self._rows.setdefault((op, operator.module_path, backward), [0, 0])
                sums[0] += runs
                sums[1] += flops
            self._uncounted.update(uncounted)
            self._products.update(uncounted)


@functools.lru_cache(_CACHED)
def _counted(
    name: str, overload: str, operands: tuple[Any, ...], cpu_attention: bool, narrowed: tuple[tuple[str, ...], ...]
) -> _Counted:
    """On another thread: tools are not shown what a tool calls on its own."""
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        return other.submit(_counted_here, name, overload, operands, cpu_attention, narrowed).result()


def _counted_here(
    name: str, overload: str, operands: tuple[Any, ...], cpu_attention: bool, narrowed: tuple[tuple[str, ...], ...]
) -> _Counted:
    from amanda.toolkit.inner_calls import call_of, differentiate

    capsule, counts, narrow = tools.make_flops(True, cpu_attention, [])
    native = NativeTool(capsule)
    for ops in narrowed:
        narrow(list(ops), None)
    failed: collections.Counter[str] = collections.Counter()
    with apply(native):
        for call in call_of(name, overload, operands).calls_inside():
            try:
                result = call.run()
            except Exception:  # PyTorch can't run it without values
                failed[call.name] += not call.depends_on_data
            else:
                node = differentiate(result)
                failed[node] += bool(node)
    uncounted = +(failed + collections.Counter(counts.uncounted_products()))
    of_nodes = {node: count for node, count in uncounted.items() if "::" not in node}
    return _Counted(
        _rows_of(counts, backward=False),
        _rows_of(counts, backward=True),
        {op: count for op, count in uncounted.items() if op not in of_nodes},
        of_nodes,
    )


def _rows_of(counts: Any, backward: bool) -> dict[str, tuple[int, int]]:
    return {row.op: (row.runs, row.flops) for row in counts.rows() if row.backward == backward}
