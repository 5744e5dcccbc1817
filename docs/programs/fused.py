"""A tool that runs each linear layer and its ReLU as one function."""

import torch.nn.functional as F
from amanda.tools.rewriting import SubgraphRewriting


def linear_relu(linear, relu):
    return F.linear(linear.input, linear.weight, linear.bias).clamp(min=0)  # in its place, a kernel of yours


class Fused(SubgraphRewriting):
    def __init__(self):
        super().__init__(["linear", "relu"], linear_relu)
