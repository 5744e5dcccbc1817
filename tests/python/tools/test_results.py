"""The shape of results that all tools share: rows, tables, data frames, reset."""

import dataclasses
import functools
import importlib
import typing

import amanda
import pandas
import pytest
import torch
from amanda.reports.results import Results
from amanda.research import LearnedStepQuantization
from amanda.research.effective_path import EffectivePath
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import (
    ActivationPruning,
    AttentionPruning,
    CascadePruning,
    ChannelPruning,
    HeadPruning,
    TilewisePruning,
)
from amanda.research.rematerialization import Rematerialization
from amanda.toolkit.frames import line_of_code
from amanda.toolkit.loss_scaling import LossScaling
from amanda.toolkit.optimizer_phase import OptimizerPhase
from amanda.tools.capture import Capture, Patch
from amanda.tools.check import Check
from amanda.tools.check.asked_gradients import AskedGradients
from amanda.tools.check.computed import ComputedInputs
from amanda.tools.compiled_diff import CompiledDiff
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.cuts import GradientCuts
from amanda.tools.diff import CausalDiff, Recorder
from amanda.tools.diff.watching import Watching
from amanda.tools.export_diff import ExportDiff
from amanda.tools.flops import Flops
from amanda.tools.flops.compiled_flops import CompiledFlops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.history import History
from amanda.tools.history.dead_units import DeadUnits
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder
from amanda.tools.mapping import MappingTool
from amanda.tools.memory import PeakMemory
from amanda.tools.nonfinite import NaNSentinel
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, VectorwisePruning, WeightPruning
from amanda.tools.quantization import (
    DynamicQuantization,
    FakeQuantization,
    PostTraining,
    Quantization,
    StaticQuantization,
)
from amanda.tools.rewriting import SubgraphRewriting
from amanda.tools.statistics import OpStatistics
from amanda.tools.trace import Trace
from repository import ROOT


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        x = self.body(x)
        values, _ = torch.sort(x)
        return self.head(x + values)


class Attending(torch.nn.Module):
    """For tools of convolutions and attention."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 2, 1), torch.nn.Conv2d(2, 2, 1)

    def forward(self, x):
        x = self.conv2(self.conv1(x.view(3, 1, 2, 2)))
        for _ in range(2):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return x


def model(kind=Model):
    torch.manual_seed(0)
    return kind()


WITHOUT_RESULTS = {ComputedInputs, MappingTool, OptimizerPhase, SparsitySchedule}  # they write keys into contexts
WITHOUT_RESULTS |= {AskedGradients}  # it calls rules
# What these find are tensors, findings, files.
WITHOUT_RESULTS |= {Capture, Check, InplaceErrors, NaNSentinel, Patch, Recorder}
WITHOUT_RESULTS |= {amanda.StepTool, CompiledFlops, DeadUnits, LossScaling, WriteRecorder}  # parts of others
# They have tests of their own: arguments say what their rows are.
WITHOUT_RESULTS |= {CausalDiff, CompiledDiff, ExportDiff, History, Trace}
TOOLS = {
    "activation pruning": lambda: ActivationPruning({"relu": 0.1, "linear": 0.1}),
    "hook_coverage": lambda: HookCoverage(model()),
    "cupti_profiler": lambda: CuptiProfiler(gpu=False),
    "cuts": GradientCuts,
    "dynamic quantization": DynamicQuantization,
    "error_injection": lambda: ErrorInjection(BitFlip(22)),
    "effective_path": EffectivePath,
    "flops": Flops,
    "gradients": GradientStatistics,
    "graph": GraphTracing,
    "histograms": ValueHistograms,
    "learned steps": LearnedStepQuantization,
    "memory": PeakMemory,
    "profile": Profile,
    "pruning": MagnitudePruning,
    "quantization": FakeQuantization,
    "rewriting": lambda: SubgraphRewriting(
        ["linear"], lambda linear: linear.op(linear.input, linear.weight, linear.bias)
    ),
    "static quantization": StaticQuantization,
    "rematerialization": lambda: Rematerialization(budget=1_000_000),
    "statistics": OpStatistics,
    "tilewise pruning": TilewisePruning,
    "vectorwise pruning": VectorwisePruning,
    "channel pruning": ChannelPruning,
    "cascade pruning": lambda: CascadePruning(0.5),
    "head pruning": lambda: HeadPruning({0: [1]}),
}
BASES = {AttentionPruning, PostTraining, Quantization, Watching, WeightPruning}
MODELS = dict.fromkeys(["channel pruning", "cascade pruning", "head pruning"], Attending)
GROUPINGS = [(name, by) for name, make in TOOLS.items() for by in make()._groupings]
MEASURED = ("_ns", "share", "_bytes")  # fields that differ from run to run
each_tool = pytest.mark.parametrize("name", TOOLS)
each_grouping = pytest.mark.parametrize(("name", "by"), GROUPINGS, ids=[f"{name} by {by}" for name, by in GROUPINGS])


def train(net, steps=2, tool=None):
    for step in range(steps):
        x = torch.linspace(-1, 1, 12).view(3, 4) * (step + 1)
        backward(net(x).square().sum())
        if isinstance(tool, EffectivePath):  # observes only what it extracts
            tool.extract(net, x)


def backward(loss):
    if loss.requires_grad:
        loss.backward()


def gradients_for(name):
    return torch.set_grad_enabled(name != "dynamic quantization")  # it refuses them


@functools.cache
def used(name):
    """Tests share it: they only read what it found."""
    return use(TOOLS[name](), name)


def use(tool, name):
    with gradients_for(name), amanda.apply(tool):
        train(model(MODELS.get(name, Model)), tool=tool)
    return tool


def found(tool):
    """Everything but what was measured, by grouping."""
    return {by: [plain(row) for row in in_order(tool, tool.rows(by))] for by in tool._groupings}


def in_order(tool, rows):
    by_time = isinstance(tool, (Profile, CuptiProfiler))
    return sorted(rows, key=lambda row: str(plain(row))) if by_time else rows


def plain(row):
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in fields.items()
        if not name.endswith(MEASURED)
    }


# ---- the shape -------------------------------------------------------------------------------------------------------


SHIPPED = ("amanda.tools", "amanda.research")


def test_every_tool_that_ships_has_results_in_this_shape():
    found = set()
    package = ROOT / "python"
    for path in (*(package / "amanda/tools").rglob("[a-z]*.py"), *(package / "amanda/research").rglob("[a-z]*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        for value in vars(importlib.import_module(module)).values():
            is_tool = isinstance(value, type) and issubclass(value, amanda.Tool)
            if is_tool and value.__module__.startswith(SHIPPED) and not value.__name__.startswith("_"):
                found.add(value)
    tools = {type(make()) for make in TOOLS.values()}
    assert found - WITHOUT_RESULTS == tools | BASES
    for kind in tools:
        own = {"rows", "table", "to_pandas"} & vars(kind).keys()
        assert own <= ({"rows"} if kind is CuptiProfiler else set())  # there, for its overloads
        assert kind.reset is not Results.reset


@each_tool
def test_the_first_grouping_is_the_default_and_the_groupings_are_those_of_the_type(name):
    tool = used(name)
    first, *_ = tool._groupings
    assert [plain(row) for row in tool.rows()] == [plain(row) for row in tool.rows(first)] != []
    assert tool.table().row_count == tool.table(first).row_count
    assert tool.to_pandas().columns.tolist() == tool.to_pandas(first).columns.tolist()
    base, *_ = (
        base for kind in type(tool).__mro__ for base in vars(kind).get("__orig_bases__", ()) if "Results" in str(base)
    )
    assert set(typing.get_args(typing.get_args(base)[1])) == set(tool._groupings)


def is_same(there, value):
    if isinstance(value, torch.Tensor):
        return torch.equal(there, value)
    return pandas.isna(there) if value is None else there == value


@each_grouping
def test_tables_and_frames_have_the_rows(name, by):
    tool = used(name)
    rows, table, frame = tool.rows(by), tool.table(by), tool.to_pandas(by)
    has_total = bool(rows) and tool._groupings[by].summed is not None
    assert table.row_count == len(rows) + has_total
    assert len(frame) == len(rows)
    assert rows or by == "kernel"
    for column in frame:
        values = [getattr(row, column) for row in rows]
        assert all(map(is_same, frame[column], values)), column
    names = [str(cell) for cell in table.columns[0].cells][: len(rows)]
    assert len(names) == len(rows)
    for text, row in zip(names, rows, strict=True):
        assert text.startswith(line_of_code(row.name)) or text.startswith("(")


@each_grouping
def test_a_table_is_sorted_by_any_column_with_an_order(name, by):
    tool = used(name)
    dtypes = tool._groupings[by].fields
    for column in [column for column, dtype in dtypes.items() if dtype != "object"]:
        values = [getattr(row, column) for row in tool._sorted(by, column)]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=not (known and isinstance(known[0], str))), column
        assert values == known + [None] * (len(values) - len(known))
        tool.table(by, sort=column)


@each_tool
def test_a_table_shows_the_top_rows_and_a_line_for_the_others(name):
    tool = used(name)
    rows = len(tool.rows())
    first = [str(cell) for cell in tool.table(top=1).columns[0].cells]
    assert first[0] == str(next(iter(tool.table().columns[0].cells)))
    assert first[1] == f"({rows - 1} more)"
    assert tool.table(top=rows).row_count == tool.table().row_count
    assert next(iter(tool.table(top=0).columns[0].cells)) == f"({rows} more)"


@each_tool
def test_an_unused_tool_has_empty_tables(name):
    tool = TOOLS[name]()
    rows = [row for row in tool.rows() if getattr(row, "operators", 1)]
    assert rows == []
    assert set(tool.to_pandas().columns) == set(used(name).to_pandas().columns)
    table = tool.table()
    assert str(table).split()[0] == (table.columns[0].header.split()[0] if table.rows else "no")


def test_a_table_is_sorted_as_asked_for():
    tool = used("statistics")
    shown = [str(cell) for cell in tool.table("op", sort="sparsity").columns[0].cells]
    assert shown == [row.name for row in sorted(tool.rows("op"), key=lambda row: -row.sparsity)]
    shown = [str(cell) for cell in tool.table("op", sort="name").columns[0].cells]
    assert shown == sorted(row.name for row in tool.rows("op"))


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("hook_coverage", '"phase", "op" or "module"'),
        ("cupti_profiler", '"op", "id", "module", "line", "phase", "kernel" or "operator"'),
        ("error_injection", '"fault", "id", "op", "module" or "line"'),
        ("effective_path", '"id", "op", "module" or "line"'),
        ("flops", '"both", "op" or "module"'),
        ("gradients", '"id", "op", "module" or "line"'),
        ("graph", '"id", "op", "module" or "line"'),
        ("histograms", '"id", "op", "module" or "line"'),
        ("profile", '"op", "module", "line", "user_line" or "id"'),
        ("pruning", '"id", "op", "module" or "line"'),
        ("quantization", '"id"'),
        ("rewriting", '"id"'),
        ("statistics", '"id", "op", "module" or "line"'),
    ],
)
def test_a_grouping_that_does_not_exist_is_refused_with_those_that_do(says, name, known):
    tool = TOOLS[name]()
    for use in (tool.rows, tool.table, tool.to_pandas):
        with says(ValueError, f"[{name}] by= is {known}, got 'layer'"):
            use("layer")
    with says(ValueError, f"[{name}] by= is {known}, got 3"):
        tool.rows(3)


@each_tool
def test_a_column_that_does_not_exist_is_refused_with_those_that_do(name):
    tool = TOOLS[name]()
    with pytest.raises(ValueError, match=r"sort= by \"\w+\" is .*; got 'speed'$") as caught:
        tool.table(sort="speed")
    first, *_ = tool._groupings
    fields = [column for column, dtype in tool._groupings[first].fields.items() if dtype != "object"]
    assert str(caught.value) == f"[{tool._speaker}] sort= by \"{first}\" is {', '.join(fields)}; got 'speed'"


def test_values_without_an_order_are_no_columns_to_sort_by(says):
    columns = "op_id, name, module_path, source, side, quant_min, quant_max"
    with says(ValueError, f"[quantization] sort= by \"id\" is {columns}; got 'scale'"):
        FakeQuantization().table(sort="scale")


@each_tool
def test_a_top_that_is_no_number_is_refused(says, name):
    tool = TOOLS[name]()
    with says(ValueError, f"[{tool._speaker}] top= is how many rows to show, 0 or more, got -1"):
        tool.table(top=-1)
    with says(TypeError, f"[{tool._speaker}] top= is how many rows to show, 0 or more, got 'ten'"):
        tool.table(top="ten")


# ---- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("cupti_profiler", "calls"),
        ("error_injection", "faults"),
        ("effective_path", "active_synapses"),
        ("flops", "flops"),
        ("gradients", "calls"),
        ("graph", "nodes"),
        ("histograms", "elements"),
        ("profile", "calls"),
        ("pruning", "pruned"),
        ("channel pruning", "kept"),
        ("statistics", "elements"),
        ("statistics", "zeros"),
    ],
)
def test_every_grouping_has_the_same_sum(name, column):
    tool = used(name)
    sums = {}
    others = (
        {"kernel", "line"} if name == "cupti_profiler" else set()
    )  # by line, calls are those of outermost operators
    for by in tool._groupings.keys() - others:
        rows = [row for row in tool.rows(by) if name != "flops" or by != "module" or row.module_path == ""]
        sums[by] = sum(getattr(row, column) for row in rows)
    assert len(set(sums.values())) == 1, sums
    assert min(sums.values()) > 0


def test_statistics_of_a_module_are_those_of_all_its_outputs():
    tool, net = OpStatistics(), model()
    with amanda.apply(tool):
        x = torch.linspace(-1, 1, 12).view(3, 4)
        hidden = [net.body[0](x)]
        hidden.append(net.body[1](hidden[0]))
        values, indices = torch.sort(hidden[1])
    line = tool.rows("line")[-1]
    assert (line.calls, line.elements, line.output) == (1, values.numel() + indices.numel(), None)
    assert line.mean == pytest.approx(values.double().mean().item(), rel=1e-12)
    by_op = {(row.name, row.output): row for row in tool.rows("op")}
    assert by_op["aten::sort", 0].elements == by_op["aten::sort", 1].elements == values.numel()
    linears = used("statistics")
    (all_of_them,) = (row for row in linears.rows("op") if row.name == "aten::linear")
    each = [row for row in linears.rows("id") if row.name == "aten::linear"]
    assert len(each) == 3
    assert all_of_them.calls == sum(row.calls for row in each) == 6
    assert (all_of_them.min, all_of_them.max) == (min(row.min for row in each), max(row.max for row in each))
    assert all_of_them.mean == pytest.approx(sum(row.mean * row.elements for row in each) / all_of_them.elements)


def test_norms_of_a_module_are_those_of_all_its_gradients():
    tool = used("gradients")
    for row in tool.rows("module"):
        parts = [part for part in tool.rows("id") if (part.module_path, part.side) == (row.name, row.side)]
        finite = [part for part in parts if part.mean is not None]
        assert row.calls == sum(part.calls for part in parts)
        assert row.max == max((part.max for part in finite), default=None)
        assert row.min == min((part.min for part in finite), default=None)
        assert row.last is None
        counts = [part.calls - part.undefined - part.nonfinite - part.skipped for part in finite]
        if finite:
            weighted = sum(part.mean * count for part, count in zip(finite, counts, strict=True))
            assert row.mean == pytest.approx(weighted / sum(counts))


def test_operations_of_a_module_include_its_submodules():
    flops = used("flops")
    assert {row.module_path: row.flops for row in flops.rows("module")} == flops.by_module()
    assert {row.op: row.flops for row in flops.rows("op") if row.flops} == flops.by_operator()


def test_what_a_module_consumes_is_what_comes_from_elsewhere():
    tracing, net, x = GraphTracing(), model(), torch.ones(1, 4)
    with amanda.apply(tracing), torch.no_grad():
        net(x)
    rows = {row.name: row for row in tracing.rows("module")}
    # linear, its weight and its bias; the input of the first also counts as its own: it is named after its consumer.
    assert (rows["body.0"].nodes, rows["body.0"].producers, rows["body.0"].consumers) == (4, 0, 1)
    assert (rows["body.1"].nodes, rows["body.1"].producers, rows["body.1"].consumers) == (1, 1, 1)
    assert (rows[""].nodes, rows[""].producers, rows[""].consumers) == (2, 1, 1)  # sort, and the sum
    assert (rows["head"].nodes, rows["head"].producers, rows["head"].consumers) == (3, 1, 0)
    by_op = {(row.name, row.kind): row.nodes for row in tracing.rows("op")}
    assert (by_op["aten::linear", "operator"], by_op["weight", "parameter"], by_op["input", "input"]) == (3, 3, 1)


def test_pruning_tells_how_much_it_has_pruned():
    tool = MagnitudePruning(sparsity=0.75)
    with amanda.apply(tool):
        train(model())
    assert [(row.module_path, row.weights, row.pruned, row.sparsity) for row in tool.rows()] == [
        ("body.0", 32, 24, 0.75),
        ("body.2", 64, 48, 0.75),
        ("head", 16, 12, 0.75),
    ]
    (row,) = tool.rows("op")
    assert (row.name, row.weights, row.pruned, row.op_id) == ("aten::linear", 112, 84, None)


# ---- reset -----------------------------------------------------------------------------------------------------------


def results_of_a_step(tool, net, inside, used_before):
    """What a training step gives: alone, or after others and a reset."""
    scope = amanda.apply(tool)
    net.zero_grad()
    with scope:
        if used_before:
            backward(torch.nn.Linear(4, 2)(torch.full((2, 4), 9.0).requires_grad_()).relu().sum())
            train(net, tool=tool)
            net.zero_grad()
        if inside:
            if used_before:
                tool.reset()
            train(net, steps=1, tool=tool)
    if not inside:
        if used_before:
            tool.reset()
        with scope:
            train(net, steps=1, tool=tool)
    return found(tool)


@each_tool
@pytest.mark.parametrize("inside", [True, False], ids=["in an open scope", "between scopes"])
def test_after_a_reset_a_tool_is_as_new(name, inside):
    net = model(MODELS.get(name, Model))  # one: another's operators would have other ids
    with gradients_for(name):
        after, new = (results_of_a_step(TOOLS[name](), net, inside, before) for before in (True, False))
    assert after == new
    assert any(new.values())


@each_tool
def test_after_a_reset_there_is_nothing(name):
    tool = use(TOOLS[name](), name)
    tool.reset()
    assert found(tool) == found(TOOLS[name]())


@each_tool
def test_a_reset_changes_no_option(name):
    tool = TOOLS[name]()
    before = {key: value for key, value in vars(tool).items() if isinstance(value, (bool, int, float))}
    tool.reset()
    after = {key: value for key, value in vars(tool).items() if isinstance(value, (bool, int, float))}
    assert {**after, "_resets": 0} == {**before, "_resets": 0}


def test_what_was_skipped_is_forgotten_too():
    tool = OpStatistics()
    with amanda.apply(tool):
        torch.ones(2).to_sparse()
        assert tool.skipped == {"sparse": 1}
        tool.reset()
        assert tool.skipped == {}
        assert tool.table().caption is None
        torch.ones(2).to_sparse()
    assert tool.skipped == {"sparse": 1}


def test_after_a_reset_masks_are_those_of_the_weights_as_they_are_now():
    layer, tool = torch.nn.Linear(4, 1, bias=False), MagnitudePruning(sparsity=0.5)
    with amanda.apply(tool), torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        assert layer(torch.ones(1, 4)).item() == 3 + 4
        layer.weight.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
        assert layer(torch.ones(1, 4)).item() == 2 + 1  # the same mask
        tool.reset()
        assert layer(torch.ones(1, 4)).item() == 4 + 3
        assert layer(torch.ones(1, 4)).item() == 4 + 3


def test_after_a_reset_observers_are_new():
    tool = FakeQuantization({"relu": {0: torch.ao.quantization.MinMaxObserver}})
    with amanda.apply(tool):
        for largest in (8.0, 1.0):
            tool.reset()
            torch.relu(torch.tensor([0.0, largest]))
            (row,) = tool.rows()
            assert row.scale.item() == pytest.approx(largest / 255)


@pytest.mark.parametrize("name", ["quantization", "pruning", "vectorwise pruning"])
@pytest.mark.parametrize("resets", [False, True])
def test_what_inference_mode_made_serves_training(name, resets):
    tool, net, x = TOOLS[name](), model(), torch.ones(2, 4)
    with amanda.apply(tool):
        if resets:
            net(x)
            tool.reset()
        with torch.inference_mode():
            net(x)
        net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_the_graph_stays_the_same_object_over_a_reset():
    tool, x = GraphTracing(), torch.ones(2)
    graph = tool.graph
    with amanda.apply(tool):
        y = torch.relu(x)
        tool.reset()
        assert len(graph) == 0
        torch.sin(y)
    assert tool.graph is graph
    assert [(node.kind, node.name) for node in graph] == [("operator", "aten::sin"), ("input", "self")]
