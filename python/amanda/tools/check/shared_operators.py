"""Operators that several rules look at, most of them of layers and losses of Keras: rules that ask for the same operators
share a tool, of which a thread bears 64."""

OPERATORS = tuple(
    f"tensorflow::{name}"
    for name in ("Cast", "GatherV2", "Mul", "ResourceGather", "Reshape", "SparseSoftmaxCrossEntropyWithLogits")
)

OF_LOSSES = ("mul", "cross_entropy_loss", "nll_loss_nd", *OPERATORS)
"""Also of PyTorch."""

WITH_OUTPUTS = tuple(
    f"tensorflow::{name}"
    for name in (
        *("AddV2", "BiasAdd", "Conv2D", "MatMul", "Mean", "Mul", "RealDiv", "Sub", "Sum"),
        *("GatherV2", "ResourceGather"),
    )
)
"""Rules look at these after they have run. Most functions that a graph is traced from have one of them."""
