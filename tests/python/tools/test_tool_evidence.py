"""What a tool ran past and could not follow is in its evidence, or ends the program with an error that says what works."""

import sys

import amanda
import pytest
import torch
from amanda.research.effective_path import EffectivePath
from amanda.research.pruning import ActivationPruning, ChannelPruning
from amanda.tools.capture import Patch
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.diff import CausalDiff, Recorder
from amanda.tools.history import History, dead_units
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError
from amanda.tools.statistics import OpStatistics
from amanda.tools.trace import Trace
from process_groups import destroy_group
from repository import ROOT
from torch import nn

sys.path.append(str(ROOT / "scripts"))
from regime_table import of_arrays


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.fixture
def mesh():
    from torch.distributed.tensor import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    destroy_group()


def found(tool):
    return {one.reason: one.count for one in tool.evidence().unseen}


def train(model, x):
    model(x).sum().backward()


def compiled():
    return torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="aot_eager")


def test_expressions_that_cannot_be_read():
    trace, layer = Trace("linear, exp: output.sum()"), nn.Linear(2, 2)
    with amanda.apply(trace):
        torch.vmap(layer)(torch.ones(3, 2))
        torch.ones(2).exp()
        assert found(trace) == {"unevaluated": 1}
        trace.reset()
        assert found(trace) == {}


def test_a_history_has_what_its_tools_could_not_read():
    history, x = History(tools=[OpStatistics()]), torch.eye(2).to_sparse()
    with amanda.scheduled(history) as steps:
        for _ in range(3):
            x * 2
            steps.step()
        x * 2
    assert found(history) == {"sparse": 4}
    history.reset()
    assert found(history) == {}


def test_a_history_has_gradients_of_parameters_in_compiled_code():
    history, model = History(), compiled()
    with amanda.scheduled(history, compiled="graph") as steps:
        for _ in range(2):
            train(model, torch.ones(1, 2))
            steps.step()
    rows = history.rows("step")
    of_parameters = [row for row in rows if row.quantity == "gradient_norm" and row.name != "gradient_norm"]
    assert {row.step for row in of_parameters} == {1}  # in the first, nobody knew which parameters it reads
    assert found(history) == {}


def test_backward_operators_of_compiled_code_are_not_recorded_or_compared(tmp_path):
    model, x = compiled(), torch.ones(1, 2)
    with Recorder(tmp_path / "record") as recorder, amanda.apply(recorder, compiled="graph"):
        model(x).sum()
        assert found(recorder) == {"compiled": 2}
    diff = CausalDiff(tmp_path / "record", progress=False)
    with amanda.apply(diff, compiled="graph"):
        model(x).sum()
    assert found(diff) == {"compiled": 2}
    assert not diff.rows()


def test_operators_of_compiled_code_are_not_profiled():
    profiler, model = CuptiProfiler(gpu=False), compiled()
    with amanda.apply(profiler, compiled="graph"):
        train(model, torch.ones(1, 2))
    calls = {row.name: row.calls for row in profiler.rows("op") if row.phase == "forward"}
    assert calls["aten::sum"]
    assert calls["aten::linear"] == calls["aten::relu"] == 0
    assert found(profiler) == {"compiled": 4}


@pytest.mark.parametrize("randomness", ["error", "different", "same"])
def test_gates_are_made_under_vmap(randomness):
    model, x = nn.Conv2d(2, 4, 3), torch.randn(3, 2, 5, 5)
    pruning = ChannelPruning()
    with amanda.apply(pruning):
        gated = torch.vmap(model, randomness=randomness)(x)
        torch.testing.assert_close(gated, model(x))
    assert len(pruning.gates) == 1
    assert all(not torch._C._functorch.is_functorch_wrapped_tensor(each) for each in pruning.parameters())


@pytest.mark.parametrize("positions", [None, (slice(None), 1)])
def test_patching_a_distributed_tensor(mesh, positions):
    from torch.distributed.tensor import DTensor, Replicate

    x = DTensor.from_local(torch.ones(2, 2), mesh, [Replicate()])
    text = "the result of ':relu' is a distributed tensor, .* give a value that is such a tensor itself"
    with (
        pytest.raises(amanda.Error, match=rf"\[patch\] {text}"),
        amanda.apply(Patch({"*:relu": 0.0}, positions=positions)),
    ):
        x.relu()
    with amanda.apply(Patch({"*:relu": lambda part: part * 2}, positions=positions)):
        patched = x.relu().to_local()
    expected = torch.ones(2, 2)
    expected[positions if positions is not None else ...] = 2
    assert torch.equal(patched, expected)


def test_paths_through_a_transformation():
    text = "none of them is seen to depend on the sample, as inside a transformation of torch.func"
    with pytest.raises(amanda.Error, match=rf"\[effective_path\] aten::linear .*{text}"):
        EffectivePath().extract(torch.vmap(nn.Linear(4, 3)), torch.ones(2, 4))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), ()])
def test_dead_units_of_arrays_are_those_of_tensors(shape, is_last):
    for dimension in dead_units._dimensions(values := (torch.rand(shape) > 0.7).float(), is_last):
        found = dead_units._alive(values.numpy(), dimension)
        assert found.tolist() == dead_units._alive(values, dimension).tolist()


def test_operators_of_another_framework_are_left_out_and_named(caplog):
    pruning, program = ActivationPruning(0.1), of_arrays._program("net")
    expected = program.run(program.x)
    with amanda.apply(pruning):
        results = program.run(program.x)
    assert results.keys() == expected.keys()
    assert all((results[name] == expected[name]).all() for name in expected)
    assert pruning.skipped == found(pruning) == {"elsewhere": 1}
    assert "an operator of another framework, which this tool can't follow (arrays::relu)" in caplog.text


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's
def test_the_first_nan_among_arrays_of_another_driver():
    program = of_arrays._program("net")
    x, sentinel = program.x.copy(), NaNSentinel()
    x[0, 0, 0, 0] = float("inf")
    with pytest.raises(NonfiniteError) as caught, amanda.apply(sentinel):
        program.run(x)
    assert "[nan] arrays::softmax produced the first NaN in h4" in str(caught.value)
    assert "input self: float32 [1, 2, 4, 4] on cpu: 8 of 32 infinite" in str(caught.value)
    assert sentinel.evidence().values == 4


def test_runs_of_another_driver_are_compared(tmp_path, monkeypatch):
    program = of_arrays._program("net")
    with Recorder(tmp_path / "record") as recorder, amanda.apply(recorder):
        program.run(program.x)
    assert recorder.executions == 10  # 5 operators, and 5 backward operators

    def rows():
        diff = CausalDiff(tmp_path / "record", progress=False)
        with amanda.apply(diff):
            program.run(program.x)
        assert diff.compared == 10
        return [(row.name, row.backward_op) for row in diff.rows()]

    assert rows() == []
    kind = of_arrays.KINDS["softmax"]
    wrong = kind._replace(gradient=lambda g, x: (kind.gradient(g, x)[0] * 1.5,))
    monkeypatch.setitem(of_arrays.KINDS, "softmax", wrong)
    assert rows() == [("arrays::softmax", "SoftmaxBackward")]
