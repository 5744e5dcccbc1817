"""TracedCode: the Python functions of a program that a graph was traced from, as text."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Code(NamedTuple):
    file: str
    name: str
    node: Any  # of the syntax tree


def traced(symbol: Any) -> Iterator[Code]:
    """The functions whose lines led to the operator that makes a symbol."""
    from amanda.toolkit.tensorflow import lines_of

    for file, line, name in lines_of(symbol):
        node = _function_at(file, line)
        if node is not None:
            yield Code(file, name, node)


def own(function: Any) -> Iterator[Any]:
    """The nodes of a function, without those of functions in it, which may run elsewhere."""
    waiting = [function.body] if isinstance(function, ast.Lambda) else [*function.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def locals_of(code: Code) -> set[str]:
    """The names that a function binds, or one around it: in it, they are no global names."""
    found: set[str] = set()
    for node in ast.walk(_tree(code.file)):
        if isinstance(node, _FUNCTIONS) and _is_around(node, code.node):
            given = node.args
            found |= {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            found |= {one.id for one in own(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return found


def globals_of(code: Code) -> dict[str, Any]:
    """The global names that a function sees; empty if its module is not known."""
    module = next((one for one in [*sys.modules.values()] if getattr(one, "__file__", None) == code.file), None)
    return getattr(module, "__dict__", {})


def multiplies(source: str) -> bool:
    """The program itself multiplies in a line, "train.py:7", and not only a library that it calls there."""
    file, _, line = source.rpartition(":")
    return any(
        isinstance(getattr(node, "op", None), ast.Mult)
        or getattr(getattr(node, "func", None), "attr", "") == "multiply"
        for node in ast.walk(_tree(file))
        if getattr(node, "lineno", 0) <= int(line or 0) <= (getattr(node, "end_lineno", 0) or 0)
    )


def _is_around(node: Any, inner: Any) -> bool:
    return bool(node.lineno <= inner.lineno and (inner.end_lineno or 0) <= (node.end_lineno or 0))


@functools.lru_cache(maxsize=4096)
def _function_at(file: str, line: int) -> Any:
    """The innermost function that has a line; None if it is not known, or in a class or module only."""
    found = None
    for node in ast.walk(_tree(file)):
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            found = node if found is None or node.lineno >= found.lineno else found
    return found


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> Any:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])
