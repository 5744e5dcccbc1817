"""The facts in an operator's schema about its operands: which it writes to, and whether results are views."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from amanda.core.op_context import OpContext

__all__ = ["ALLOCATES", "COPIES", "GROWS", "MOVES_GRADIENTS", "WRITES_SOME", "Sides", "is_written"]

_WRITTEN = re.compile(r"\((\w+)!(?: ->[^)]*)?\)(?:\[\d*\])?\??(?:\[\d*\])? (\w+)")  # with the name of its memory
_RETURNED_AS = re.compile(r"\((\w+)!")
_CONVERTS = {"to", "type", "type_as", "contiguous"}  # a view, or a copy that may overflow
_CHANGES_NO_VALUE = {
    *("detach_", "set_", "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_", "swapaxes_", "swapdims_"),
}
GROWS = {"resize_", "resize_as_", "_resize_output_"}
"""Operators that may give a tensor more memory."""
ALLOCATES = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided"),
    *("_empty_affine_quantized", "_empty_per_channel_affine_quantized", *GROWS),
}
"""Operators whose results have no values: they are what was in the memory before."""
COPIES = {
    *("clone", "to", "_to_copy", "contiguous", "type", "type_as", "reshape", "reshape_as", "flatten", "ravel"),
    *("resolve_conj", "resolve_neg", "pin_memory", "_pin_memory"),
}
"""Operators whose result has the elements of their first input, in its memory or in their own."""
WRITES_SOME = {
    *("index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "scatter_", "masked_scatter_", "masked_fill_"),
    *("put_", "fill_diagonal_"),
}
"""Operators that write to some elements of their first input, and leave the others as they were."""
_OVERWRITES = {
    *("copy_", "fill_", "zero_", "eye_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "geometric_"),
    *("cauchy_", "log_normal_", "_foreach_copy_", "_foreach_zero_"),
}
_CHANGES_NO_ELEMENT = {*_CHANGES_NO_VALUE, "requires_grad_", "rename_", "_coalesced_"}
_RUNNING = {"running_mean", "running_var"}  # normalizations write to them without saying so

MOVES_GRADIENTS = {
    *("AccumulateGrad", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0"),
    *("TBackward0", "PermuteBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "AliasBackward0"),
    *("SelectBackward0", "SliceBackward0", "UnbindBackward0", "CloneBackward0", "CatBackward0"),
}
"""Autograd nodes that compute nothing: a value that is not finite after them was not finite before."""


@dataclasses.dataclass(frozen=True)
class Sides:
    """`read`: inputs that are the same after the operator; `changed`: inputs that it reads and writes to, so they can
    only be read before it. Inputs that it only writes to are in neither. `written`: all inputs that it writes to.
    `unreturned`: those of them that are no results. `may_be_view`: a result may share memory with an input that it
    doesn't write to, if it does not copy."""

    read: list[str | int]
    changed: list[str | int]
    written: list[str]
    unreturned: list[str]
    is_view: bool
    may_be_view: bool
    is_uninitialized: bool

    @classmethod
    def of(cls, context: OpContext) -> Sides:
        """Those of the context's operator."""
        op_name, schema = context.op.__name__, context.op.schema
        arguments, _, results = schema.partition(" -> ") if " -> " in schema else (schema, "", "")
        written_as = _WRITTEN.findall(arguments)
        written = {found for _, found in written_as}
        only_written = {found for found in written if "*, " in arguments and _is_out(arguments, found)}
        if op_name in _OVERWRITES:
            only_written |= written
        running = _RUNNING if "norm" in op_name else set()
        changed = (written - only_written) | running
        returned = set(_RETURNED_AS.findall(results))
        unreturned = {found for memory, found in written_as if memory not in returned} | running
        names = context.op.input_names
        may_be_view = op_name in _CHANGES_NO_VALUE or ("(a)" in results and "!" not in results)
        return cls(
            [name for name in names if name not in changed | only_written],
            [name for name in names if name in changed],
            [name for name in names if name in written | running and op_name not in _CHANGES_NO_ELEMENT],
            [name for name in names if name in unreturned],
            may_be_view and op_name not in _CONVERTS,
            may_be_view,
            op_name in ALLOCATES,
        )


def _is_out(arguments: str, name: str) -> bool:
    """Keyword-only: `out=`."""
    keywords = arguments.partition("*, ")[2]
    return any(name == found for _, found in _WRITTEN.findall(keywords))


def is_written(argument: Any) -> bool:
    """True if an operator writes to this argument, or result, of the schema that `amanda.toolkit.torch.parse_schema`
    made."""
    return bool(argument.alias_info and argument.alias_info.is_write)
