"""History where the model is compiled: it stays compiled, and its parameters have their series."""

import amanda
import pytest
import torch
from amanda.tools.history import History


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(history, *, compiled=True, scale=None, passes=1, steps=4):
    """Returns the norms of the gradients in each step, by parameter: what autograd accumulated in one backward pass."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    graphs = []

    def backend(graph, inputs):
        return lambda *inputs: (graphs.append(1), graph(*inputs))[1]

    run = torch.compile(model, backend=backend) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
    history.watch(model)
    norms = []
    with amanda.scheduled(history) as scope:
        for _ in range(steps):
            for _ in range(passes):
                loss = run(torch.randn(16, 4)).square().mean()
                (scaler.scale(loss) if scaler else loss).backward()
            grads = {name: parameter.grad for name, parameter in model.named_parameters()}
            norms.append({name: grad.double().norm().item() / (scale or 1) for name, grad in grads.items()})
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
            optimizer.zero_grad()
            scope.step()
    assert (len(graphs) == passes * steps) is compiled
    return norms


def series(history, quantity):
    rows = [row for row in history.rows("step") if (row.tool, row.quantity) == ("parameters", quantity)]
    steps = sorted({row.step for row in rows})
    return [{row.name: row.value for row in rows if row.step == step} for step in steps]


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("compiled", [True, False])
def test_norms_are_those_of_the_gradients(compiled, scale):
    history = History(tools=None, limits=None)
    norms = train(history, compiled=compiled, scale=scale)
    found = series(history, "gradient_norm")
    assert [found_in.keys() for found_in in found] == [norm.keys() for norm in norms]
    assert found == [pytest.approx(norm, rel=1e-5) for norm in norms]
    assert not history.skipped


def test_all_series_of_eager_mode_are_there():
    compiled, eager = History(limits=None), History(limits=None)
    train(compiled, passes=2)
    train(eager, compiled=False, passes=2)

    def numbers(history):
        rows = [row for row in history.rows("step") if row.tool in ("parameters", "scalars")]
        return {(row.step, row.name, row.quantity): row.value for row in rows}

    assert numbers(compiled) == pytest.approx(numbers(eager), rel=1e-5)
    quantities = {quantity for _, _, quantity in numbers(eager)}
    assert {"gradient_norm", "optimizer_gradient_norm", "update_norm", "norm"} <= quantities


def test_a_vanishing_gradient_is_an_alarm():
    history = History(on_alarm=lambda alarm: None)
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (torch.nn.Linear(8, 8), torch.nn.Sigmoid())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1))
    history.watch(model)
    run = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with amanda.scheduled(history) as scope:
        for _ in range(8):
            optimizer.zero_grad()
            run(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            scope.step()
    found = [alarm for alarm in history.alarms if alarm.kind == "vanishing gradient"]
    assert found, history.alarms


def test_nothing_is_left_on_the_model():
    history = History(limits=None)
    model = torch.nn.Linear(4, 1)
    history.watch(model)
    run = torch.compile(model, backend="eager")
    with amanda.scheduled(history) as scope:
        for _ in range(2):
            run(torch.randn(3, 4)).sum().backward()
            scope.step()
    counted = len(series(history, "gradient_norm"))
    run(torch.randn(3, 4)).sum().backward()
    assert len(series(history, "gradient_norm")) == counted == 2
    assert all(not parameter._backward_hooks for parameter in model.parameters())
