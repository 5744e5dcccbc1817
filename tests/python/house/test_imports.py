"""Imports inside the package form no circle, and lead from outer layers to inner ones.

The rule: every import of a module of the package is an arrow, also inside a function or a class; those under
`if TYPE_CHECKING:` are none. `from amanda.x import y` leads to the module `amanda.x.y` if there is one, else to `amanda.x`.
`from amanda import y` leads to the module from which `amanda/__init__.py` imports y: it imports tools last.
That importing a module runs the `__init__` of the packages around it makes no arrow.
"""

import ast
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import without_extras
from packaging.requirements import Requirement
from repository import ROOT

PACKAGE = ROOT / "python" / "amanda"

# Modules that are built, not written.
EXTENSIONS = {
    "_build",
    "_core",
    "_cupti",
    "_rematerialization",
    "_tensorflow",
    "_tools",
    "_torch",
    "_torch_compile",
    "_torch_tools",
}
# Innermost first. A module belongs to its longest prefix; imports lead to a layer further in, or stay in their own.
LAYERS = [
    [*sorted(EXTENSIONS), "core.fork", "core.main_interpreter", "core.near_names"],
    ["driver", "drivers"],  # what all drivers have in common; no framework
    ["core", "ops", "reports"],
    ["core.scope", "core.scheduled_scope", "core.unshown"],
    ["core.program_points", "tool"],
    ["drivers.onnxruntime", "drivers.tensorflow", "drivers.torch"],
    ["drivers.torch_compile"],
    ["toolkit"],
    ["distributed", "tools"],
    [""],  # amanda itself, where all is put together
    ["research"],  # it may use all of amanda, and nothing needs it
    ["cli"],
    ["__main__", "cli.pytest_plugin"],
]


def modules(package):
    """The files of the package, by module: "scope", "drivers.torch.port", "drivers" for its `__init__`, "" for amanda's."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path, package, known, public):
    """(the module, the line) for each arrow from a file."""
    folder = ".".join(path.relative_to(package).parent.parts)
    return [
        (target, node.lineno)
        for node in imports_in(ast.parse(path.read_text()))
        for target in targets(node, folder, known, public)
    ]


def imports_in(tree):
    """All import statements but those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and is_for_type_checkers(node.test):
            for other in node.orelse:
                yield from imports_in(ast.Module([other], []))
        else:
            yield from imports_in(node)


def is_for_type_checkers(test):
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def targets(node, folder, known, public):
    if isinstance(node, ast.Import):
        return [inside(alias.name) for alias in node.names if inside(alias.name) is not None]
    if node.level:
        parts = folder.split(".")
        in_tool = parts[0] == "tools" and node.level < len(parts)
        assert in_tool, f"line {node.lineno}: imports name the whole path, but for those inside the folder of one tool"
        source = ".".join(filter(None, [*parts[: len(parts) - node.level + 1], node.module]))
    else:
        source = inside(node.module)
    if source is None:
        return []
    members = [f"{source}.{alias.name}" if source else alias.name for alias in node.names]
    return [member if member in known else source or public.get(member, "") for member in members]


def public_names(package):
    """The module from which `amanda/__init__.py` imports each name."""
    init = package / "__init__.py"
    statements = [node for node in ast.parse(init.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: source
        for node in statements
        if (source := inside(node.module))
        for alias in node.names
    }


def inside(name):
    """A module's name without `amanda.`; None: it is of another package."""
    return "" if name == "amanda" else name.removeprefix("amanda.") if name.startswith("amanda.") else None


def layer(module):
    prefixes = [(prefix, depth) for depth, layer in enumerate(LAYERS) for prefix in layer]
    own = [
        (prefix, depth)
        for prefix, depth in prefixes
        if module == prefix or (prefix and module.startswith(f"{prefix}."))
    ]
    assert own, f"no layer is known for {full(module)}; put it into LAYERS"
    return max(own)[1]


def arrows(package):
    files = modules(package)
    known = files.keys() | EXTENSIONS
    public = public_names(package) if "" in files else {}
    return {module: imports(path, package, known, public) for module, path in files.items()}


def climbing(found):
    """Sentences on the arrows that lead outwards."""
    return [
        f"{full(module)}, line {line}, imports {full(target)}, which is further out"
        for module, leading in found.items()
        for target, line in leading
        if layer(target) > layer(module)
    ]


def circle(found):
    """The modules of a circle, the first one again at the end; None: there is none."""
    done = set()

    def follow(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for target, _ in found.get(module, ()):
            closed = follow(target, [*path, module])
            if closed:
                return closed
        done.add(module)
        return None

    return next(filter(None, (follow(module, []) for module in found)), None)


def described(closed):
    return " -> ".join(map(full, closed))


def full(module):
    return f"amanda.{module}".rstrip(".")


def test_imports_lead_inwards():
    wrong = climbing(arrows(PACKAGE))
    assert not wrong, "\n".join(wrong)


def test_imports_form_no_circle():
    closed = circle(arrows(PACKAGE))
    assert closed is None, described(closed)


def test_research_uses_public_names_only():
    files = modules(PACKAGE)
    known = files.keys() | EXTENSIONS
    wrong = [
        f"{full(module)}, line {line}, imports {full(target)}"
        for module, path in files.items()
        if module.startswith("research")
        for target, line in imports(path, PACKAGE, known, public={})  # a name of amanda's is that, wherever it is from
        if any(part.startswith("_") for part in target.split("."))
        and target != "_rematerialization"  # a tool's C++ half
    ]
    assert not wrong, "\n".join(wrong)


def test_every_layer_has_modules():
    known = modules(PACKAGE).keys() | EXTENSIONS
    assert [prefix for layer in LAYERS for prefix in layer if prefix not in known] == []


def test_no_framework_is_imported_further_in_than_its_driver():
    for module, path in modules(PACKAGE).items():
        if layer(module) < layer("drivers.torch"):
            found = [name for node in imports_in(ast.parse(path.read_text())) for name in names_of(node)]
            assert not {"onnx", "onnxruntime", "torch", "tensorflow"} & {name.partition(".")[0] for name in found}, (
                module
            )


def names_of(node):
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module]
    return [alias.name for alias in node.names]


def dependencies():
    """The packages that `pip install amanda-nn` installs, and what these depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {Requirement(each).name for each in project["dependencies"]} | {"markupsafe"}  # jinja2's own


def test_every_import_of_an_optional_library_is_tried_without_it():
    own = sys.stdlib_module_names | {"amanda", "torch", "tensorflow", "keras", "tf_keras", "pytest"} | dependencies()
    found = set()
    for module, path in modules(PACKAGE).items():
        if not module.startswith(("drivers.onnxruntime", "drivers.tensorflow")):  # loaded with their frameworks
            names = (name for node in imports_in(ast.parse(path.read_text())) for name in names_of(node))
            libraries = {name.partition(".")[0] for name in names} - own
            found |= {f"{path.relative_to(PACKAGE)}, {library}" for library in libraries}
    tried = {site for use in without_extras.USES.values() for site in use.imports}
    assert found == tried, "see tests/python/support/without_extras.py"
    assert {site.partition(", ")[2] for site in found} <= without_extras.OPTIONAL


# ---- the check itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """package(**{"scope": source}): the arrows of a package with these modules."""

    def make(**sources):
        for name, source in sources.items():
            path = Path(tmp_path, *name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        return arrows(tmp_path)

    return make


def test_a_circle_is_named(package):
    found = package(
        scope="def f():\n    from amanda import tool",
        tool="import amanda.switches",
        switches="class A:\n    from amanda.scope import Scope",
    )
    assert described(circle(found)) == "amanda.scope -> amanda.tool -> amanda.switches -> amanda.scope"


def test_a_climbing_import_is_named(package):
    found = package(
        **{
            "core.tool": "\nfrom amanda.core.scope import Scope",
            "core.scope": "from amanda import _core\nfrom amanda.core import tool",
        }
    )
    assert climbing(found) == ["amanda.core.tool, line 2, imports amanda.core.scope, which is further out"]


def test_imports_for_type_checkers_do_not_count(package):
    source = "if TYPE_CHECKING:\n    from amanda import scope\nelse:\n    import amanda._core"
    found = package(tool=source, scope="from amanda.tool import Tool")
    assert found == {"scope": [("tool", 1)], "tool": [("_core", 4)]}


def test_a_name_that_is_no_module_leads_to_its_package(package):
    found = package(**{"__init__": "", "core.scope": "from amanda import apply", "drivers.__init__": ""})
    assert found["core.scope"] == [("", 1)]
    assert climbing(found) == ["amanda.core.scope, line 1, imports amanda, which is further out"]


def test_a_public_name_leads_to_the_module_that_defines_it(package):
    found = package(
        __init__="from amanda.scope import apply\nfrom amanda.tools.nan import Nan",
        scope="",
        **{"tools.nan.__init__": "from .rows import Row", "tools.nan.rows": "from amanda import apply"},
    )
    assert (found["tools.nan"], found["tools.nan.rows"]) == ([("tools.nan.rows", 1)], [("scope", 1)])
    assert circle(found) is None


def test_a_relative_import_outside_of_tools_is_refused(package):
    with pytest.raises(AssertionError, match="line 1: imports name the whole path, but for those inside"):
        package(**{"reports.table": "from .columns import Column"})


def test_a_module_without_a_layer_is_named():
    with pytest.raises(AssertionError, match=r"no layer is known for amanda\.novel; put it into LAYERS"):
        layer("novel")
