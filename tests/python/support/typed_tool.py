"""A tool as type checkers see it; test_types.py runs mypy over it. `assert_type` refuses Any."""

from typing import Any, assert_type

import amanda
from amanda.tools import cupti_profiler, flops, profile, statistics


class Typed(amanda.Tool):
    def __init__(self) -> None:
        super().__init__()
        assert_type(self.name, str)
        self.add_inst_for_op(self.analyze, ops="linear")
        self.add_inst_for_op(self.analyze_backward, ops=["linear"], backward=True, require_outputs=True)
        self.add_inst_for_op(self.analyze, ops=amanda.ON_DEMAND)

    def analyze(self, context: amanda.OpContext) -> None:
        assert_type(context.op, amanda.Operator)
        assert_type(context.op.__name__, str)
        assert_type(context.op.name, str)
        assert_type(context.op.overload, str)
        assert_type(context.op.schema, str)
        assert_type(context.op.input_names, list[str])
        assert_type(context.op_id, int)
        assert_type(context.inputs, tuple[Any, ...])
        assert_type(context.parameter_names, tuple[str | tuple[str | None, ...] | None, ...])
        assert_type(context.outputs, tuple[Any, ...])
        assert_type(context.namespace, str)
        assert_type(context.module_path, str)
        assert_type(context.source, str)
        assert_type(context.is_forward(), bool)
        assert_type(context.is_backward(), bool)
        assert_type(context.is_recompute, bool)
        assert_type(context.is_symbolic, bool)
        assert_type(context.depth, int)
        assert_type(context.tool, amanda.Tool)
        assert_type(context.get_op(), amanda.Operator)
        assert_type(context.get_inputs(), tuple[Any, ...])
        action = context.insert_before_op(self.look, inputs=["weight"], key=1)
        assert_type(action, amanda.Action)
        assert_type(action.removed, bool)
        assert_type(action.describe().tool, str)

    def analyze_backward(self, context: amanda.OpContext) -> None:
        assert_type(context.backward_op, amanda.Operator)
        assert_type(context.get_backward_op(), amanda.Operator | None)
        assert_type(context.backward_op_id, int)
        assert_type(context.grad_outputs, tuple[Any, ...])
        assert_type(context.grad_inputs, tuple[Any, ...])

    def look(self, weight: object, key: int) -> None: ...


def use(tool: Typed) -> None:
    scope = amanda.apply(tool, on_error="disable", coverage=True)
    assert_type(scope, amanda.Scope)
    with scope as entered:
        assert_type(entered, amanda.Scope)
    assert_type(scope.cache_info(), amanda.CacheInfo)
    assert_type(scope.cache_info().hits, int)
    assert_type(scope.coverage(), amanda.CoverageReport)
    assert_type(scope.describe(), amanda.ScopeDescription)
    assert_type(scope.describe().rows()[0].backward_op_id, int | None)
    assert_type(amanda.points(len, [1]), amanda.PointTable)
    assert_type(amanda.points(len, [1]).rows()[0].runs, int)

    @scope
    def decorated(x: int) -> str:
        return str(x)

    assert_type(decorated(1), str)

    @amanda.root
    def rooted(x: int) -> str:
        return str(x)

    @amanda.root("name")
    def named(x: int) -> str:
        return str(x)

    assert_type(rooted(1), str)
    assert_type(named(1), str)
    with amanda.root("step") as block:
        assert_type(block.name, str)
    assert_type(amanda.cmake_prefix_path, str)
    with amanda.disabled():
        assert_type(amanda.is_enabled(), bool)


def results() -> None:
    profiled = profile.Profile(skip=1)
    assert_type(profiled.rows(), list[profile.Row])
    assert_type(profiled.rows("line")[0].median_ns, float)
    assert_type(statistics.OpStatistics().rows("op"), list[statistics.Row])
    assert_type(flops.Flops().rows("module"), list[flops.Row])
    kernels = cupti_profiler.CuptiProfiler()
    assert_type(kernels.rows(), list[cupti_profiler.OperatorRow])
    assert_type(kernels.rows("kernel"), list[cupti_profiler.KernelRow])
    assert_type(profiled.table("module", sort="calls", top=10).row_count, Any)
    profiled.reset()
