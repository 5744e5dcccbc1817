"""The calls that an operator of a compiled function of PyTorch makes. This module imports torch.

`call_of` makes an `InnerCall` of an operator and the shapes of its operands (`shapes_of`, `as_shown`, `with_gradients`). It
runs again without values, and lists the calls inside it; `differentiate` runs its backward pass. `is_replaced` finds out
whether a tool has replaced an operator.
"""

from amanda.core.op_context import OpContext
from amanda.drivers.torch_compile.program.inner_calls import (
    InnerCall,
    UnknownOperandError,
    as_shown,
    call_of,
    differentiate,
    shapes_of,
    with_gradients,
)

__all__ = [
    "InnerCall",
    "UnknownOperandError",
    "as_shown",
    "call_of",
    "differentiate",
    "is_replaced",
    "shapes_of",
    "with_gradients",
]


def is_replaced(context: OpContext) -> bool:
    """True if a tool runs a routine instead of the operator. It may not be known before the operator first runs."""
    return any(action.when == "replace" and not action.removed for action in context._handle.actions())
