"""Programs whose values Rematerialization evicts: writes, views, lists, hooks and random numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def write_to_an_input_that_nothing_saved():
    w, b = leaf(8), leaf(8)
    y = ((w * w + b).exp().sin() * w.cos()).tanh().sum()
    with torch.no_grad():
        b.add_(1)
    y.backward()
    return w.grad, b.grad


def write_to_an_activation_that_nothing_saved():
    w = leaf(8)
    a = w + 1
    y = a.exp().sin().sum()
    a.add_(5)
    (y + a.sum()).backward()
    return (w.grad,)


def write_through_data():
    w = leaf(8)
    a = w.exp()
    b = a.sin().tanh()
    a.data.mul_(2)
    b.sum().backward()
    return (w.grad,)


def backward_three_times():
    w = leaf(8)
    y = (w.exp() * w.sin()).tanh().sum()
    for retain in (True, True, False):
        y.backward(retain_graph=retain)
    return (w.grad,)


def double_backward():
    w = leaf(8, 8)
    (gradient,) = torch.autograd.grad((w @ w.exp().tanh()).tanh().sum(), w, create_graph=True)
    gradient.square().sum().backward()
    return (w.grad,)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        result = y * 2
        ctx.save_for_backward(x, y, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, _, result = ctx.saved_tensors
        return gradient * result + x * 0


def custom_function():
    w = leaf(8)
    Scaled.apply(Scaled.apply(w.sin()).tanh().sin()).sum().backward()
    return (w.grad,)


def views():
    w = leaf(6, 4)
    a = (w * 2).exp()
    turned = a.t()[1:3].reshape(2, 2, 3).sin()
    ((turned * a[0, 0]).sum() + (a.view(24)[::2] * turned.flatten()).tanh().sum()).backward()
    return (w.grad,)


def lists_and_several_results():
    w = leaf(6, 4)
    a = w.exp()
    joined = torch.stack([torch.cat([a, a.sin(), w]).tanh(), torch.cat([w, a, w]).cos()])
    y = (joined[:, torch.tensor([0, 2, 2])].exp() * joined[0, 0].mean()).sum()
    largest, _ = joined.max(0)
    top, _ = largest.topk(2)
    y = y + sum(part.sigmoid().sum() for part in a.unbind(0)) + (largest * top[:, :1]).sum()
    (y + sum(part.exp().sum() for part in joined[0].split(5))).backward()
    return (w.grad,)


def numbers():
    w = leaf(8)
    y = ((w * 2.5 + 1) / 3).exp()
    z = (2 ** y.sin()).pow(2) + torch.arange(8) * y
    z.where(z > 0, y * 0.5).clamp(-1, 3).sin().sum().backward()
    return (w.grad,)


def complex_numbers():
    w = leaf(6)
    z = torch.fft.fft(w.exp().sin())
    ((z * z.conj()).real.log().sum() + z.imag.sin().sum()).backward()
    return (w.grad,)


def held_by_the_program():
    w = leaf(8)
    a = w.exp()
    b = a.sin()
    c = b.tanh().cos()
    c.sum().backward()
    return w.grad, a, b, c


def statistics_of_training_and_of_evaluation():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(16, 8)
    model.eval()
    a = model(x).exp()
    model.train()
    b = model(x * 2).sin()
    (a * b).tanh().sum().backward()
    return [parameter.grad for parameter in model.parameters()] + list(model.buffers())


def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    F.cross_entropy(model(torch.randn(2, 5, 8)).flatten(0, 1), torch.arange(10) % 8).backward()
    return [parameter.grad for parameter in model.parameters()]


def recurrent():
    model = nn.LSTM(5, 6, 2, dropout=0.5, bidirectional=True)
    x = leaf(7, 3, 5)
    model(x)[0].square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def one_module_twice():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.GELU())
    model(model(torch.randn(4, 8)).sin()).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def random_operators():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.AlphaDropout(0.2), nn.RReLU(), nn.Linear(8, 8)
    )
    x = model(torch.randn(4, 8)).sin().tanh()
    (x * torch.randn_like(x)).sum().backward()
    return [*(parameter.grad for parameter in model.parameters()), torch.get_rng_state()]


def changed_in_place():
    w = leaf(8)
    a = w.exp()
    b = a.clone()
    b[2:4].mul_(3)
    b.relu_()
    (b.sin().tanh().cos().sigmoid_() * w).sum().backward()
    return (w.grad,)


def hooks_of_the_program():
    w = leaf(8)
    y = w.exp().sin()
    with torch.autograd.graph.save_on_cpu():
        y = y.sin().tanh()
    y.cos().sin().sum().backward()
    return (w.grad,)


def an_operator_that_fails():
    w = leaf(4)
    y = w.exp().sin().tanh()
    with pytest.raises(RuntimeError, match=r"size mismatch|inconsistent"):
        y @ torch.randn(7)
    y.sin().sum().backward()
    return (w.grad,)


def sparse():
    w = leaf(6, 6)
    torch.sparse.mm((torch.eye(6) * 2).to_sparse(), w.exp().sin()).sin().sum().backward()
    return (w.grad,)


PROGRAMS = [
    write_to_an_input_that_nothing_saved,
    write_to_an_activation_that_nothing_saved,
    write_through_data,
    backward_three_times,
    double_backward,
    custom_function,
    views,
    lists_and_several_results,
    numbers,
    complex_numbers,
    held_by_the_program,
    statistics_of_training_and_of_evaluation,
    attention,
    recurrent,
    one_module_twice,
    random_operators,
    changed_in_place,
    hooks_of_the_program,
    an_operator_that_fails,
    sparse,
]
