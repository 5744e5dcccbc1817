"""TracedCode: the Python functions of a program that a graph was traced from, as text."""

from __future__ import annotations

import ast
import functools
import linecache
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
