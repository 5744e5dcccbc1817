"""Hooks of the program's own beside a tool's routines."""

import amanda
import torch

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


def test_module_hooks_and_operators_both_work(recorder):
    model, tool = nn.Linear(2, 2), recorder(ops=["linear", "mul"])
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    gradients = []
    model.register_full_backward_hook(lambda module, grad_input, grad_output: gradients.append(grad_output[0].shape))
    with amanda.apply(tool):
        model(X.clone().requires_grad_()).sum().backward()
    assert tool.ran == ["linear", "mul"]
    assert gradients == [(2,)]
