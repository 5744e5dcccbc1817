"""After `reset`, the evidence of every tool that ships is that of a new one: what it looked at, and what it did not."""

import importlib
import pkgutil
import warnings

import amanda
import amanda.research
import amanda.tools
import pytest
import torch
from amanda.distributed.waiting import Collectives
from amanda.research import LearnedStepQuantization
from amanda.research.effective_path import EffectivePath
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import ActivationPruning, CascadePruning, ChannelPruning, HeadPruning, TilewisePruning
from amanda.research.rematerialization import Rematerialization
from amanda.tools.capture import Capture
from amanda.tools.check import Check
from amanda.tools.compiled_diff import CompiledDiff
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.cuts import GradientCuts
from amanda.tools.diff import CausalDiff, Recorder
from amanda.tools.export_diff import ExportDiff
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.history import History
from amanda.tools.history.dead_units import DeadUnits
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder
from amanda.tools.memory import PeakMemory
from amanda.tools.nonfinite import NaNSentinel
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization
from amanda.tools.rewriting import SubgraphRewriting
from amanda.tools.statistics import OpStatistics
from amanda.tools.trace import Trace
from export_models import labelled_file
from torch import nn

TOOLS = {
    "ActivationPruning": lambda folder: ActivationPruning(threshold=0.1),
    "Capture": lambda folder: Capture(),
    "CascadePruning": lambda folder: CascadePruning(heads=0.5),
    "CausalDiff": lambda folder: CausalDiff(record(folder), progress=False),
    "ChannelPruning": lambda folder: ChannelPruning(0.5),
    "Check": lambda folder: Check(),
    "Collectives": lambda folder: Collectives(),
    "HookCoverage": lambda folder: HookCoverage(Net()),
    "CuptiProfiler": lambda folder: CuptiProfiler(),
    "CompiledDiff": lambda folder: CompiledDiff(),
    "DeadUnits": lambda folder: DeadUnits(3),
    "DynamicQuantization": lambda folder: DynamicQuantization(),
    "EffectivePath": lambda folder: EffectivePath(),
    "ErrorInjection": lambda folder: ErrorInjection(BitFlip()),
    "ExportDiff": lambda folder: ExportDiff(labelled_file(folder / "model.onnx")),
    "FakeQuantization": lambda folder: FakeQuantization(),
    "Flops": lambda folder: Flops(),
    "GradientCuts": lambda folder: GradientCuts(),
    "GradientStatistics": lambda folder: GradientStatistics(),
    "GraphTracing": lambda folder: GraphTracing(),
    "HeadPruning": lambda folder: HeadPruning({0: [0]}),
    "History": lambda folder: History(),
    "InplaceErrors": lambda folder: InplaceErrors(),
    "LearnedStepQuantization": lambda folder: LearnedStepQuantization(),
    "MagnitudePruning": lambda folder: MagnitudePruning(sparsity=0.5),
    "NaNSentinel": lambda folder: NaNSentinel(),
    "OpStatistics": lambda folder: OpStatistics(),
    "PeakMemory": lambda folder: PeakMemory(),
    "Profile": lambda folder: Profile(),
    "Rematerialization": lambda folder: Rematerialization(10**9),
    "StaticQuantization": lambda folder: StaticQuantization(),
    "SubgraphRewriting": lambda folder: SubgraphRewriting(("linear", "relu"), lambda product, result: NotImplemented),
    "TilewisePruning": lambda folder: TilewisePruning(sparsity=0.5),
    "Trace": lambda folder: Trace("*: output.sum()", "relu: grad_output.sum()"),
    "ValueHistograms": lambda folder: ValueHistograms(),
    "VectorwisePruning": lambda folder: VectorwisePruning(),
    "WriteRecorder": lambda folder: WriteRecorder(),
}
BASES = {"PostTraining", "Quantization", "WeightPruning", "AttentionPruning"}
X = torch.ones(2)
NO_GRADIENT = {"DynamicQuantization"}


class Net(nn.Module):
    """Each tool finds what it works on."""

    def __init__(self):
        super().__init__()
        self.conv, self.project, self.head = nn.Conv2d(2, 8, 3), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.project(self.conv(x).flatten(2)).relu()
        return self.head(nn.functional.scaled_dot_product_attention(x, x, x)).sum()


def record(folder):
    with Recorder(folder / "record") as recorder, amanda.apply(recorder):
        step(Net())
    return folder / "record"


def step(net, unseen=False):
    """`unseen`: some of it is not shown to tools."""
    loss = net(torch.ones(1, 2, 6, 6))
    if loss.requires_grad:
        loss.backward()
        net.zero_grad()
    if unseen:
        with amanda.disabled():
            torch.ones(2).relu()


def looked_at(tool):
    evidence = tool.evidence()
    return evidence.operators, evidence.backward_operators


def reasons(tool):
    return {one.reason for one in tool.evidence().unseen}


@pytest.fixture
def unscheduled(monkeypatch):
    """Tools that work step by step run in a scope like others."""
    monkeypatch.setattr(amanda.core.scope, "StepTool", type("None", (), {}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TOOLS)
def test_evidence_starts_anew_with_the_results(name, tmp_path, unscheduled):
    tool, net = TOOLS[name](tmp_path), Net()
    with torch.set_grad_enabled(name not in NO_GRADIENT), amanda.apply(tool, coverage=True):
        for number in range(3):  # one line: the same operators
            if number == 2:
                before = looked_at(tool)
                assert "off" in reasons(tool)
                tool.reset()
                assert looked_at(tool) == (0, 0), "nothing has run since"
                assert "off" not in reasons(tool)
            step(net, unseen=number == 1)
        assert looked_at(tool) == before, "all of it has run again"
        assert "off" not in reasons(tool)
        tool.reset()
        torch.ones(1).relu()
        assert sum(looked_at(tool)) <= 5, "what does not run does not count"


def test_every_tool_with_a_reset_is_here():
    for module in (
        *pkgutil.walk_packages(amanda.tools.__path__, "amanda.tools."),
        *pkgutil.walk_packages(amanda.research.__path__, "amanda.research."),
    ):
        importlib.import_module(module.name)
    shipped = {tool.__name__ for tool in subclasses(amanda.Tool) if tool.__module__.startswith("amanda.")}
    resets = {tool.__name__ for tool in subclasses(amanda.Tool) if hasattr(tool, "reset")} & shipped
    assert {name for name in resets if name[0] != "_"} - {"AskedGradients", "LossScaling"} == set(TOOLS) | BASES


def subclasses(tool):
    for one in tool.__subclasses__():
        yield one
        yield from subclasses(one)


def test_a_backward_operator_counts_when_it_runs_not_when_it_is_made():
    tool, x = GradientStatistics(), torch.ones(2, requires_grad=True)
    with amanda.apply(tool):
        for _ in range(2):
            x.exp().sum().backward()
        count = tool.evidence().backward_operators
        made = x.exp().sum()
        tool.reset()
        x.exp().sum()
        assert tool.evidence().backward_operators == 0
        made.backward()
        assert tool.evidence().backward_operators > 0
        x.exp().sum().backward()
        assert tool.evidence().backward_operators >= count


def test_operators_of_compiled_functions_go_on_counting():
    torch._dynamo.reset()
    compiled, tool = torch.compile(lambda x: x.relu() * 2, backend="aot_eager"), OpStatistics()
    with amanda.apply(tool, compiled="graph"):
        for _ in range(2):
            compiled(X)
            assert looked_at(tool) == (2, 0)
            tool.reset()
    assert looked_at(tool) == (2, 0)
    torch._dynamo.reset()


def test_the_steps_of_a_history_do_not_reset_the_evidence_of_its_tools():
    statistics = OpStatistics()
    history, net = History(tools=[statistics]), Net()
    with amanda.scheduled(history) as scope:
        for _ in range(3):
            step(net)
            scope.step()
    assert history.evidence().operators > 5
    assert statistics.evidence().operators > 5


def test_a_failure_stays_in_the_evidence_of_a_tool_that_was_reset(caplog):
    class Fails(OpStatistics):
        def _analyze(self, context):
            raise ValueError("no")

    tool = Fails()
    with warnings.catch_warnings(), amanda.apply(tool, on_error="disable"):
        warnings.simplefilter("ignore")
        torch.ones(2).relu()
        tool.reset()
        torch.ones(2).relu()
    assert reasons(tool) == {"stopped"}


def test_a_tool_of_a_program_resets_its_evidence_too():
    class Counts(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.look, require_outputs=True)

        def look(self, context):
            pass

    tool = Counts()
    with amanda.apply(tool):
        torch.ones(2).relu()
        assert looked_at(tool) == (2, 0)
        tool.reset_evidence()
        for _ in range(2):
            torch.ones(2)
        assert looked_at(tool) == (1, 0)
