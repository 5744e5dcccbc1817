"""Every optimizer of torch.optim, in each of its variants, takes the same steps."""

import inspect

import amanda
import pytest
import torch
import torch.nn.functional as F
from unharmed import TOOLS, check_unharmed, reusable

nn = torch.nn
model = reusable(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
matrices = reusable(nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False)))
OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}


def variants():
    for name, cls in OPTIMIZERS.items():
        yield name, {}
        taken = inspect.signature(cls).parameters
        for option in ("foreach", "fused"):
            if option in taken and (option, name) not in UNSUPPORTED:
                yield name, {option: True}
        for options in MORE.get(name, []):
            yield name, options


# Not on a CPU: "capturable", and what stands here. "differentiable" has a test of its own.
UNSUPPORTED = {("fused", "Adafactor"), ("fused", "SparseAdam")}
MORE = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "foreach": False, "weight_decay": 0.1}],
    "Adam": [{"amsgrad": True, "foreach": False}, {"maximize": True}],
    "AdamW": [{"amsgrad": True, "fused": True}],
    "RMSprop": [{"centered": True, "momentum": 0.5}],
    "LBFGS": [{"line_search_fn": "strong_wolfe"}],
}


def train(name, options):
    net = (matrices if name == "Muon" else model)()
    x, target = torch.randn(6, 4), torch.randn(6, 2)
    if name == "SparseAdam":
        table = nn.Embedding.from_pretrained(torch.randn(6, 3), freeze=False, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([1, 4, 1])).sum().backward()
            optimizer.step()
        return table.weight
    optimizer = OPTIMIZERS[name](net.parameters(), lr=0.05, **options)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), target)
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return losses, list(net.parameters()), optimizer.state_dict()["state"]


VARIANTS = [(*variant, list(TOOLS)[i % len(TOOLS)]) for i, variant in enumerate(variants())]


@pytest.mark.parametrize(("name", "options", "kind"), VARIANTS, ids=str)
def test_steps(name, options, kind):  # each variant under one of the tools
    tool = check_unharmed(TOOLS[kind](), lambda: train(name, options))
    if name != "SparseAdam":
        assert tool.count["linear"] == tool.count["AddmmBackward0"] or name == "Muon"
    if options.get("fused"):
        assert any(op.startswith("_fused") for op in tool.count)
    if options.get("foreach"):
        assert any(op.startswith("_foreach") for op in tool.count)


def test_every_optimizer_is_tried():
    assert {name for name, _ in variants()} == set(OPTIMIZERS)
    assert len(OPTIMIZERS) >= 13


def test_a_differentiable_step(unharmed):
    def program():
        w, rate = torch.ones(3, requires_grad=True), torch.tensor(0.1, requires_grad=True)
        p = w.clone()
        optimizer = torch.optim.SGD([p], lr=rate, differentiable=True)
        p.grad = (w * 2).detach() * rate.detach() + w
        optimizer.step()
        p.sum().backward()
        return p, w.grad, rate.grad

    unharmed(program)


def test_schedulers_hooks_groups_and_averages(unharmed):
    averaged = torch.optim.swa_utils.AveragedModel(model())
    as_new = reusable(averaged)

    def program():
        net, average, seen = model(), as_new(), []
        optimizer = torch.optim.SGD(
            [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.01}], lr=0.1, momentum=0.9
        )
        optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
        optimizer.register_step_post_hook(lambda *args: seen.append("after"))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.01], total_steps=4)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            scaler.scale(net(torch.randn(3, 4)).square().sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            average.update_parameters(net)
        return seen, list(net.parameters()), list(average.parameters()), optimizer.state_dict(), scheduler.get_last_lr()

    unharmed(program)


def test_steps_in_the_backward_pass(unharmed):
    def program():
        net = model()
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(step) for p in net.parameters()]
        for _ in range(2):
            net(torch.randn(3, 4)).square().sum().backward()
        for handle in handles:
            handle.remove()
        return list(net.parameters())

    unharmed(program)


def test_an_optimizer_made_in_a_scope_goes_on_outside(recorder):
    def steps(scopes):
        torch.manual_seed(0)
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        for inside in (True, False, True):
            with scopes if inside and scopes else amanda.apply(amanda.Tool()):
                optimizer.zero_grad()
                net(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
        return [p.detach().clone() for p in net.parameters()]

    expected = steps(None)
    assert all(torch.equal(a, b) for a, b in zip(steps(amanda.apply(recorder(nested=True))), expected, strict=True))
