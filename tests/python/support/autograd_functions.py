"""Autograd functions that several tests apply."""

import torch


class Split(torch.autograd.Function):
    """Two results, one of which has no gradient; `setup_context`; an attribute that is a tensor."""

    @staticmethod
    def forward(x):
        y = x.exp()
        return y, y.argmax(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        y, index = output
        ctx.y = y
        ctx.mark_non_differentiable(index)

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.y
