"""Shipped tools skip tensors that they cannot read, count them, log that once, and leave the program's results
unchanged."""

import textwrap

import amanda
import pytest
import torch
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import FakeQuantization
from amanda.tools.statistics import OpStatistics
from torch.fx.experimental.proxy_tensor import make_fx

TOOLS = {
    "coverage": lambda: HookCoverage(torch.nn.Linear(1, 1)),
    "error injection": lambda: ErrorInjection(BitFlip(0), count=3),
    "flops": Flops,
    "gradients": GradientStatistics,
    "graph": GraphTracing,
    "histograms": ValueHistograms,
    "magnitude pruning": MagnitudePruning,
    "profile": Profile,
    "quantization": FakeQuantization,
    "statistics": OpStatistics,
    "vectorwise pruning": VectorwisePruning,
}
every_tool = pytest.mark.parametrize("make", TOOLS.values(), ids=TOOLS)


class Dynamic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x).view(x.shape[0], 2, 2)
        return torch.cat([y, y]).sum(0).expand(x.shape[0], 2, 2) + torch.zeros(x.shape[0], 2, 2)


@pytest.fixture(scope="module")
def exported():
    return export()


def export():
    batch = torch.export.Dim("batch", min=2)
    return str(torch.export.export(Dynamic(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: batch}}).graph)


@every_tool
def test_export_with_dynamic_dimensions(make, exported):
    with amanda.apply(make()):
        assert export() == exported


@every_tool
def test_tracing_with_symbolic_sizes(make):
    def trace():
        traced = make_fx(
            lambda x: (x @ x).view(-1, x.shape[0]).sum(0) + torch.zeros(x.shape[0]), tracing_mode="symbolic"
        )
        return str(traced(torch.randn(3, 3)).graph)

    expected = trace()
    with amanda.apply(make()):
        assert trace() == expected


def test_operators_with_symbols_are_not_shown():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda *results: seen.extend(results)))
    with amanda.apply(tool):
        export()
    assert all(type(size) is int for result in seen if isinstance(result, torch.Tensor) for size in result.shape)


def jagged():
    values = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged, requires_grad=True)
    weight = torch.ones(4, 4, requires_grad=True)
    result = torch.nn.functional.linear(values, weight).sin()
    result.sum().backward()
    return result.values(), weight.grad


def older_vmap():
    x = torch.arange(3.0, requires_grad=True)
    return torch.autograd.grad(x.sin() * 2, x, torch.eye(3), is_grads_batched=True)


def sparse():
    weight = torch.ones(5, 2, requires_grad=True)
    torch.nn.functional.embedding(torch.tensor([1, 3]), weight, sparse=True).sum().backward()
    return (weight.grad.to_dense(),)


def meta():
    layer = torch.nn.Linear(2, 2, device="meta")
    result = layer(torch.empty(1, 2, device="meta"))
    return (torch.ones(result.shape),)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.long()


def integer_gradients():
    x = torch.arange(3.0, requires_grad=True)
    (Rounded.apply(x * 2) * 3).sum().backward()
    return (x.grad,)


@every_tool
@pytest.mark.parametrize("program", [jagged, older_vmap, sparse, meta, integer_gradients])
def test_programs_end_as_without_the_tool(make, program, log):
    expected = program()
    tool = make()
    with amanda.apply(tool):
        results = program()
    if not isinstance(tool, (FakeQuantization, MagnitudePruning, VectorwisePruning)):
        assert all(map(torch.equal, results, expected))
    assert len(log()) == len(getattr(tool, "skipped", ()))  # once for each reason


def test_what_was_skipped_is_counted_and_said_once(log):
    tool = OpStatistics()
    with amanda.apply(tool):
        for _ in range(2):
            torch.ones(2).to_sparse().abs()
    assert tool.skipped == {"sparse": 4}
    assert log() == ["[statistics] skips what it can't read: a sparse tensor (said once)"]
    assert {row.name: row.skipped for row in tool.rows()} == {"aten::ones": 0, "aten::to_sparse": 2, "aten::abs": 2}


def test_norms_of_integer_gradients_are_those_of_their_numbers():
    tool = GradientStatistics()
    with amanda.apply(tool):
        Rounded.apply(torch.tensor([0.4, 1.6], requires_grad=True) * 1).sum().mul(2.6).backward()
    row = next(row for row in tool.rows() if row.backward_op == "RoundedBackward" and row.side == "grad_input")
    assert (row.last, row.skipped) == (8**0.5, 0)
    assert tool.skipped == {}


def test_methods_that_the_program_has_replaced(monkeypatch):
    def numel(tensor):
        raise RuntimeError("not for tools")

    expected = Profile()
    with amanda.apply(expected):
        torch.relu(torch.ones(3))
    tool = Profile()
    monkeypatch.setattr(torch.Tensor, "numel", numel)
    with amanda.apply(tool):
        torch.relu(torch.ones(3))
    assert {row.name: row.output_bytes for row in tool.rows()} == {
        row.name: row.output_bytes for row in expected.rows()
    }


def test_the_table_of_a_profile_shows_what_was_skipped():
    tool = Profile()
    with amanda.apply(tool):
        torch.relu(torch.ones(3))
    assert tool.table().caption is None
    tool._skips.add("symbolic")
    assert tool.table().caption.plain == "skipped: 1 symbolic"


DISTRIBUTED = """
    import os, torch, amanda
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from amanda.tools.gradients import GradientStatistics
    from amanda.tools.graph import GraphTracing
    from amanda.tools.profile import Profile
    from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
    from amanda.tools.quantization import FakeQuantization
    from amanda.tools.statistics import OpStatistics
    from process_groups import destroy_group

    dist.init_process_group("gloo", init_method="file://{file}", world_size=2, rank=int(os.environ["RANK"]))
    mesh = init_device_mesh("cpu", (2,))

    def program():
        torch.manual_seed(0)
        w = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]).requires_grad_()
        x = distribute_tensor(torch.randn(2, 4), mesh, [Replicate()])
        torch.nn.functional.linear(x, w).sum().backward()
        return w.grad.full_tensor()

    expected = program()
    for make in (FakeQuantization, OpStatistics, GradientStatistics, GraphTracing, Profile, MagnitudePruning,
                 VectorwisePruning):
        tool = make()
        with amanda.apply(tool):
            result = program()
        print(make.__name__, torch.equal(result, expected), *tool.skipped)
    destroy_group()
"""


def test_distributed_tensors_on_two_processes(ranks, tmp_path):
    program = textwrap.dedent(DISTRIBUTED).replace("{file}", str(tmp_path / "store"))
    for output in ranks.program(program, 2):
        lines = dict(line.split(" ", 1) for line in output.splitlines())
        assert lines["FakeQuantization"] == lines["MagnitudePruning"] == "True distributed"
        assert set(lines["OpStatistics"].split()) == {"True", "distributed", "unwritten"}  # buffers of collectives
        assert lines["VectorwisePruning"] == "True distributed"
        assert all(line.startswith("True") for line in lines.values())
