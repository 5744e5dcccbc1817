"""Expression: "linear: input.abs().max()", compiled once."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RESULTS = ("output", "outputs")
GRADIENTS = ("grad_output", "grad_outputs", "grad_input", "grad_inputs")

_FILTER = re.compile(r"(?:[\w.*?!-]|::|\[[^\[\]]*\])+")  # one name or glob, as in ops=
_HEAD = re.compile(r"(?:[^:]|::)*?:(?!:)")  # up to the first colon that stands alone
_BUILTINS = (  # whose names are no operand's; `input`, `type`, `ord` and `filter` are
    *(
        "abs",
        "all",
        "any",
        "bool",
        "complex",
        "divmod",
        "enumerate",
        "float",
        "getattr",
        "hasattr",
        "int",
        "isinstance",
    ),
    *("len", "list", "max", "min", "pow", "print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum"),
    *("tuple", "zip"),
)
_MODULES = ("math", "torch")


@dataclasses.dataclass(frozen=True, eq=False)
class Expression:
    """A filter, and a Python expression over the operands of the operators that it selects.

    Names in the expression are inputs by their schema names (``input``, ``weight``), ``inputs``, ``output`` (the first
    result) and ``outputs``. ``input`` also stands for an input that the schema calls ``self``. Names of gradients are
    ``grad_output`` (of the first result), ``grad_outputs``, ``grad_input`` and ``grad_inputs``, as the autograd node
    has them. Other names are `torch`, `math` and common built-in functions.
    """

    text: str
    operators: tuple[str, ...]  # the filter, for ops=
    operands: tuple[str, ...]  # the names that it reads
    function: Callable[..., Any]  # of these, by position
    _columns: Mapping[str, int]  # where they stand in the text

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Compiles an expression.

        Raises:
            TypeError: it is not a string.
            ValueError: it has no filter, or is no expression of Python, or reads gradients and other operands. A caret
                shows where.
        """
        if not isinstance(text, str):
            raise TypeError(f"[trace] an expression is a string, 'linear: output.abs().max()', got {text!r}")
        head = _HEAD.match(text)
        names = [name.strip() for name in head[0][:-1].split(",")] if head else []
        if head is None or not all(_FILTER.fullmatch(name) for name in names):
            raise _error(
                text, 0, "expected operators, a colon and an expression: 'linear: output.abs().max()', or '*: ...'"
            )
        code = text[head.end() :]
        start = head.end() + (len(code) - len(code.lstrip()) if code.strip() else 0)
        columns, tree = _parsed(text, start)
        operands = tuple(name for name in columns if name not in _BUILTINS and name not in _MODULES)
        gradients = [name for name in operands if name in GRADIENTS]
        others = [name for name in operands if name not in GRADIENTS]
        if gradients and others:
            message = (
                f"{gradients[0]!r} exists in the backward pass, {others[0]!r} in the forward pass; use two expressions"
            )
            raise _error(text, columns[others[0]], message)
        return cls(text, tuple(names), operands, _compiled(text, tree, operands, columns), columns)

    @property
    def is_backward(self) -> bool:
        return any(name in GRADIENTS for name in self.operands)

    @property
    def reads_results(self) -> bool:
        return any(name in RESULTS for name in self.operands)

    @property
    def sees_all(self) -> bool:
        return self.operators == ("*",)

    def is_exact(self, operator: str) -> bool:
        """True if the filter names this operator, other than by a glob. `operator`: "linear", without namespace."""
        return any(name.rpartition("::")[2].partition(".")[0] == operator for name in self.operators)

    def unknown(self, name: str, operator: str, known: Sequence[str]) -> ValueError:
        """The error that an operator has no operand of that name, but those that are `known`."""
        return _error(self.text, self._columns[name], f"{operator} has no {name!r}; it has {', '.join(known)}")


def _parsed(text: str, start: int) -> tuple[dict[str, int], ast.expr]:
    """The names that the expression reads, in order, each with its first column in the text; and the expression."""
    code = text[start:].rstrip()
    if not code:
        raise _error(text, start, "expected an expression after the colon")
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError as error:
        raise _error(text, start + max((error.offset or 1) - 1, 0), str(error.msg)) from None
    except ValueError as error:  # a null character
        raise _error(text, start, str(error)) from None
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.Await | ast.Yield | ast.YieldFrom) for node in nodes):
        raise _error(text, start, "await and yield have no meaning here")
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = [node for node in nodes if isinstance(node, ast.Name) and node.id not in bound]
    columns: dict[str, int] = {}
    for node in sorted(read, key=lambda node: (node.lineno, node.col_offset)):
        line = code.splitlines(keepends=True)[: node.lineno]
        before = len("".join(line[:-1])) + len(line[-1].encode()[: node.col_offset].decode())
        columns.setdefault(node.id, start + before)
    return columns, tree


def _compiled(text: str, tree: ast.expr, operands: Sequence[str], columns: Mapping[str, int]) -> Callable[..., Any]:
    # All built-ins: methods in C import what they need with the expression's own, as numpy's do.
    names: dict[str, Any] = {"math": math, "__builtins__": builtins}
    if "torch" in columns:
        try:
            names["torch"] = importlib.import_module("torch")
        except ImportError:
            raise _error(text, columns["torch"], "torch is not installed") from None
    arguments = ast.arguments([], [ast.arg(name) for name in operands], None, [], [], None, [])
    function = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, tree)))
    compiled: Callable[..., Any] = eval(compile(function, f"<{text}>", "eval"), names)
    return compiled


def _error(text: str, column: int, message: str) -> ValueError:
    line = text.rfind("\n", 0, column) + 1
    end = text.find("\n", column)
    shown = text[line:] if end < 0 else text[line:end]
    return ValueError(f"[trace] {message}\n  {shown}\n  {' ' * (column - line)}^")
