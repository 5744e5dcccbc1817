"""PyTorch, one operator at a time."""

from __future__ import annotations

import amanda
from adapter import Capabilities
from torch_values import Model, PyTorch


class PyTorchEager(PyTorch):
    name = f"pytorch/{PyTorch.minor}/eager"
    capabilities = Capabilities(backward="nodes", both_sides=True)
    same_ids_as = None

    apply = staticmethod(amanda.apply)
    build = staticmethod(Model)


ADAPTER = PyTorchEager()
