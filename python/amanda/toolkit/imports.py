"""Finds what a tool's source takes from Amanda that is not public, and names the public counterpart.

It reads files, and imports none of them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["check"]

_AMANDA = Path(__file__).parent.parent
_ROOMS = ("amanda.research", "amanda.tools")  # packages of tools
_OPEN = ("amanda.distributed", "amanda.ops", "amanda.tool")  # modules whose names are public but for those with a "_"


def check(folder: str | Path) -> list[str]:
    """The imports in a folder of tools that lead to private parts of Amanda, or of another tool: a sentence on each.

        for complaint in check("my_package/my_tool"):
            print(complaint)  # "my_tool/rows.py, line 3, imports amanda._core: use amanda.Error"

    Arguments:
        folder: of one tool, or of several; or a file.
    """
    root = Path(folder)
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    return [complaint for path in files for complaint in _complaints(path, path.relative_to(root.parent).as_posix())]


def _complaints(path: Path, shown: str) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = _own_tool(path)
    for use in _uses(tree):
        if own and f"{use.module}.".startswith(f"{own}."):
            advice = "a tool names its own modules from its folder: from .rows import Row"
        elif not _is_public(use):
            advice = _advice(use, tree)
        else:
            continue
        yield f"{shown}, line {use.line}, imports {use.text}: {advice}"


class _Use(NamedTuple):
    module: str
    name: str  # "" for the module itself
    line: int
    bound: str  # what the file calls it

    @property
    def text(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def _uses(tree: ast.Module) -> Iterator[_Use]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _of_amanda(node.module or ""):
            for alias in node.names:
                yield _Use(node.module or "", alias.name, node.lineno, alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _of_amanda(alias.name):
                    yield _Use(alias.name, "", node.lineno, alias.asname or alias.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "amanda":
            yield _Use("amanda", node.attr, node.lineno, f"amanda.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            text = ast.unparse(node.args[0]).lstrip("f").strip("'\"")
            if _of_amanda(text):
                yield _Use(text, "", node.lineno, text)


def _of_amanda(module: str) -> bool:
    return module.partition(".")[0] == "amanda"


def _own_tool(path: Path) -> str:
    """The package of the shipped tool whose file this is; "" if it is not in the folder of one."""
    *_, amanda, tools, tool = ["", "", *path.resolve().parts[:-1]]
    return f"amanda.tools.{tool}" if (amanda, tools) == ("amanda", "tools") else ""


# ---- what is public ----------------------------------------------------------------------------------------------------


def _is_public(use: _Use) -> bool:
    module, name = use.module, use.name
    if not name:
        module, _, name = module.rpartition(".")
        if not module or (module in _ROOMS and not name.startswith("_")):
            return True
    if module in (*_OPEN, *_ROOMS):
        return not name.startswith("_")
    tool = module.rpartition(".")[0] in _ROOMS
    if not (module == "amanda" or tool or _in_toolkit(module)):
        return False
    path = _path_of(module)
    if path is None:
        return False
    names = _exported(path)
    is_module = _in_toolkit(module) and _path_of(f"{module}.{name}") is not None
    return is_module or name in names or (tool and not names and not name.startswith("_"))


def _in_toolkit(module: str) -> bool:
    return module == "amanda.toolkit" or module.startswith("amanda.toolkit.")


def _path_of(module: str) -> Path | None:
    path = _AMANDA.joinpath(*module.split(".")[1:])
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((one for one in found if one.is_file()), None)


@functools.cache
def _exported(path: Path) -> frozenset[str]:
    """The names in a module's `__all__`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


# ---- what to use instead -------------------------------------------------------------------------------------------------


def _advice(use: _Use, tree: ast.Module) -> str:
    known = _counterparts()
    if use.text in known:
        return f"use {known[use.text]}"
    within = sorted({ast.unparse(node) for node in ast.walk(tree) if _is_attribute_of(node, use.bound)})
    used = [f"{use.text}{one.removeprefix(use.bound)}" for one in within]
    found = [known[one] for one in used if one in known]
    return f"use {', '.join(found)}" if found else "it is private; amanda and amanda.toolkit list what is public"


def _is_attribute_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == name


@functools.cache
def _counterparts() -> dict[str, str]:
    """The public name of each thing that a public module takes from a private one, or that has moved there."""
    found: dict[str, str] = {}
    public = [_AMANDA / "__init__.py", *sorted((_AMANDA / "toolkit").rglob("*.py"))]
    for path in [*public, *sorted((_AMANDA / "tools").glob("*/__init__.py"))]:
        module = ".".join(["amanda", *path.relative_to(_AMANDA).with_suffix("").parts]).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            source = _source(node, module)
            for alias in node.names if isinstance(node, ast.ImportFrom) and _of_amanda(source) else ():
                name = alias.asname or alias.name
                if name in _exported(path):
                    found.setdefault(f"{source}.{alias.name}", f"{module}.{name}")
    return found


def _source(node: ast.AST, package: str) -> str:
    """The module from which a statement in a package's `__init__` imports; "" if it is no such statement."""
    if not isinstance(node, ast.ImportFrom):
        return ""
    return f"{package}.{node.module}" if node.level else node.module or ""
