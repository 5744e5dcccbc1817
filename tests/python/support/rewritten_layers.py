"""Layers that SubgraphRewriting rewrites, the functions that replace them, and the comparison of what they compute."""

import torch
import torch.nn.functional as F


def counts(rewriting):
    return [(row.rewritten, row.kept) for row in rewriting.rows()]


class LinearGelu(torch.autograd.Function):
    """With a backward pass of its own: one that keeps only the input, and computes the product again."""

    runs = 0

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return F.gelu(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx, gradient):
        LinearGelu.runs += 1
        x, weight, bias = ctx.saved_tensors
        inner = torch.ops.aten.gelu_backward(gradient, F.linear(x, weight, bias))
        rows = inner.flatten(0, -2)
        return inner @ weight, rows.t() @ x.flatten(0, -2), rows.sum(0)


def fused(linear, gelu):
    return LinearGelu.apply(linear.input, linear.weight, linear.bias)


LINEAR_GELU = ["linear", "gelu"]


def train(model, program, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(program().float().square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


OF_ALL = ["matmul", "mul", "softmax", "dropout", "matmul"]


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = x * self.gain
        scores = F.dropout(torch.softmax(x @ x.transpose(-2, -1) * 0.5, -1), 0.5, self.training)
        return scores @ x


def with_dropout(scores, scaled, weights, dropped, mixed):
    weights = torch.softmax(scores.self @ scores.other * scaled.other, weights.dim)
    return F.dropout(weights, dropped.p, dropped.train) @ mixed.other


def never(*operators):
    raise AssertionError("it is no match")


class Layer(torch.nn.Module):
    """What `look` returns for the inner result and the last one is the output."""

    def __init__(self, look=lambda h, y: y):
        super().__init__()
        self.linear = torch.nn.Linear(4, 5)
        self.look = look

    def forward(self, x):
        h = self.linear(x)
        return self.look(h, F.gelu(h))


def gelu_of(linear, gelu):
    return F.gelu(F.linear(linear.input, linear.weight, linear.bias))
