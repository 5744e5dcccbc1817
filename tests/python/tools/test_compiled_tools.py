"""Tools that ship on functions that stay compiled: what they do in eager mode, or an error that says why not."""

import dataclasses

import amanda
import pytest
import torch
from amanda.research.effective_path import EffectivePath
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import ActivationPruning, ChannelPruning, HeadPruning, TilewisePruning
from amanda.research.rematerialization import Rematerialization
from amanda.tools.capture import Capture
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.nonfinite import NaNSentinel
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, VectorwisePruning
from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization
from amanda.tools.rewriting import SubgraphRewriting
from amanda.tools.statistics import OpStatistics
from compiled_tools import Counting

STEPS = 3


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(call, model, steps=STEPS):
    """Outputs, and parameters after each step."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        output = call(torch.linspace(-1, 1 + step, 12).view(3, 4))
        output.square().sum().backward()
        with amanda.disabled():
            optimizer.step()
            seen += [output.detach().clone(), *(parameter.detach().clone() for parameter in model.parameters())]
    return seen


def trained(tool, **how):
    model = make_model()
    call = torch.compile(model, backend="aot_eager") if how else model
    with amanda.apply(tool, **how):
        return train(call, model)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def rows_of(tool):
    """Without ids: these programs call their models at different places."""
    return [repr(dataclasses.replace(row, op_id=None)) for row in tool.rows()]


EDITING = {
    "MagnitudePruning": lambda: MagnitudePruning(0.5),
    "SparsitySchedule": lambda: MagnitudePruning(SparsitySchedule(0.25, 0.5, end=2, every=1)),
    "VectorwisePruning": lambda: VectorwisePruning(),
    "TilewisePruning": lambda: TilewisePruning(0.5, tile=2),
    "ActivationPruning": lambda: ActivationPruning(threshold=0.3),
    "FakeQuantization": FakeQuantization,
    "ErrorInjection": lambda: ErrorInjection(BitFlip(22), ops="linear", index=[(0, 1)]),
}


@pytest.mark.parametrize("name", EDITING)
def test_a_tool_edits_a_compiled_function_as_an_eager_one(name):
    eager, compiled = EDITING[name](), EDITING[name]()
    expected, found = trained(eager), trained(compiled, compiled="graph")
    assert_same(found, expected)
    assert any(not torch.equal(a, b) for a, b in zip(found, trained(amanda.Tool("nothing")), strict=True))
    assert rows_of(compiled) == rows_of(eager)


OBSERVING = {
    "OpStatistics": (OpStatistics, "calls"),
    "ValueHistograms": (ValueHistograms, "calls"),
    "Profile": (Profile, "calls"),
    "GraphTracing": (GraphTracing, "nodes"),
}


@pytest.mark.parametrize("name", OBSERVING)
def test_a_tool_counts_in_a_compiled_function_what_it_counts_in_an_eager_one(name):
    make, field = OBSERVING[name]
    eager, compiled = make(), make()
    with amanda.apply(amanda.Tool("nothing"), compiled="opaque"):
        model = make_model()
        expected = train(torch.compile(model, backend="aot_eager"), model)
    trained(eager)
    found = trained(compiled, compiled="graph")
    assert all(map(torch.equal, found, expected))  # a tool that looks changes nothing, bit for bit

    def linear(tool):
        return sorted((row.name, getattr(row, field)) for row in tool.rows("op") if "linear" in row.name)

    assert linear(compiled) == linear(eager) != []


REFUSING = {
    "ChannelPruning": (ChannelPruning, torch.nn.Conv2d(1, 2, 1), "it follows calls of modules"),
    "HeadPruning": (lambda: HeadPruning({0: [0]}), torch.nn.Softmax(-1), "it follows calls of modules"),
    "EffectivePath": (EffectivePath, torch.nn.ReLU(), "it replaces autograd nodes one by one"),
    "SubgraphRewriting": (
        lambda: SubgraphRewriting(["relu"], lambda relu: relu.op(relu.self)),
        torch.nn.ReLU(),
        "it defers operators until their results are read",
    ),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_tool_that_cannot_work_in_compiled_functions_says_why(name):
    make, model, why = REFUSING[name]
    call = torch.compile(model, backend="aot_eager")
    with (
        pytest.raises(
            amanda.Error, match=f"{name.partition('(')[0]} can't work in compiled functions, as aten::.*: {why}"
        ) as caught,
        amanda.apply(make(), compiled="graph"),
    ):
        call(torch.ones(1, 1, 2, 2))
    assert str(caught.value).endswith('; apply it with compiled="eager"')


LEAVING_OUT = {
    "Rematerialization": (
        lambda: Rematerialization(10**9),
        "[rematerialization] Rematerialization leaves out operators of compiled functions, where the compiler decides what "
        "memory is used for",
    ),
}


@pytest.mark.parametrize("name", LEAVING_OUT)
def test_a_tool_leaves_compiled_functions_alone_and_says_so(name, log):
    make, text = LEAVING_OUT[name]
    tool = make()
    with amanda.apply(amanda.Tool("nothing"), compiled="opaque"):
        model = make_model()
        expected = train(torch.compile(model, backend="aot_eager"), model)
    for _ in range(2):
        assert all(map(torch.equal, trained(tool, compiled="graph"), expected))
    (unseen,) = (one for one in tool.evidence().unseen if one.reason == "compiled")
    assert unseen.count >= 2
    assert unseen.text == f"{unseen.count} operators of compiled functions, where this tool can't work"
    assert unseen.text in " ".join(str(tool.table()).split())
    said = [line for line in log() if "leaves out" in line]
    assert len(said) == 1
    assert said[0].startswith(text)
    assert said[0].endswith('; compiled="eager" shows them (said once)')
    tool.reset()
    assert "compiled" not in {one.reason for one in tool.evidence().unseen}


def test_flops_counts_what_runs_between_graphs():
    @torch.compiler.disable
    def between(x):
        return x @ x

    flops = Flops()
    compiled = torch.compile(lambda x: between(x.sin() @ x).relu(), backend="aot_eager")
    with amanda.apply(flops, compiled="graph"):
        compiled(torch.eye(3))
    assert flops.by_operator() == {"aten::mm": 2 * 2 * 27}


@pytest.mark.parametrize("make", [DynamicQuantization, StaticQuantization])
def test_quantized_kernels_run_in_a_compiled_function(make):
    def run(**how):
        model, tool = make_model(), make()
        call, results = torch.compile(model, backend="aot_eager") if how else model, []
        with amanda.apply(tool, **how), torch.no_grad():
            for step in range(2):
                results.append(call(torch.linspace(-1, 1, 12).view(3, 4)))
                if step == 0 and isinstance(tool, StaticQuantization):
                    tool.convert()
        return results, len(tool.rows())

    (found, rows), (expected, expected_rows) = run(compiled="graph"), run()
    assert_same(found, expected)
    assert rows == expected_rows > 0
    assert not torch.allclose(found[1], make_model()(torch.linspace(-1, 1, 12).view(3, 4)), atol=1e-6)


def test_gradients_of_a_compiled_function_have_the_norms_of_an_eager_one():
    def norms(tool, name):
        return sorted(round(row.last, 5) for row in tool.rows() if row.backward_op == name and row.last is not None)

    eager, compiled = GradientStatistics(), GradientStatistics()
    trained(eager)
    trained(compiled, compiled="graph")
    for name in ("AddmmBackward0", "ReluBackward0"):
        assert norms(compiled, name) == pytest.approx(norms(eager, name), rel=1e-4) != []


def test_coverage_of_a_compiled_model():
    model = make_model()
    tool = HookCoverage(model)
    with amanda.apply(tool, compiled="graph"):
        train(torch.compile(model, backend="aot_eager"), model, 1)
    forward, backward = ((row.in_leaf_modules, row.leaf_modules) for row in tool.rows())
    assert forward == backward == (3, 3)


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_a_mask_made_in_eager_mode_is_the_mask_of_the_compiled_model():
    model, pruning = make_model(), MagnitudePruning(0.5)
    call, x = torch.compile(model, backend="aot_eager"), torch.ones(3, 4)

    def run(program):  # one place of the program
        return program(x)

    with amanda.apply(pruning):
        run(model)
        with torch.no_grad():
            model[0].weight.copy_(model[0].weight.flip(1))
        expected = run(model)
    with amanda.apply(pruning, compiled="graph"):
        assert_same([run(call)], [expected])
        pruning.apply_to(model)
    assert_same([model(x)], [expected])


def pruned_of(pruning):
    return {row.module_path: row.pruned for row in pruning.rows()}


def change_of_sparsity(pruning):
    pruning.sparsity = 0.75


@pytest.mark.parametrize("change", [MagnitudePruning.reset, change_of_sparsity], ids=["reset", "sparsity"])
def test_new_masks_reach_the_compiled_code(change):
    model, pruning, counting = make_model(), MagnitudePruning(0.5), Counting()
    call, x = torch.compile(model, backend=counting), torch.linspace(-1, 1, 12).view(3, 4)
    with amanda.apply(pruning, compiled="graph"):
        old = call(x)
        with torch.no_grad():
            model[0].weight.copy_(model[0].weight.flip(1) * torch.linspace(1, 3, 4))
        change(pruning)
        found = call(x)
        assert counting.count == 1
    by_eager = MagnitudePruning(pruning.sparsity)
    with amanda.apply(by_eager):
        expected = model(x)
    assert_same([found], [expected])
    assert not torch.allclose(found, old)
    assert pruned_of(pruning) == pruned_of(by_eager)
    pruning.apply_to(model)
    assert_same([model(x)], [expected])


def test_compiled_code_follows_a_schedule_that_is_set_later():
    model, pruning, counting = make_model(), MagnitudePruning(0.25), Counting()
    call, x = torch.compile(model, backend=counting), torch.linspace(-1, 1, 12).view(3, 4)
    with amanda.apply(pruning, compiled="graph"):
        call(x)
        schedule = pruning.sparsity = SparsitySchedule(0.25, 0.75, begin=0, end=2, every=1)
        for then in (schedule.step, schedule.step, lambda: schedule.load_state_dict({"steps": 0}), lambda: None):
            found = call(x)
            with amanda.apply(MagnitudePruning(schedule.sparsity)):
                expected = model(x)
            assert_same([found], [expected])
            then()
        assert counting.count == 1


def test_quantization_is_switched_in_compiled_code():
    model, eager, compiled, counting = make_model(), FakeQuantization(), FakeQuantization(), Counting()
    call = torch.compile(model, backend=counting)
    scales = torch.linspace(1, 9, 6)

    def run(tool, program):
        results = []

        def step(i):
            results.append(program(torch.linspace(-1, float(scales[i]), 12).view(3, 4)).detach())

        step(0)
        tool.observe = False
        step(1)
        tool.quantize = False
        step(2)
        tool.observe = True
        step(3)
        tool.quantize = True
        step(4)
        tool.reset()
        step(5)
        return results

    with amanda.apply(eager):
        expected = run(eager, model)
    with amanda.apply(compiled, compiled="graph"):
        assert_same(run(compiled, call), expected)
    assert counting.count == 1
    assert rows_of(compiled) == rows_of(eager)


def test_ranges_that_were_compiled_in_stay_and_it_is_said(caplog):
    model, quantization = make_model(), FakeQuantization()
    call, x = torch.compile(model, backend="aot_eager"), torch.linspace(-1, 1, 12).view(3, 4)

    def run(program, x):
        return program(x)

    with amanda.apply(quantization):
        run(model, x)
        quantization.observe = False
        expected = run(model, x * 5)
    with amanda.apply(quantization, compiled="graph"):
        assert_same([run(call, x * 5)], [expected])
        quantization.observe = True
        assert_same([run(call, x * 5)], [expected])
    assert "functions that were compiled with observe = False keep their ranges in this scope" in caplog.text


def test_a_range_is_needed_before_a_function_is_compiled_with_it():
    model, quantization = make_model(), FakeQuantization()
    quantization.observe = False
    call = torch.compile(model, backend="aot_eager")
    with pytest.raises(amanda.Error, match="has no range yet; run the program with observe = True first"):  # noqa: SIM117
        with amanda.apply(quantization, compiled="graph"):
            call(torch.ones(3, 4))


LISTS = {
    "results": lambda x: sum(part.sum() * i for i, part in enumerate((x * 2).chunk(3, -1))),
    "results, of which one is used": lambda x: (x * 2).split(2, -1)[1].square().sum(),
    "arguments": lambda x: torch.stack([x * 2, x * 3]).square().sum(),
    "arguments, of which one needs no gradient": lambda x: torch.cat([x * 2, torch.ones(1, 6)]).square().sum(),
    "both": lambda x: torch.meshgrid(x[0] * 2, x[1] * 3, indexing="ij")[0].square().sum(),
}
LOOKING = {
    "GradientStatistics": GradientStatistics,
    "NaNSentinel": lambda: NaNSentinel(inf=True),
    "Capture": lambda: Capture(grad=True),
    **{name: make for name, (make, _) in OBSERVING.items()},
}


@pytest.mark.parametrize("tool", LOOKING)
@pytest.mark.parametrize("lists", LISTS)
def test_gradients_of_lists_of_tensors(lists, tool):
    looking, x = LOOKING[tool](), torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
    compiled = torch.compile(LISTS[lists], backend="aot_eager")
    with amanda.apply(looking, compiled="graph"):
        compiled(x).backward()
    found, x.grad = x.grad, None
    compiled(x).backward()
    assert torch.equal(found, x.grad)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_norms_of_gradients_of_lists(is_compiled):
    statistics, x, program = GradientStatistics(), torch.ones(4, 6, requires_grad=True), LISTS["results"]
    with amanda.apply(statistics, compiled="graph"):
        (torch.compile(program, backend="aot_eager") if is_compiled else program)(x).backward()
    norms = [(row.side, row.last) for row in statistics.rows() if row.name == "aten::chunk" and row.last is not None]
    sides = [("grad_output", 8 * 0), ("grad_output", 8 * 1), ("grad_output", 8 * 4), ("grad_input", 8 * (0 + 1 + 4))]
    assert norms == [(side, pytest.approx(square**0.5)) for side, square in sides]
