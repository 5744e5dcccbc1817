"""Facts about an operator, found at its analysis. Imports torch."""

from __future__ import annotations

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.schemas import Sides
from amanda.toolkit.torch import running_function

from .flow import Site
from .reasons import LEAVES_PYTORCH


def site_of(context: OpContext) -> Site:
    return Site(Place.of(context), running_function())


def tensors_of(context: OpContext) -> list[str]:
    """The names of the operands that are tensors, or lists of tensors."""
    arguments = context.op.schema.partition("(")[2]
    names = context.op.input_names
    if not arguments:
        return list(names)
    return [name for name, kind in zip(names, _kinds(arguments), strict=False) if "Tensor" in kind]


def _kinds(arguments: str) -> list[str]:
    """The types in "Tensor(a!) self, SymInt[2] size, *) -> ..."; brackets and marks of memory have no ", "."""
    inner = arguments.partition(") -> ")[0]
    return [one.rpartition(" ")[0] for one in inner.split(", ") if one != "*"]


def follows(context: OpContext) -> bool:
    """False for an operator that only asks something of a tensor, as of its type."""
    op = context.op
    return (
        "Tensor" in op.schema.partition(" -> ")[2] or "!" in op.schema or not op.schema or op.__name__ in LEAVES_PYTORCH
    )


def written_by(context: OpContext, names: list[str]) -> list[str]:
    """Those of the operands that it writes to, or detaches. A normalization writes running statistics, too, and does not
    compute with them in training."""
    sides = Sides.of(context)
    found = {*sides.written, *(str(name) for name in sides.changed)}
    return [name for name in names if name in found and not name.startswith("running_")]
