"""Which warnings of libraries are no errors, and how many threads PyTorch may use."""

import gc

import pytest
import torch

THEIRS = [
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning:transformers",
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning:pytorch_lightning",
    "ignore::UserWarning:opacus",
    "ignore::UserWarning:captum",
    "ignore:HookedTransformer is deprecated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:The PyTorch API of nested tensors is in prototype:UserWarning",
    "ignore:Sparse CSR tensor support is in beta:UserWarning",
    "ignore:Full backward hook is firing when gradients are computed with respect to module outputs:UserWarning",
]


def pytest_configure(config: pytest.Config) -> None:
    for line in THEIRS:
        config.addinivalue_line("filterwarnings", line)
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Each test ends with `gc.collect`: it looks at what they made, and not at all of these libraries each time."""
    gc.collect()
    gc.freeze()
