"""InplaceErrors: which operator wrote to a tensor that the backward pass needs."""

from .finding import InplaceFinding
from .inplace_errors import InplaceErrors

__all__ = ["InplaceErrors", "InplaceFinding"]
