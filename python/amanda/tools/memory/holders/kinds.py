"""The types that a search knows: of PyTorch, or, where that is not imported, of TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

ATOMS: tuple[type, ...] = ()
"""Types whose objects lead to no tensor."""
TENSOR: Any
"""The base of tensors."""
NODE: Any = ()
"""The base of nodes of autograd's graphs."""
MODULE: Any = None
OPTIMIZER: Any = None
RUN_MODULE: Any = None
"""The code that runs a module."""
untouched: Any = contextlib.nullcontext
"""A context in which reading a tensor's attributes calls nothing of the program."""

if "torch" in sys.modules:
    import torch

    from amanda.toolkit.torch import RUN_MODULE as _run_module
    from amanda.toolkit.torch import TensorBase, WithoutTorchFunction

    ATOMS = (torch.Size, torch.dtype, torch.device, torch.layout)
    TENSOR, NODE = TensorBase, torch.autograd.graph.Node
    MODULE, OPTIMIZER, RUN_MODULE = torch.nn.Module, torch.optim.Optimizer, _run_module
    untouched = WithoutTorchFunction
else:
    import tensorflow as tf

    from amanda.toolkit.tensorflow import EagerTensor, SymbolicTensor

    ATOMS = (tf.Operation, SymbolicTensor)  # a graph has thousands, and itself what it has captured
    TENSOR = EagerTensor
