"""Tools that edit, in two processes that train one model together: as if one process had seen both batches."""

import amanda
import pytest
import torch
from amanda.research import LearnedStepQuantization
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import ActivationPruning, ChannelPruning, TilewisePruning
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import FakeQuantization
from amanda.tools.rewriting import SubgraphRewriting
from process_groups import destroy_group
from rank_programs import Ranks

nn = torch.nn
STEPS, RANKS = 4, 2


def leaky(linear, relu):
    return nn.functional.leaky_relu(linear.op(linear.input, linear.weight, linear.bias), 0.2)


TOOLS = {
    "none": amanda.Tool,
    "magnitude": lambda: MagnitudePruning(0.5),
    "vectorwise": VectorwisePruning,
    "fake quantization": FakeQuantization,
    "learned steps": LearnedStepQuantization,
    "tilewise": lambda: TilewisePruning(0.5, tile=4),
    "activation": lambda: ActivationPruning(threshold=0.1),
    "channel": ChannelPruning,
    "errors": lambda: ErrorInjection(BitFlip(20), ops="linear", rate=0.1, seed=0),
    "rewriting": lambda: SubgraphRewriting(["linear", "relu"], leaky),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(5, 2, 4, 4, generator=generator) for _ in range(STEPS)]


def train_on_a_rank(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=RANKS)
    trained = {}
    for name, make in TOOLS.items():
        model = make_model()
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scope = amanda.apply(make())
        for batch in batches(rank):
            optimizer.zero_grad()
            torch.manual_seed(1)  # gates are drawn
            with scope:
                parallel(batch).square().mean().backward()
            optimizer.step()
        trained[name] = [parameter.detach() for parameter in model.parameters()]
    torch.save(trained, f"{path}/{rank}.pt")
    destroy_group()


def train_alone(make):
    """Both ranks' batches, one after the other; each rank has its own tool, as each process has."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scopes = [amanda.apply(make()) for _ in range(RANKS)]
    for of_ranks in zip(*map(batches, range(RANKS)), strict=True):
        gradients = []
        for scope, batch in zip(scopes, of_ranks, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(1)
            with scope:
                model(batch).square().mean().backward()
            gradients.append([parameter.grad / RANKS for parameter in model.parameters()])
        for parameter, *parts in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = sum(parts)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def trained(preloaded, tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    Ranks(preloaded, path).function(train_on_a_rank, RANKS, str(path))
    return [torch.load(path / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", TOOLS)
def test_every_rank_has_the_weights_that_one_process_would_have(name, trained):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on the ranks: sums are the same to the bit
    try:
        expected = train_alone(TOOLS[name])
    finally:
        torch.set_num_threads(threads)
    for of_rank in trained:
        assert all(map(torch.equal, of_rank[name], expected))


def test_the_tools_change_something(trained):
    edited = dict(trained[0])
    unchanged = edited.pop("none")
    for name, weights in edited.items():
        assert not all(map(torch.equal, weights, unchanged)), name
