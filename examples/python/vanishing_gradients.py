"""Finds where the gradient gets lost, by the norm of each parameter's gradient over a training run, layer by layer.

Behind a sigmoid a gradient shrinks to a quarter at best. Eight of them leave next to nothing for the first layer, and
the loss alone does not show it. The same network is trained with sigmoids and with ReLUs.
"""

import amanda
import torch
from amanda.tools.gradients import GradientStatistics


def train(activation, steps=20):
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(16, 16), activation())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(64, 16)
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
            optimizer.step()
    return gradients


torch.set_num_threads(1)  # the tensors are small
for activation in (torch.nn.Sigmoid, torch.nn.ReLU):
    table = train(activation).to_pandas()
    weights = table[(table["backward_op"] == "TBackward0") & (table["side"] == "grad_input")]
    weights = weights.sort_values("module_path", key=lambda paths: paths.astype(int))
    first, last = weights["mean"].iloc[0], weights["mean"].iloc[-1]
    print(f"{activation.__name__}: the first layer's gradient is {first / last:.2g} of the last one's")
    print(weights[["module_path", "calls", "min", "max", "mean"]].to_string(index=False, float_format="{:.2g}".format))
