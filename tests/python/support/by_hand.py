"""The oracle of edits: what an edited program computes, as a module written by hand."""

import amanda
import torch


class StraightThrough(torch.autograd.Function):
    """What an inserted value should do, by hand: forward f(x), backward the identity."""

    @staticmethod
    def forward(ctx, x, f):
        return f(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def edit(x):
    return x * 2 + 1


def doubled(y, *rest):
    return y * 2


def relu_in_place(x, w):
    return torch.relu_(x @ w) * 3


def gradients(function):
    """Result and gradients of function(x, w), on tensors that are always the same."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, requires_grad=True)
    w = torch.randn(5, 5, requires_grad=True)
    y = function(x, w)
    y.square().sum().backward()
    return [y.detach(), x.grad, w.grad]


def assert_same(tool, program, by_hand, runs=3):
    """Under the tool, in its first and later runs, the program has the values and gradients of the module by hand."""
    expected = gradients(by_hand)
    with amanda.apply(*([tool] if isinstance(tool, amanda.Tool) else tool)):
        results = [gradients(program) for _ in range(runs)]
    for result in results:
        torch.testing.assert_close(result, expected)
