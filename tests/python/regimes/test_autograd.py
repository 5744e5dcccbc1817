"""Autograd's own ways: second derivatives, jacobians, saved-tensor hooks, anomaly mode, functions, retained graphs."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from unharmed import reusable

nn = torch.nn
model = reusable(nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 2)))


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def test_a_gradient_penalty(unharmed):
    def program():
        net, x = model(), leaf(3, 4)
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        ((gradient.norm(dim=1) - 1) ** 2).mean().backward()
        return gradient, x.grad, gradients(net)

    tool = unharmed(program)
    assert tool.count["AddmmBackward0"] >= 2


def test_third_derivatives(unharmed):
    def program():
        x = leaf(3)
        y, found = (x.sin() * x**3).sum(), []
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            found.append(y)
        return found

    assert unharmed(program).count["SinBackward0"] >= 1


FUNCTIONAL = {
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),
    "jacobian, recorded": lambda f, x: torch.autograd.functional.jacobian(f, x, create_graph=True),
    "jacobian, vectorized": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "jacobian, forward mode": lambda f, x: torch.autograd.functional.jacobian(
        f, x, vectorize=True, strategy="forward-mode"
    ),
    "hessian": lambda f, x: torch.autograd.functional.hessian(lambda v: f(v).sum(), x),
    "hessian, vectorized": lambda f, x: torch.autograd.functional.hessian(lambda v: f(v).sum(), x, vectorize=True),
    "hessian, forward over reverse": lambda f, x: torch.autograd.functional.hessian(
        lambda v: f(v).sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "vjp": lambda f, x: torch.autograd.functional.vjp(f, x, torch.ones(3, 2)),
    "jvp": lambda f, x: torch.autograd.functional.jvp(f, x, torch.ones(3, 4)),
    "vhp": lambda f, x: torch.autograd.functional.vhp(lambda v: f(v).sum(), x, torch.ones(3, 4)),
    "hvp": lambda f, x: torch.autograd.functional.hvp(lambda v: f(v).sum(), x, torch.ones(3, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_autograd_functional(name, unharmed):
    net = model()
    tool = unharmed(lambda: FUNCTIONAL[name](net, torch.randn(3, 4)))
    assert tool.count["linear"] >= 2


def test_saved_tensor_hooks(unharmed, tmp_path):
    def program():
        x, packed, net = leaf(3, 4), [], model()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(tuple(t.shape)) or t.numpy(force=True).copy(), torch.from_numpy
        ):
            y = net(x).square().sum()
        with torch.autograd.graph.save_on_cpu():
            z = net(x).exp().sum()
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            w = net(x).sum()
        (y + z + w).backward()
        return packed, x.grad, gradients(net)

    unharmed(program)


def test_hooks_that_multiply_by_being_called_twice_would_show(unharmed):
    """Packing and unpacking each happen exactly as often as without a tool."""

    def program():
        counted = [0, 0]

        def pack(t):
            counted[0] += 1
            return t

        def unpack(t):
            counted[1] += 1
            return t

        x = leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x.exp()
            y = y.relu_().mul_(2) * x
            y[:2].mul_(x[:2])
        y.sum().backward()
        return counted, x.grad

    unharmed(program)


def test_anomaly_mode(unharmed):
    def program():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.set_detect_anomaly(True):
                x = leaf(3)
                (x.exp() * 2).sum().backward()
                y = (leaf(3) * 0).log()
                try:
                    (y * 0).sum().backward()
                except RuntimeError as error:
                    return x.grad, str(error)

    unharmed(program, all_end=True)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dirty):
        ctx.save_for_backward(x)
        if dirty:
            ctx.mark_dirty(x)
            return x.mul_(1)
        ctx.mark_non_differentiable(out := (x > 0))
        ctx.set_materialize_grads(False)
        return x**2, out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, *_):
        (x,) = ctx.saved_tensors
        return None if gradient is None else 2 * x * gradient, None


def test_custom_functions(unharmed):
    def program():
        x = leaf(3)
        y, sign = Square.apply(x, False)
        y.sum().backward()
        return y, sign, x.grad

    assert unharmed(program).count["SquareBackward"] == 1


def test_retained_graphs_and_inputs(unharmed):
    def program():
        net, x = model(), leaf(3, 4)
        h = net[0](x)
        h.retain_grad()
        y = net[2](net[1](h)).sum()
        y.backward(retain_graph=True)
        y.backward(inputs=[net[0].weight], retain_graph=True)
        return (
            h.grad,
            x.grad,
            gradients(net),
            torch.autograd.grad(y, [h, x], retain_graph=True),
            torch.autograd.grad(y, net[2].bias, allow_unused=True),
        )

    unharmed(program)


def test_hooks_of_the_users(unharmed):
    def program():
        net, x, seen = model(), leaf(3, 4), []
        handles = [
            x.register_hook(lambda g: g * 2),
            net[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item())),
            net[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,)),
            net[2].register_full_backward_pre_hook(lambda m, go: (go[0] / 2,)),
            net[0].register_forward_hook(lambda m, i, o: o + 1),
            net[2].register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
        ]
        y = net(x)
        y.grad_fn.register_prehook(lambda go: seen.append(len(go)))
        y.grad_fn.register_hook(lambda gi, go: seen.append(len(gi)))
        (y.sin().sum() + y.sum()).backward()
        for handle in handles:
            handle.remove()
        return seen, x.grad, gradients(net)

    unharmed(program)


def test_multi_grad_hooks_and_gradient_edges(unharmed):
    def program():
        a, b, seen = leaf(3), leaf(3), []
        handle = torch.autograd.graph.register_multi_grad_hook(
            [a, b], lambda g: seen.append([each.sum() for each in g])
        )
        y = (a * b).exp()
        edge = torch.autograd.graph.get_gradient_edge(y)
        (gradient,) = torch.autograd.grad(y.sum(), edge, retain_graph=True)
        y.sum().backward()
        handle.remove()
        return seen, gradient, a.grad, b.grad

    unharmed(program)


def test_in_place_operators_and_views_in_training(unharmed):
    def program():
        x, w = torch.randn(4, 3), leaf(3, 3)
        h = x @ w
        h[0].mul_(2)
        h = h.relu_() * 1
        h[:, 1] += h[:, 0].clone()
        h.t().add_(1)
        F.dropout(h, 0.5, inplace=True)
        h = F.silu(h.clone(), inplace=True) * 1
        h.unsqueeze_(0).squeeze_(0)
        h.masked_fill_(h > 1, 0.5).index_add_(0, torch.tensor([1]), torch.ones(1, 3))
        h.square().sum().backward()
        return h, w.grad

    tool = unharmed(program)
    assert "CopySlices" in tool.count


def test_gradients_of_gradients_of_in_place(unharmed):
    def program():
        w = leaf(3)
        (first,) = torch.autograd.grad((w * 1).mul_(w).sin_().sum(), w, create_graph=True)
        return first, torch.autograd.grad(first.sum(), w)

    unharmed(program)


def test_accumulation_over_several_steps(unharmed):
    def program():
        net = model()
        for _ in range(3):
            (net(torch.randn(2, 4)).sum() / 3).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        return norm, gradients(net)

    unharmed(program)


def test_gradients_that_are_sparse(unharmed):
    table = reusable(nn.Embedding(6, 3, sparse=True))

    def program():
        embedding = table()
        embedding(torch.tensor([1, 4, 1])).sum().backward()
        return embedding.weight.grad, embedding.weight.grad.coalesce()

    unharmed(program)


def test_an_undefined_gradient(unharmed):
    def program():
        x = leaf(4)
        a, _ = x.split(2)
        _, d = torch.linalg.qr(x.view(2, 2))
        (a.sum() + d.sum()).backward()
        return x.grad

    unharmed(program)
