"""The warning about a routine that computes with a parameter, and is not recorded by autograd.

It is about routines whose code and operands leave no doubt. Tensors are known by `requires_grad`, and no framework is
imported here.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from amanda.core import routine_checks, unmatched

_METHODS = ("insert_before_op", "insert_after_op")  # a replacement runs in the program's gradient mode
_NO_GRADIENT_MEANT = frozenset(
    ("detach", "data", "item", "tolist", "numpy", "no_grad", "enable_grad", "set_grad_enabled")
)
_READ_ONLY = frozenset(
    ("shape", "size", "dim", "ndim", "dtype", "device", "numel", "requires_grad", "grad", "named_parameters")
)
_warned: set[CodeType] = set()  # kept: the codes of routines that were warned of


def warn(
    tool: str, method: str, fn: Callable[..., Any], kwargs: Mapping[str, Any], inputs: Callable[[], Iterable[Any]]
) -> None:
    """Warns of a routine, once for its code, if it computes with a tensor that gets no gradient by that.

    Arguments:
        inputs: the operator's; asked for only if there is such a tensor.
    """
    if method not in _METHODS:
        return
    function = fn.__func__ if inspect.ismethod(fn) else fn
    code = getattr(function, "__code__", None)
    if code is None or code in _warned:
        return
    name, remedy = next(_learned(fn, function, code, kwargs), ("", ""))
    if not name or routine_checks.returns_nothing(fn) or not any(map(_is_recorded, inputs())):
        return
    _warned.add(code)
    unmatched.warn_here(
        f"[context] {tool}: {method} has a routine, {function.__name__}, that computes with {name!r}, which requires a "
        f"gradient and gets none from it: routines are not recorded; write {method}(..., differentiable=True), or "
        f"{remedy} if that is meant",
        UserWarning,
    )


def _learned(fn: Any, function: Any, code: CodeType, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names by which the routine computes with tensors that require a gradient, and what to write if it needs none."""
    loads = _loads(code)
    if not loads:
        return
    cells = function.__closure__ or ()
    closure = dict(zip(code.co_freevars, cells, strict=True))
    owner = getattr(getattr(fn, "__self__", None), "__dict__", {})
    for kind, name, is_called in loads:
        if kind == "closure":
            value = _content(closure[name]) if name in closure else None
        elif kind == "global":
            value = function.__globals__.get(name)
        else:
            value = owner.get(name) if kind == "self" else kwargs.get(name)
        if _requires_gradient(value, is_called):
            text = f"self.{name}" if kind == "self" else name
            yield text, "torch.no_grad() in the routine" if hasattr(value, "parameters") else f"{text}.detach()"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _requires_gradient(value: Any, is_called: bool) -> bool:
    if getattr(value, "requires_grad", None) is True:
        return True
    parameters = getattr(value, "parameters", None) if is_called and not isinstance(value, type) else None
    if not inspect.ismethod(parameters):
        return False
    return any(getattr(one, "requires_grad", None) is True for one in parameters())


def _is_recorded(operand: Any) -> bool:
    """True for the result of an operator that autograd has recorded: the program computes gradients here."""
    return getattr(operand, "grad_fn", None) is not None


@functools.lru_cache(maxsize=4096)
def _loads(code: CodeType) -> list[tuple[str, str, bool]]:
    """The values that the code loads and computes with, as (kind, name, True if it may be called)."""
    if _NO_GRADIENT_MEANT.intersection(code.co_names):
        return []
    found = []
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PUSH_NULL", "PRECALL")]
    for at, this in enumerate(instructions[:-1]):
        kind, after = _kind(code, instructions[at - 1] if at else None, this), instructions[at + 1]
        if kind is None or any(one.opname == "COMPARE_OP" for one in instructions[at + 1 : at + 3]):  # a mask
            continue
        reads = after.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if not (reads and after.argval in _READ_ONLY):
            found.append((kind, this.argval, not reads))
    return found


def _kind(code: CodeType, before: dis.Instruction | None, this: dis.Instruction) -> str | None:
    if this.opname == "LOAD_DEREF":
        return "closure"
    if this.opname == "LOAD_GLOBAL":
        return "global"
    if this.opname == "LOAD_FAST":
        return "keyword" if this.argval in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] else None
    of_self = before is not None and before.opname == "LOAD_FAST" and before.argval == "self"
    return "self" if of_self and this.opname in ("LOAD_ATTR", "LOAD_METHOD") else None
