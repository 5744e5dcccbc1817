"""NaNSentinel in programs that scale losses, cast, recompute and run in several processes."""

import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteWarning
from process_groups import destroy_group
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Root(nn.Module):
    """Its gradient is zero times infinity where a value is zero."""

    def forward(self, value):
        return value.sqrt() * 0


def findings_of(run, **options):
    sentinel = NaNSentinel(action="warn", **options)
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        run()
    return sentinel.findings()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_gradient_of_a_checkpointed_module_is_named_by_the_module(use_reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Root(), nn.Linear(4, 1))

    def train():
        hidden = checkpoint(model[1:3], model[0](X), use_reentrant=use_reentrant)
        model[3](hidden).sum().backward()

    (found,) = findings_of(train)
    assert (found.kind, found.backward_op, found.module_path) == ("produced", "SqrtBackward0", "2")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_is_recomputed_is_the_same_finding(use_reentrant):
    weight = nn.Parameter(torch.ones(4))

    def train():
        checkpoint(
            lambda v: (v * weight).log().sum(), X.clone().requires_grad_(), use_reentrant=use_reentrant
        ).backward()

    (found,) = findings_of(train)
    assert (found.kind, found.phase, found.name) == ("produced", "forward", "aten::log")
    assert found.cause == "input self is negative"


def test_under_autocast_the_operator_that_overflows_float16_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.constant_(model[2].weight, 40000.0)
    nn.init.constant_(model[2].bias, 60000.0)

    def run():
        with torch.autocast("cpu", torch.float16):
            model(X)

    assert findings_of(run) == []
    (found,) = findings_of(run, inf=True)
    assert (found.kind, found.name, found.module_path) == ("produced", "aten::linear", "2")
    assert found.outputs[0].dtype == "float16"


def test_gradients_that_a_scaler_lets_overflow_are_no_findings_without_gradients():
    def train(scope):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        scales = []
        with scope:
            for _ in range(8):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = model(X).float().square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
        return scales, [parameter.detach() for parameter in model.parameters()]

    expected_scales, expected = train(amanda.apply(amanda.Tool()))
    assert 2.0**20 > expected_scales[0] > expected_scales[-1] == expected_scales[-2], "steps were skipped, then taken"
    sentinel = NaNSentinel(inf=True, backward=False)
    scales, weights = train(amanda.apply(sentinel))
    assert (sentinel.findings(), scales) == ([], expected_scales)
    assert all(map(torch.equal, weights, expected))
    found = findings_of(lambda: train(amanda.apply(amanda.Tool())), inf=True)
    assert {one.phase for one in found} == {"backward"}
    assert found[0].kind == "produced"


RANKS = 2


def train_on_a_rank(rank, path):
    """The second process has data whose logarithm is infinite, times zero."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        for step in range(2):
            optimizer.zero_grad()
            data = X * 0 if rank == 1 and step == 0 else X + 2
            model(data.log() * 0).sum().backward()
            optimizer.step()
    found = [(one.kind, one.phase, one.name, one.parameter) for one in sentinel.findings()]
    torch.save((found, sentinel.propagated), f"{path}/{rank}.pt")
    destroy_group()


def test_of_two_processes_the_one_that_made_it_names_the_operator(ranks, tmp_path):
    ranks.function(train_on_a_rank, RANKS, str(tmp_path))
    (received, after), (made, behind) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    assert made == [("produced", "forward", "aten::mul", "")]
    assert behind > 10
    # the other one gets it in the reduced gradients, and its optimizer is the first to read them
    assert received == [("given", "forward", "aten::add_", "")]
    assert after > 5
