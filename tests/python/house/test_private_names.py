"""Names that PyTorch does not document are looked up in a driver's `port.py`, which checks them when it is loaded. A module
that named one itself would fail in the middle of a program, on a version of PyTorch that lacks it."""

import ast
import contextlib
import re
import textwrap
from pathlib import Path

import amanda  # noqa: F401  # loads the driver
import pytest
import torch._dynamo
from amanda.drivers.torch import port
from amanda.drivers.torch.private_names import PrivateNames
from amanda.drivers.torch_compile import port as compiler_port
from repository import ROOT

PACKAGE = ROOT / "python" / "amanda"
DRIVERS = [PACKAGE / "drivers" / "torch", PACKAGE / "drivers" / "torch_compile"]
# Of Python's own objects: frames, named tuples, modules that are being imported.
PYTHONS = {"_getframe", "_replace", "_initializing"}
# Attributes that only some objects have: these are looked up with a default, behind `hasattr`, or set.
OPTIONAL = {
    "_assert_scalar": "an operator",
    "_assert_tensor_metadata": "an operator",
    "_dynamo_source": "of the nodes of Dynamo's graphs; a graph that another tracer has made lacks it",
    "_grouped_mm": "an operator",
    "_name": "of higher-order operators; others have a __name__",
    "_param_name_to_source": "of Dynamo's graph modules",
    "_source_to_user_stacks": "of Dynamo's graph modules",
    "_wrapped_number": "of fake tensors that stand for a number",
}
# What is imported late, because it takes long.
LATE = {"torch.ao.nn.quantized.modules.utils._quantize_weight"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def chain(node):
    """The parts of torch.a.b as ["torch", "a", "b"]; an empty list for another expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def named_by(tree):
    """(the line, the name): private names that are reached from `torch` itself, or imported from a part of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            parts = chain(node)
            if parts[:1] == ["torch"]:
                yield node.lineno, ".".join(parts)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = (getattr(node, "module", None) or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                parts = [*filter(None, module.split(".")), *alias.name.split(".")]
                if parts[0] == "torch" and any(map(is_private, parts)):
                    yield node.lineno, ".".join(parts)


def attributes_in(tree):
    """(the line, the name): private attributes of any object but `self`, also those that a string names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and names_something(node.value):
            yield node.lineno, node.value


def names_something(text):
    """True if a string is the name of an attribute, or the beginning of that of a module of torch."""
    if text.startswith("torch._"):
        return " " not in text
    return is_private(text) and text.isidentifier() and not text.endswith("_")


def defined_in(tree):
    """The private names that the package itself gives: functions, classes, variables, attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def files(folder):
    return [path for path in sorted(folder.rglob("*.py")) if path.name != "port.py"]


def tree_of(path):
    return ast.parse(path.read_text())


def checked_names():
    """The full names that the two ports have checked."""
    assert port.eval_frame() is not None  # checks what it uses of Dynamo, too
    return port.names.found | compiler_port.names.found


def problems(path, checked, own):
    parts = {part for name in checked for part in name.split(".") if is_private(part)}
    for line, name in named_by(tree_of(path)):
        if name not in checked:
            yield f"{path.name}:{line}: {name}"
    for line, name in attributes_in(tree_of(path)):
        if name not in parts | own | PYTHONS | OPTIONAL.keys():
            yield f"{path.name}:{line}: {name}"


@pytest.mark.parametrize("folder", DRIVERS, ids=lambda folder: folder.name)
def test_the_driver_takes_private_names_from_its_port(folder):
    own = {name for path in PACKAGE.rglob("*.py") for name in defined_in(tree_of(path)) if is_private(name)}
    checked = checked_names()
    found = [line for path in files(folder) for line in problems(path, checked, own)]
    assert not found, "taken from no port.py:\n" + "\n".join(found)


def test_the_rest_of_the_package_reaches_none_by_itself():
    others = [path for path in files(PACKAGE) if not any(folder in path.parents for folder in DRIVERS)]
    named = [(path, line, name) for path in others for line, name in named_by(tree_of(path))]
    found = [f"{path.relative_to(PACKAGE)}:{line}: {name}" for path, line, name in named if name not in LATE]
    assert not found, "export them from toolkit.torch, which has them from port.py:\n" + "\n".join(found)


# ---- the check itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import torch\ntorch._C._new_name()", ["x.py:2: torch._C._new_name", "x.py:2: torch._C", "x.py:2: _new_name"]),
        ("import torch._new", ["x.py:1: torch._new"]),
        ("from torch.utils._pytree import tree_map", ["x.py:1: torch.utils._pytree.tree_map"]),
        ("from torch import _C as c", ["x.py:1: torch._C"]),
        ("node._new_name", ["x.py:1: _new_name"]),
        ("getattr(node, '_new_name', 0)", ["x.py:1: _new_name"]),
        ("'torch._dynamo' in sys.modules", ["x.py:1: torch._dynamo"]),
        ("torch.nn.Module._apply = patched\ntensor._version\nself._own = sys._getframe(1)", []),
        ("port.names\ntorch.nn.functional.relu(x)", []),
    ],
)
def test_what_it_finds(tmp_path, program, found):
    path = Path(tmp_path, "x.py")
    path.write_text(textwrap.dedent(program))
    assert sorted(problems(path, checked_names(), set())) == sorted(found)


# ---- the registry of names ---------------------------------------------------------------------------------------------


class Made:
    """Made."""

    declared: int

    def __init__(self):
        self.given = 1


def generator(first):
    second = first

    def inner():
        third = second
        yield third

    return inner


def test_all_that_is_missing_is_named_at_once():
    names = PrivateNames("test", "which the test needs")
    assert names.get("torch.nn", "Module.__call__") is torch.nn.Module.__call__
    assert names.get("torch.nowhere", "x") is None
    assert names.get("torch", "_nothing.at.all") is None
    assert names.find("torch", "_nothing") is None  # not reported
    assert names.first(("torch", "_nothing"), ("torch.nowhere", "x"), ("torch", "Tensor")) is torch.Tensor
    assert names.first(("torch", "_nothing"), ("torch", "_also_nothing")) is None
    names.attributes(__name__, "Made", "declared", "given", "__repr__", "_other")
    assert names.own(__name__, "Made", "__init__") is Made
    names.own(__name__, "Made", "__eq__")  # of object
    names.variables(__name__, "generator", "first", "second", "inner", "third", "fourth")
    with pytest.raises(ImportError) as raised:
        names.check()
    assert str(raised.value) == (
        f"[test] torch {torch.__version__} has no torch.nowhere.x, torch._nothing.at.all, torch._also_nothing, "
        f"{__name__}.Made._other, {__name__}.Made.__eq__, {__name__}.generator.<locals>.fourth, which the test needs"
    )
    names.check()  # said once for each look-up
    assert {"torch.Tensor", "torch.nn.Module.__call__"} <= names.found


# Names for which the ports have something else, or need nothing, where they are missing.
REPLACED = (
    "torch._functorch.autograd_function.DynamoAutogradFunctionTraceHelper.fwd_trace_helper",
    "torch._functorch.autograd_function.autograd_function_forward_rewritten",
    "torch.autograd.function.Function.apply.__code__",
    "torch._C._dynamo.eval_frame.get_eval_frame_isolate_recompiles_id",
    "torch._dynamo.variables.invoke_subgraph.InvokeSubgraphHigherOrderVariable",
    "torch._dynamo.variables.functions.LocalGeneratorObjectVariable.gen_send_ex2",
)


@pytest.mark.parametrize("module", [port, compiler_port], ids=lambda module: module.__name__.split(".")[2])
def test_each_name_that_is_missing_is_refused_when_a_port_is_loaded(module, monkeypatch):
    """In the same sentence, and not by another error of the port itself, nor in the middle of a program."""
    lacking = ""
    of, require = PrivateNames._of, PrivateNames._require

    def lacking_of(self, module, name):
        if f"{module}.{name}" == lacking:
            raise AttributeError(name)
        return of(self, module, name)

    def lacking_require(self, owner, names, known):
        require(self, owner, names, {name for name in known if f"{owner}.{name}" != lacking})

    monkeypatch.setattr(PrivateNames, "_of", lacking_of)
    monkeypatch.setattr(PrivateNames, "_require", lacking_require)
    checked_names()
    code = compile(Path(module.__file__).read_text(), module.__file__, "exec")

    def load():
        loaded = {"__name__": module.__name__}
        exec(code, loaded)
        if "_check_compiler" in loaded:  # loads what it uses of Dynamo
            loaded["_check_compiler"]()

    load()
    for lacking in sorted(module.names.found):
        refused = rf"^\[\w+\] torch \S+ has no [^;]*\b{re.escape(lacking)}, .*; install torch"
        replaced = contextlib.suppress(ImportError) if lacking in REPLACED else None
        with replaced or pytest.raises(ImportError, match=refused):
            load()
