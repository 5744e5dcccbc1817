"""Finds certain mistakes of a routine when it is scheduled: its keywords, its signature, its positions."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from amanda import _core
from amanda.core.near_names import did_you_mean

OPTIONS = {
    "insert_before_op": ("inputs", "with_run", "differentiable", "allow_view", "traceable"),
    "insert_after_op": ("outputs", "inputs", "with_run", "differentiable", "allow_view", "traceable"),
    "replace_op": ("inputs", "with_run", "allow_view", "traceable"),
    "insert_before_backward_op": ("grad_outputs", "with_run", "differentiable"),
    "insert_after_backward_op": ("grad_inputs", "grad_outputs", "with_run", "differentiable"),
    "replace_backward_op": ("grad_outputs", "with_run"),
}
"""The options by method. The positions come first; after an operator, those that are only shown follow."""


def check_given(
    handle: _core.ContextHandle,
    method: str,
    fn: Callable[..., Any],
    positions: Sequence[int | str] | None,
    with_run: bool,
    keywords: Mapping[str, Any],
    shown: Sequence[int | str] | None,
) -> None:
    """Checks what was given to `method` of the OpContext of this handle; see `check`."""
    op = handle.op()
    names = op.input_names if method in ("insert_before_op", "replace_op") else ()
    shown_names = op.input_names if method == "insert_after_op" else ()
    tool = getattr(handle.tool(), "name", "a tool")
    if positions is None and _has_none(handle, method):
        positions = []
    check(method, tool, op.name, names, fn, positions, with_run, keywords, (shown_names, shown))


def _has_none(handle: _core.ContextHandle, method: str) -> bool:
    """True if there is certainly nothing to select from."""
    if method == "insert_after_op":
        return handle.op().schema.endswith("-> ()")
    backward_op = handle.backward_op()
    accumulates = backward_op is not None and "AccumulateGrad" in backward_op.__name__
    return method == "insert_after_backward_op" and accumulates


def check(
    method: str,
    tool: str,
    operator: str,
    names: Sequence[str],
    fn: Callable[..., Any],
    positions: Sequence[int | str] | None,
    with_run: bool,
    keywords: Mapping[str, Any],
    shown: tuple[Sequence[str], Sequence[int | str] | None] = ((), ()),
) -> None:
    """Checks the arguments of `method` of an OpContext. `names`: the names of the positions that it selects from, or
    empty if they are unknown. `shown`: the names and positions of what it selects only to look at.

    Raises:
        TypeError: the routine cannot take what it will be given, or a keyword is meant for `method`.
        ValueError: a position is selected twice.
    """
    where = f"[context] {tool}: {method} on {operator}"
    selected = _selected(where, OPTIONS[method][0], names, positions)
    _selected(where, OPTIONS[method][1], shown[0], shown[1])
    signature = _signature(fn)
    if signature is None:
        return
    routine = getattr(fn, "__name__", type(fn).__name__)
    _check_keywords(where, method, routine, signature, keywords)
    if with_run and "run" in keywords:
        raise TypeError(f"{where}: run= is what with_run=True passes to {routine}; give yours another name")
    given = {**keywords, "run": None} if with_run else dict(keywords)
    if shown[1] is None or len(shown[1]) > 0:
        given[OPTIONS[method][1]] = ()
    _check_arguments(where, OPTIONS[method][0], routine, signature, selected, given)


def _selected(where: str, option: str, names: Sequence[str], positions: Sequence[int | str] | None) -> list[str] | None:
    """The operands that the routine gets, by name where names are known; None if the operands are unknown."""
    if positions is None:
        return list(names) or None
    found: list[str] = []
    for position in positions:
        name = names[position] if isinstance(position, int) and position < len(names) else str(position)
        if name in found:
            raise ValueError(f"{where}: {option}= selects {name!r} twice; give each position once")
        found.append(name)
    return found


def _signature(fn: Any) -> inspect.Signature | None:
    """The signature, or None if it is uncertain. A wrapper may take other arguments than the function it wraps."""
    if hasattr(fn, "__signature__"):
        return None
    try:
        return inspect.signature(fn, follow_wrapped=False)
    # Builtins have none, and annotations may name what is not defined. No more: a signal handler may raise here.
    except (AttributeError, NameError, TypeError, ValueError):
        return None


def _check_keywords(
    where: str, method: str, routine: str, signature: inspect.Signature, keywords: Mapping[str, Any]
) -> None:
    own = OPTIONS[method]
    others = {option for options in OPTIONS.values() for option in options}.difference(own)
    for keyword in keywords:
        if keyword in signature.parameters:
            continue
        if keyword in others:
            raise TypeError(f"{where} has no option {keyword}=; its options are {', '.join(own)}")
        if meant := did_you_mean(keyword, own, "{}=", cutoff=0.75):
            raise TypeError(
                f"{where} has no option {keyword}={meant} A keyword for {routine} needs a parameter of that name"
            )


def _check_arguments(
    where: str,
    option: str,
    routine: str,
    signature: inspect.Signature,
    selected: Sequence[str] | None,
    keywords: Mapping[str, Any],
) -> None:
    fewest, most = _takes(signature, keywords)
    if selected is None and most == 0:
        raise TypeError(
            f"{where}: {routine} takes no argument, and will get all {option}; give it a parameter for each, or select "
            f"none with {option}=[]"
        )
    try:
        if selected is not None:
            signature.bind(*selected, **keywords)
            return
        signature.bind_partial(**keywords)
    except TypeError as error:
        problem = str(error)
    else:
        return
    if selected is not None and not fewest <= len(selected) <= most:
        takes = (
            f"at least {fewest}" if most == sys.maxsize else f"{fewest}" if fewest == most else f"{fewest} to {most}"
        )
        will_get = f"{len(selected)}: {', '.join(selected)}" if selected else "0"
        problem = f"takes {takes}, will get {will_get}; select with {option}="
    raise TypeError(f"{where}: {routine} {problem}")


def _takes(signature: inspect.Signature, keywords: Iterable[str]) -> tuple[int, int]:
    """The least and the largest number of positional arguments that it takes in addition to these keywords."""
    fewest = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return fewest, sys.maxsize
        by_position = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not by_position or (parameter.kind is not parameter.POSITIONAL_ONLY and parameter.name in keywords):
            break
        most += 1
        fewest += parameter.default is parameter.empty
    return fewest, most


def returns_nothing(fn: Any) -> bool:
    """True if a routine certainly returns only None, as a function without a value in its return statements does."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.ismethod(fn):
        fn = fn.__func__
    elif callable(fn) and not inspect.isroutine(fn) and not isinstance(fn, type):
        fn = type(fn).__call__
    return inspect.isfunction(fn) and _code_returns_nothing(fn.__code__)


@functools.lru_cache(maxsize=4096)
def _code_returns_nothing(code: CodeType) -> bool:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":
            if instruction.argval is not None:
                return False
        elif instruction.opname.startswith("RETURN_VALUE"):
            constant = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            if not constant or instruction.is_jump_target:
                return False
        before = instruction
    return True
