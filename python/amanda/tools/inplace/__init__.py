"""InplaceErrors: which operator wrote to a tensor that the backward pass needs."""

from .finding import InplaceFinding, SecondPass
from .inplace_errors import InplaceErrors
from .refused import RefusedWrite

__all__ = ["InplaceErrors", "InplaceFinding", "RefusedWrite", "SecondPass"]
