"""History under GradScaler: gradients as optimizers get them, before clipping, against what `.grad` has after unscale_."""

import copy
import math

import amanda
import pytest
import torch
from amanda.tools.history import History
from torch import nn

SCALE = 1024.0


def made(kind=torch.optim.SGD, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return (
        net,
        kind(net.parameters(), lr=0.01, **options),
        torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2),
    )


def loss_of(net, step, part=0):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(10 * step + part))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x).float().square().mean()


def norms(net):
    return {name: each.grad.double().norm().item() for name, each in net.named_parameters()}


def found(history, quantity="gradient_norm", tool="parameters"):
    steps = {}
    for row in history.rows("step"):
        if row.tool == tool and (row.quantity == quantity if tool == "parameters" else row.name == quantity):
            steps.setdefault(row.step, {})[row.name] = row.value
    return steps


def run(history, net, optimizer, scaler, explicit, steps=4, clip=None, parts=1):
    """What `.grad` has after unscaling, and the scales."""
    true, scales = {}, {}
    with amanda.scheduled(history) as scope:
        for step in range(steps):
            for part in range(parts):
                scaler.scale(loss_of(net, step, part) / parts).backward()
            scales[step] = scaler.get_scale()
            if explicit:
                scaler.unscale_(optimizer)
                true[step] = norms(net)
            else:
                true[step] = {name: norm / scales[step] for name, norm in norms(net).items()}
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scope.step()
    return true, scales


def close(steps, expected):
    assert steps.keys() == expected.keys()
    for step, values in expected.items():
        assert steps[step] == pytest.approx(values, rel=1e-5), step


@pytest.mark.parametrize(
    ("explicit", "clip"), [(True, None), (True, 0.1), (False, None)], ids=["unscale_", "unscale_ and clipped", "step"]
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {}), (torch.optim.AdamW, {"foreach": True}), (torch.optim.AdamW, {"fused": True})],
)
def test_gradients_are_those_of_the_optimizer_before_clipping(kind, options, explicit, clip):
    history = History(limits=None)
    net, optimizer, scaler = made(kind, **options)
    true, scales = run(history, net, optimizer, scaler, explicit, clip=clip)
    assert len(set(scales.values())) > 1  # it grows meanwhile
    close(found(history), true)
    scaled = {step: {name: norm * scales[step] for name, norm in each.items()} for step, each in true.items()}
    close(found(history, "scaled_gradient_norm"), scaled)
    for name, each in (("gradient_norm", true), ("scaled_gradient_norm", scaled)):
        totals = {step: {name: math.hypot(*values.values())} for step, values in each.items()}
        close(found(history, name, "scalars"), totals)


def test_a_clipped_run_is_the_same_with_a_history():
    plain, watched = made(), made()
    run(History(limits=None, tools=[]), *watched, explicit=True, clip=0.1)
    for step in range(4):
        net, optimizer, scaler = plain
        scaler.scale(loss_of(net, step)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert all(map(torch.equal, plain[0].parameters(), watched[0].parameters()))
    assert plain[2].state_dict() == watched[2].state_dict()


def test_over_several_backward_passes_it_is_their_mean():
    history = History(limits=None)
    net, optimizer, scaler = made()
    reference, expected = copy.deepcopy(net), {}
    for part in range(3):
        (loss_of(reference, 0, part) / 3).backward()
        for name, norm in norms(reference).items():
            expected[name] = expected.get(name, 0) + norm / 3
        reference.zero_grad()
    run(history, net, optimizer, scaler, explicit=False, steps=1, parts=3)
    close(found(history), {0: expected})


def test_a_step_for_each_backward_pass_is_unscaled_where_the_optimizer_does_not_step():
    history, true = History(limits=None), {}
    net, optimizer, scaler = made()
    with amanda.scheduled(history) as scope:
        for step in range(6):
            scaler.scale(loss_of(net, step)).backward()
            true[step] = {name: norm / scaler.get_scale() for name, norm in norms(net).items()}
            if step % 3 == 2:
                before = true[step]
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            scope.step()
    assert before
    close(found(history), true)


def test_a_step_that_is_skipped_has_an_infinite_gradient():
    history = History(limits=None)
    net, optimizer, scaler = made()
    with amanda.scheduled(history) as scope:
        for factor in (1.0, math.inf, 1.0):
            scaler.scale(loss_of(net, 0) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scope.step()
    values = [each["2.bias"] for each in found(history).values()]
    assert [math.isfinite(value) for value in values] == [True, False, True]
    assert values[2] < 100  # under half the scale
    assert list(found(history, "scaled_gradient_norm")) == [0, 1, 2]


def test_two_optimizers_with_scalers_of_their_own_and_one_without():
    torch.manual_seed(0)
    nets = [nn.Linear(8, 1) for _ in range(3)]
    net = nn.ModuleList(nets)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in nets]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (64.0, 4096.0)]
    history, true, raw = History(net, limits=None), {}, {}
    with amanda.scheduled(history) as scope:
        for step in range(2):
            losses = [loss_of(each, step) for each in nets]
            losses = [scaler.scale(loss) for scaler, loss in zip(scalers, losses[:2], strict=True)] + losses[2:]
            sum(losses).backward()
            raw[step] = norms(net)
            true[step] = {name: norm / (64, 4096, 1)[int(name[0])] for name, norm in raw[step].items()}
            for scaler, optimizer in zip(scalers, optimizers[:2], strict=True):
                scaler.step(optimizer)
                scaler.update()
            optimizers[2].step()
            net.zero_grad()
            scope.step()
    assert found(history).keys() == true.keys()
    close(found(history), true)
    close(found(history, "scaled_gradient_norm"), raw)


def test_alternating_optimizers_of_one_scaler():
    """The gradients of the other network are scaled, and dropped before they are unscaled."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 1)})
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in net.values()]
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    history, true = History(net, limits=None), {}
    with amanda.scheduled(history) as scope:
        for step in range(4):
            loss = net["second"](net["first"](torch.ones(2, 8))).square().mean()
            scaler.scale(loss).backward()
            true[step] = {name: norm / SCALE for name, norm in norms(net).items()}
            for optimizer in optimizers if step == 0 else optimizers[step % 2 :][:1]:
                scaler.step(optimizer)
            scaler.update()
            net.zero_grad()
            scope.step()
    close(found(history), true)


def test_gradients_of_results_are_unscaled_too():
    history = History(limits=None)
    net, optimizer, scaler = made()
    run(history, net, optimizer, scaler, explicit=False, steps=1)
    plain = History(limits=None)
    net, optimizer, _ = made()
    run(plain, net, optimizer, torch.amp.GradScaler("cpu", enabled=False), explicit=False, steps=1)
    values = [
        {
            (row.module_path, row.name): row.value
            for row in one.rows("step")
            if row.tool == "gradients" and row.module_path
        }
        for one in (history, plain)
    ]
    assert len(values[0]) == 3
    assert values[0] == pytest.approx(values[1], rel=1e-2)  # bfloat16


def test_without_a_scaler_there_is_no_other_series():
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        history, true = History(limits=None), {}
        net, optimizer, _ = made()
        with amanda.scheduled(history) as scope:
            for step in range(2):
                loss = loss_of(net, step)
                (loss if scaler is None else scaler.scale(loss)).backward()
                true[step] = norms(net)
                optimizer.step() if scaler is None else scaler.step(optimizer)
                optimizer.zero_grad()
                scope.step()
        close(found(history), true)
        assert not [row for row in history.rows() if "scaled" in row.quantity or "scaled" in row.name]


def test_a_product_with_the_same_name_is_no_scaling():
    history, true = History(limits=None), {}
    net, optimizer, _ = made()
    with amanda.scheduled(history) as scope:
        (loss_of(net, 0) * torch.tensor(SCALE)).backward()
        true[0] = norms(net)
        optimizer.step()
        scope.step()
    close(found(history), true)
