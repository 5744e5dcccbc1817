"""Lines of code: those that are neither blank, nor comments, nor docstrings."""

import ast
import importlib.util
import inspect
import io
import re
import tokenize
from pathlib import Path

import amanda

PACKAGE = Path(amanda.__file__).parent
COUNTED = ("amanda.tools", "amanda.toolkit", "amanda.research")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def python_lines(text):
    """Lines of Python. A string that stands alone as a statement is documentation."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, node.end_lineno + 1))
    lines = text.splitlines()
    return sum(bool(lines[number - 1].strip()) for number in found)  # a string may span blank lines


def cpp_lines(text):
    """Lines of C++ without raw strings."""
    tokens = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/'
    code = re.sub(tokens, lambda found: "" if found[0].startswith("/") else "text", text, flags=re.DOTALL)
    return sum(bool(line.strip()) for line in code.splitlines())


def lines(paths):
    return sum((python_lines if path.suffix == ".py" else cpp_lines)(path.read_text()) for path in paths)


def file_of(kind):
    """The file that defines a tool."""
    return Path(inspect.getsourcefile(kind))


def imported(path):
    """The file, and every other one of tools and the toolkit that it imports, directly or not."""
    found, new = set(), {path}
    while new:
        found |= new
        new = {other for each in new for other in _imports(each)} - found
    return found


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (module := _source(node, path)).startswith(COUNTED):
            for alias in node.names:
                yield _defined_in(module, alias.name)


def _source(node, path):
    """The module from which a statement imports."""
    if not node.level:
        return node.module
    return ".".join(["amanda", *path.relative_to(PACKAGE).parent.parts, *filter(None, [node.module])])


def _is_package(module):
    return importlib.util.find_spec(module).submodule_search_locations is not None


def _defined_in(module, name):
    """The file of a submodule, or of the module that defines this name of a package."""
    if module.startswith("amanda.toolkit"):  # some of it imports TensorFlow
        is_module = importlib.util.find_spec(f"{module}.{name}") if _is_package(module) else None
        return Path((is_module or importlib.util.find_spec(module)).origin)
    inside = importlib.import_module(module)
    if hasattr(inside, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None:
        value = importlib.import_module(f"{module}.{name}")  # perhaps not imported before
    else:
        value = getattr(inside, name)
    home = value if inspect.ismodule(value) else importlib.import_module(getattr(value, "__module__", module))
    return Path(home.__file__ if home.__name__.startswith(COUNTED) else inside.__file__)
