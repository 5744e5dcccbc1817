"""Writes that PyTorch refuses: to leaves, and to views that may not be written to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from amanda.toolkit import Place

from .called import at
from .finding import op_of, remedy_of

LEAF, VIEW_OF_LEAF = "a leaf", "a view of a leaf"
SEVERAL_VIEWS, FUNCTIONS_VIEW = "one of several views", "a view from an autograd.Function"
NO_GRAD_VIEW, INFERENCE = "a view made in no_grad", "a tensor of inference mode"
_KINDS = {  # by what is in PyTorch's errors
    "a view of a leaf Variable that requires grad is being used in an in-place operation": VIEW_OF_LEAF,
    "a leaf Variable that requires grad is being used in an in-place operation": LEAF,
    "is the output of a function that returns multiple views": SEVERAL_VIEWS,
    "was created inside a custom Function": FUNCTIONS_VIEW,
    "A view was created in no_grad mode and is being modified inplace": NO_GRAD_VIEW,
    "Inplace update to inference tensor outside InferenceMode": INFERENCE,
}


class Begun(NamedTuple):
    """An operator that is about to write to these inputs."""

    site: Any  # writes.Site
    tensors: Sequence[tuple[str, Any]]  # with the names of the inputs


@dataclasses.dataclass(frozen=True)
class RefusedWrite:
    """An operator to which PyTorch did not allow to write to a tensor."""

    place: Place  #: the operator
    operand: str  #: its input: "self", "out"
    kind: str  #: of tensor: "a leaf", "a view of a leaf", "one of several views", ...
    shape: tuple[int, ...]
    parameter: str  #: the name of the parameter that it is, or of which it is a view; or ""
    maker: Place | None  #: the operator that made the view; None if it is not known
    node: str  #: that operator's autograd node, "UnbindBackward0"; or ""

    @property
    def remedy(self) -> str:
        """The smallest change that helps."""
        other = remedy_of(op_of(self.place), self.place)
        if self.kind in (LEAF, VIEW_OF_LEAF):
            return f"write inside `with torch.no_grad():` if no gradient is to flow through it, as in an update; or {other}"
        if self.kind == SEVERAL_VIEWS:
            return f"{other}; or take each view by itself, x[i] or x.narrow(...)"
        if self.kind == FUNCTIONS_VIEW:
            return f"{other}; or return x.clone() from the Function"
        if self.kind == INFERENCE:
            return f"{other}; or make the tensor under torch.no_grad(), not torch.inference_mode()"
        return f"{other}; or make the view where gradients are on"

    def __str__(self) -> str:
        parameter = f", parameter {self.parameter!r}" if self.parameter else ""
        operator = at(self.maker) if self.maker is not None else f"the operator of {self.node}"
        maker = f", made by {operator}" if self.node else ""
        return (
            f"{at(self.place)} was to write to its {self.operand!r} (shape {self.shape}{parameter}), which is {self.kind}"
            f"{maker}\n  remedy: {self.remedy}"
        )


def kind_of(error: BaseException) -> str | None:
    """Why PyTorch refuses the write, or None if the error is another one."""
    text = str(error)
    return next((kind for told, kind in _KINDS.items() if told in text), None)


def refused_tensor(kind: str, begun: Begun) -> tuple[str, Any] | None:
    """The input to which the operator could not write, with its name."""
    return next(((name, one) for name, one in begun.tensors if _is(one, kind)), None)


def _is(tensor: Any, kind: str) -> bool:
    from amanda.toolkit.torch import creation_of_view

    if kind == INFERENCE:
        return bool(tensor.is_inference())
    if kind == LEAF:
        return bool(tensor.is_leaf and tensor.requires_grad)
    if kind == VIEW_OF_LEAF:
        return leaf_of(tensor) is not None
    return getattr(creation_of_view(tensor), "name", "DEFAULT") != "DEFAULT"


def leaf_of(tensor: Any) -> Any:
    """The leaf that requires a gradient and has the memory of this tensor, or None.

    An item that the program sets, as in x[0] = 1, is a view that does not name its base. Its nodes do.
    """
    if tensor.is_leaf:
        return tensor if tensor.requires_grad else None
    node = tensor.grad_fn
    while node is not None and not hasattr(node, "variable"):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    leaf = getattr(node, "variable", None)
    try:
        return leaf if leaf is not None and leaf.untyped_storage()._cdata == tensor.untyped_storage()._cdata else None
    except (NotImplementedError, RuntimeError):  # sparse, and wrappers
        return None
