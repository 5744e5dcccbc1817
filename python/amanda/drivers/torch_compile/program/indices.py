"""Lists as indices, of which PyTorch makes tensors, as in `x[:, [0, 2]]`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from amanda.drivers.torch_compile.program.calls import Constant

#: The functions of Python that index a tensor, which is their first argument. The index is the second one.
INDEXING = (operator.getitem, operator.setitem)


def with_tensors(args: Sequence[Any], made: list[tuple[torch.Tensor, Constant]]) -> Sequence[Any]:
    """The arguments with a fake tensor instead of each list of integers in the index; adds these to `made`.

    Other lists stay: Dynamo compiles no lists of booleans, and PyTorch takes some nested ones for tuples. So do those that
    index a tensor of another device: a constant is on the CPU.
    """
    tensor, index, *rest = args
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        return args

    def made_of(member: Any) -> Any:
        if not isinstance(member, list | range) or not member or any(type(each) is not int for each in member):
            return member
        values = list(member)
        made.append((torch.empty(len(values), dtype=torch.int64), Constant(values, torch.int64)))
        return made[-1][0]

    return (tensor, tuple(map(made_of, index)) if isinstance(index, tuple) else made_of(index), *rest)
