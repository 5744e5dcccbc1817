"""no_grad, inference_mode and autocast beside a scope, in every order."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from unharmed import reusable

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


@pytest.mark.parametrize("ops", [None, ["relu", "sin", "cos", "tan", "exp"]], ids=["all", "some"])
def test_scopes_and_inference_mode_may_be_interleaved(ops, recorder):
    tool = recorder(ops=ops)
    scope = amanda.apply(tool)

    mode = torch.inference_mode()
    scope.__enter__()
    mode.__enter__()
    torch.relu(X)  # seen
    scope.__exit__(None, None, None)
    torch.sin(X)
    mode.__exit__(None, None, None)  # puts back the state in which the scope was open
    torch.sin(X)
    assert tool.ran == ["relu"]

    mode = torch.inference_mode()
    mode.__enter__()
    scope.__enter__()
    torch.cos(X)  # seen
    mode.__exit__(None, None, None)  # puts back the state in which it was not
    torch.tan(X)  # seen
    scope.__exit__(None, None, None)
    torch.exp(X)
    assert tool.ran == ["relu", "cos", "tan"]


def test_inference_mode_as_a_decorator(recorder):
    tool = recorder(ops=["relu", "sin"])

    @torch.inference_mode()
    def forward():
        return torch.relu(X)

    with amanda.apply(tool):
        assert forward().is_inference()
        torch.sin(X)
    assert tool.ran == ["relu", "sin"]


def test_no_grad_is_unharmed(recorder):
    x = X.clone().requires_grad_()
    with amanda.apply(recorder()), torch.no_grad():
        assert not torch.relu(x).requires_grad
        with torch.enable_grad():
            assert torch.relu(x).requires_grad


def test_autocast_gives_the_same_types_and_gradients(recorder):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), torch.randn(2, 4)

    def train():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            loss = F.mse_loss(y, x)
        loss.backward()
        return [y.detach(), loss.detach(), *(p.grad for p in model.parameters())]

    expected = train()
    tool = recorder()
    with amanda.apply(tool):
        got = train()
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert tool.ran[:3] == ["linear", "layer_norm", "linear"]


# ---- bit-equal, with events where they belong ------------------------------------------------------------------------


small_model = reusable(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.25), nn.Linear(8, 2)))


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def test_training_under_autocast(unharmed):
    def program():
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(model(torch.randn(3, 4)), torch.ones(3, 2))
            loss.backward()
            optimizer.step()
        return loss, *model.parameters(), *gradients(model)

    tool = unharmed(program)
    assert tool.count["linear"] in (4, 8)  # below autocast, too, for who looks inside
    assert tool.count["AddmmBackward0"] == 4


def test_autocast_nested_in_autocast(unharmed):
    weight = torch.randn(4, 4, requires_grad=True)

    def program():
        x, results = torch.randn(2, 4), []
        with torch.autocast("cpu", torch.bfloat16):
            results.append(x @ weight)
            with torch.autocast("cpu", enabled=False):
                results.append(x @ weight)
            with torch.autocast("cpu", torch.float16, cache_enabled=False):
                results += [x @ weight, (x @ weight).softmax(1)]
            results.append(F.linear(x, weight))  # the weight's cast comes from the cache
        return results, torch.autograd.grad(sum(each.float().sum() for each in results), weight)

    assert unharmed(program).count["matmul"] in (4, 8)


@pytest.mark.parametrize("order", ["scope first", "autocast first", "interleaved"])
def test_autocast_entered_and_left_in_any_order(order, recorder):
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    tool = recorder(ops="matmul")
    scope, cast = amanda.apply(tool), torch.autocast("cpu", torch.bfloat16)
    first, second = (scope, cast) if order == "scope first" else (cast, scope)
    first.__enter__()
    second.__enter__()
    assert (x @ weight).dtype == torch.bfloat16
    (first if order == "interleaved" else second).__exit__(None, None, None)
    x @ weight
    (second if order == "interleaved" else first).__exit__(None, None, None)
    assert (x @ weight).dtype == torch.float32
    assert len(tool.ran) == (2 if order == "scope first" else 1 + (order == "interleaved"))


def test_no_grad_and_enable_grad(unharmed):
    def program():
        model, x = small_model(), torch.randn(3, 4)
        with torch.no_grad():
            first = model(x)
            with torch.enable_grad():
                second = model(x)
        with torch.set_grad_enabled(False):
            third = model(x)
        second.sum().backward()
        return first, second, third, gradients(model)

    tool = unharmed(program)
    assert tool.count["linear"] == 6
    assert tool.count["AddmmBackward0"] == 2


def test_inference_mode_around_a_model(unharmed):
    def program():
        model = small_model()
        with torch.inference_mode():
            y = model(torch.randn(3, 4))
            with torch.inference_mode(False):
                z = model(torch.randn(3, 4))
        z.sum().backward()
        return y.is_inference(), y, z.is_inference(), z, gradients(model)

    assert unharmed(program).count["linear"] == 4


# Entered and left in every order that keeps "entered before left": I and i inference_mode, S and s the scope.
def orders(events="IiSs", done=""):
    if not events:
        yield done
    for event in events:
        if event.isupper() or event.upper() in done:
            yield from orders(events.replace(event, ""), done + event)


ORDERS = [*orders(), *(order.replace("I", "G").replace("i", "g") for order in orders()), "IGSgsi", "SIsGSgis", "ISiIsi"]


@pytest.mark.parametrize("ops", [None, ["relu", "sin"]], ids=["all", "some"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_interleaving_with_inference_mode_and_no_grad(order, ops, recorder):
    """After each step: seen exactly where the scope is open, and in the mode that PyTorch says."""
    tool, x = recorder(ops=ops), X.clone().requires_grad_()
    scope, made = amanda.apply(tool), {"I": torch.inference_mode, "G": torch.no_grad}
    open_modes, entered = {}, 0
    plain = []  # without a scope, first

    def walk(with_scope):
        nonlocal entered
        answers = []
        for step in order:
            if step.upper() == "S":
                if with_scope:
                    scope.__enter__() if step == "S" else scope.__exit__(None, None, None)
                    entered += 1 if step == "S" else -1
            elif step.isupper():
                open_modes[step] = made[step]()
                open_modes[step].__enter__()
            else:
                open_modes.pop(step.upper()).__exit__(None, None, None)
            tool.ran.clear()
            y = torch.relu(torch.sin(x))
            assert tool.ran == (["sin", "relu"] if entered else [])
            answers.append((y.requires_grad, y.is_inference(), torch.is_grad_enabled(), y.tolist()))
        return answers

    plain = walk(False)
    assert walk(True) == plain
