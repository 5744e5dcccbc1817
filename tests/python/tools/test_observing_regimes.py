"""Tools that observe, in every regime: results of the program bit for bit, and the tools' own as docs/tools.md says.

Each test trains two steps. Expected are a plain run's results and the differences that the page lists.
"""

import collections
import contextlib

import amanda
import pytest
import torch
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.profile import Profile
from amanda.tools.statistics import OpStatistics
from tool_regimes import REGIMES, in_regime

STEPS = 2
# How to make each tool, and what its rows count.
TOOLS = {
    "Profile": (lambda model: Profile(), "calls"),
    "CuptiProfiler": (lambda model: CuptiProfiler(gpu=False), "calls"),
    "Flops": (lambda model: Flops(), "flops"),
    "GraphTracing": (lambda model: GraphTracing(), "nodes"),
    "OpStatistics": (lambda model: OpStatistics(), "calls"),
    "ValueHistograms": (lambda model: ValueHistograms(), "calls"),
    "GradientStatistics": (lambda model: GradientStatistics(), "calls"),
    "HookCoverage": (HookCoverage, "operators"),
}
COUNT_RUNS = ("Profile", "OpStatistics", "ValueHistograms")
of_data_parallel = {"c10d::broadcast_", "aten::as_strided", "aten::copy_", "aten::empty"}
each_tool = pytest.mark.parametrize("name", TOOLS)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.25), torch.nn.Linear(8, 2))


def train(call, model):
    """Outputs, gradients, parameters and the random state."""
    torch.manual_seed(1)
    optimizer, outputs = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs.append(call(torch.linspace(-1, 1, 12).view(3, 4)))
        outputs[-1].float().square().sum().backward()
        with amanda.disabled():  # or there would be the optimizer's operators in the results
            optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *gradients, *model.parameters(), torch.get_rng_state()]


def observed(name, regime):
    """The results of a training in a regime, and the tool that observed it."""
    model = make_model()
    tool = TOOLS[name][0](model)
    around = contextlib.nullcontext(model) if regime is None else in_regime(regime, model)
    with around as call, amanda.apply(tool, compiled="eager"):  # test_compiled_tools has those on compiled code
        return train(call, model), tool


def counts_of(tool, field):
    """What the rows count, by operator, backward operator and phase; each step of a histogram apart."""
    counts = collections.Counter()
    for row in tool.rows("op"):
        key = row.name, getattr(row, "backward_op", "") + getattr(row, "side", ""), getattr(row, "phase", "")
        counts[key] += getattr(row, field) or 0
    return counts


@pytest.mark.parametrize("regime", REGIMES)
@each_tool
def test_the_program_computes_what_it_computes_without_the_tool(name, regime):
    model = make_model()
    with contextlib.nullcontext(model) if regime == "compiled code" else in_regime(regime, model) as call:
        expected = train(call, model)
    found, _ = observed(name, regime)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def counts(name, regime):
    """Of a plain run, and what a run in the regime has more."""
    (_, plain), (_, tool) = observed(name, None), observed(name, regime)
    field = TOOLS[name][1]
    expected, found = counts_of(plain, field), counts_of(tool, field)
    assert all(found[key] >= count for key, count in expected.items())
    return expected, {key: count - expected[key] for key, count in found.items() if count > expected[key]}


@each_tool
def test_under_autocast_there_are_casts_where_a_tool_sees_backward_or_inner_operators(name):
    _, more = counts(name, "autocast")
    casts = {key for key in more if "ToCopyBackward0" in f"{key}"}
    if name in ("Profile", "Flops", "GraphTracing", "OpStatistics", "ValueHistograms"):
        assert more == {}
    elif name == "CuptiProfiler":
        inner = {operator for operator, _, _ in more.keys() - casts}
        assert casts
        assert "aten::_to_copy" in inner
        assert inner <= {"aten::_to_copy", "aten::to", "aten::copy_", "aten::empty_strided", "aten::linear"}
    else:
        assert more.keys() == casts != set()


@each_tool
def test_what_a_checkpoint_recomputes_counts_as_runs_of_the_same_operators(name):
    _, more = counts(name, "checkpointing")
    if name in COUNT_RUNS:  # the last layer is not recomputed: nothing needs its result
        assert more == {(f"aten::{kind}", "", ""): STEPS for kind in ("linear", "relu", "dropout")}
    elif name == "Flops":
        assert more == {("aten::addmm", "", ""): STEPS * 2 * 3 * 4 * 8}
    elif name == "CuptiProfiler":
        assert {phase for _, _, phase in more} == {"recompute"}
        assert more["aten::addmm", "", "recompute"] == STEPS
    else:
        assert more == {}


@each_tool
def test_compiled_code_has_the_results_of_the_code_as_written(name):
    _, more = counts(name, "compiled code")
    assert more == {}


@each_tool
def test_in_distributed_training_there_are_the_wrappers_name_and_operators(name):
    _, more = counts(name, "distributed training")
    assert {operator for operator, _, _ in more} <= of_data_parallel
    assert bool(more) == (name not in ("Flops", "GradientStatistics"))
    _, plain = observed(name, None)
    _, tool = observed(name, "distributed training")
    modules = {row.name for row in plain.rows("module")} - {""}
    assert modules
    assert {row.name for row in tool.rows("module")} - {"", "module"} == {f"module.{path}" for path in modules}


def test_gradients_are_those_of_a_rank_before_they_are_averaged():
    model, tool = make_model(), GradientStatistics()

    def tenfold(state, bucket):  # in place of the average over ranks
        done = torch.futures.Future()
        done.set_result(bucket.buffer() * 10)
        return done

    with in_regime("distributed training", model) as call, amanda.apply(tool):
        call.register_comm_hook(None, tenfold)
        call(torch.ones(3, 4)).sum().backward()
    norms = {row.last for row in tool.rows("id") if row.backward_op == "AccumulateGrad" and row.side == "grad_output"}
    expected = {parameter.grad.double().norm().item() / 10 for parameter in model.parameters()}
    assert sorted(norms) == pytest.approx(sorted(expected))


def test_under_autocast_values_are_those_of_the_dtype_that_ran():
    for name in ("OpStatistics", "ValueHistograms"):
        (outputs, *_), tool = observed(name, "autocast")
        linear = next(row for row in tool.rows("id") if row.name == "aten::linear" and row.module_path == "3")
        assert outputs.dtype == torch.bfloat16
        if name == "OpStatistics":
            assert torch.tensor(linear.max).bfloat16().item() == linear.max
        else:
            magnitudes = outputs.detach().double().abs().log2().floor()
            assert linear.counts == tuple(int((magnitudes == power).sum()) for power in range(-32, 32))
