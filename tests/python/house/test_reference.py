"""The API reference is whole: every public name has a doc comment, is on a page, and the pages build without a warning."""

import ast
import importlib
import inspect
import pkgutil
import re
import runpy
import subprocess
import sys
import textwrap

import amanda
import pytest
from amanda import _core, research, toolkit, tools
from amanda.core.coverage.report import CoverageRow
from docs_tools import needs_doxygen, needs_sphinx
from repository import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
HEADERS = [
    "include/amanda",
    "include/amanda/base",
    "include/amanda/driver",
    "drivers/torch/include/amanda",
    "drivers/tensorflow/include/amanda",
    "python/include/amanda",
]
HEADERS += ["drivers/reference/include/amanda/reference"]
# For graph drivers in Python: the one part of amanda._core that programs use by this name.
GRAPH_DRIVERS = ["Artifact", "ArtifactCache", "ArtifactCacheInfo", "GraphBackend", "GraphVisitor", "OpSite", "RunState"]
GRAPH_DRIVERS += ["Tap", "Toolset", "find_tap", "instrument"]


def public_objects():
    """Each public function and class by its name, without the modules."""
    found = {f"amanda.{name}": getattr(amanda, name) for name in amanda.__all__}
    found |= {"amanda.core.coverage.report.CoverageRow": CoverageRow}
    found |= {f"amanda._core.{name}": getattr(_core, name) for name in GRAPH_DRIVERS}
    for module_info in (
        *pkgutil.iter_modules(tools.__path__, "amanda.tools."),
        *pkgutil.iter_modules(research.__path__, "amanda.research."),
    ):
        if module_info.name.rpartition(".")[2].startswith("_") or module_info.ispkg:
            continue
        module = importlib.import_module(module_info.name)
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
        ]
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in names if not name.startswith("_")}
    for module_info in pkgutil.walk_packages(toolkit.__path__, "amanda.toolkit."):
        if module_info.name != "amanda.toolkit.tensorflow":  # another process has it
            module = importlib.import_module(module_info.name)
            names = getattr(module, "__all__", ())
            values = {name: getattr(module, name) for name in names}
            found |= {
                f"{module.__name__}.{name}": value
                for name, value in values.items()
                if str(getattr(value, "__module__", "")).startswith("amanda.")
            }
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isroutine(value)}


PUBLIC = public_objects()


def members(cls):
    """Public methods and properties that the class defines itself."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        if not name.startswith("_") and (inspect.isroutine(function) or isinstance(value, property)):
            yield name, value


def documented():
    for name, value in PUBLIC.items():
        yield name, value
        if inspect.isclass(value) and value.__module__.startswith("amanda"):
            yield from ((f"{name}.{member}", object) for member, object in members(value))


# pybind11 writes a signature even where there is no text.
def text_of(value):
    return re.sub(r"^\w+\(.*\) -> .*(\n|$)", "", inspect.getdoc(value) or "").strip()


def test_every_public_python_name_has_a_docstring():
    missing = [name for name, value in documented() if not text_of(value)]
    assert not missing
    assert len(PUBLIC) > 40


def raised(function):
    """Names of the exceptions that a function raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return {ast.unparse(call.func).rpartition(".")[2] for call in calls}


def is_generated(function):
    """True for the `__init__` of a dataclass, or of a protocol."""
    return function.__code__.co_filename == "<string>" or function.__module__ == "typing"


def test_docstrings_name_the_exceptions_that_a_function_raises():
    missing = []
    for name, value in documented():
        if inspect.isclass(value):
            function, text = vars(value).get("__init__"), f"{text_of(value)} {text_of(value.__init__)}"
        else:
            function, text = value.fget if isinstance(value, property) else value, text_of(value)
        if inspect.isfunction(function) and not is_generated(function):
            missing += [f"{name}: {error}" for error in raised(function) if error not in text]
    assert not missing


def test_a_missing_docstring_or_exception_is_found():
    class Bad:
        def raises(self):
            """Says nothing of it."""
            raise amanda.Error("no")

        def silent(self): ...

    names = dict(members(Bad))
    assert raised(names["raises"]) == {"Error"}
    assert text_of(names["silent"]) == ""


def test_every_public_name_is_on_a_page():
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.rst"))
    modules = set(re.findall(r"automodule:: (\S+)", pages))
    names = set(re.findall(r"auto(?:class|function|exception):: (?:amanda\.(?:[\w.]+\.)?)?(\w+)", pages))
    missing = [
        name for name in PUBLIC if name.rpartition(".")[0] not in modules and name.rpartition(".")[2] not in names
    ]
    assert not missing


def test_every_public_header_is_on_a_page():
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.rst"))
    shown = set(re.findall(r"header:: (\S+)", pages))
    only_macros_and_includes = {"amanda/amanda.h", "amanda/driver/driver.h", "amanda/version.h"}
    headers = {str(path).partition("include/")[2] for at in HEADERS for path in (ROOT / at).glob("*.h")}
    installed = re.findall(
        r"install\(FILES ([^)]*?)\s+DESTINATION \S+/amanda/tools/(\w+)\)",
        "".join(path.read_text() for path in (ROOT / "tools").glob("*/CMakeLists.txt")),
    )
    headers |= {f"{tool}/{header}" for names, tool in installed for header in names.split()}
    assert len(installed) == 2
    assert shown == headers - only_macros_and_includes


def doxygen(tmp_path, *changes):
    """What Doxygen complains about."""
    text = (DOCS / "Doxyfile").read_text()
    settings = "\n".join([text, f"OUTPUT_DIRECTORY = {tmp_path}", *changes])
    return subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, capture_output=True, text=True).stderr


@pytest.fixture(scope="module")
def read_headers(tmp_path_factory):
    """The folder of what Doxygen read in all headers, and what it complains about."""
    folder = tmp_path_factory.mktemp("doxygen")
    return folder, doxygen(folder)


@needs_doxygen
def test_every_public_declaration_in_a_header_has_a_doc_comment(read_headers):
    _, complaints = read_headers
    assert complaints == ""


@needs_doxygen
def test_a_missing_doc_comment_is_found(tmp_path):
    header = tmp_path / "bad.h"
    header.write_text("/// A class.\nclass Bad {\n public:\n  /// Said.\n  void said();\n  void unsaid();\n};\n")
    complaints = doxygen(tmp_path, f"INPUT = {header}")
    assert "Member unsaid() (function) of class Bad is not documented" in complaints
    assert len(complaints.splitlines()) == 1


@needs_doxygen
@needs_sphinx
def test_the_documentation_builds_without_a_warning(read_headers, tmp_path):
    headers, _ = read_headers
    (listed,) = re.findall(r"^extensions = \[(.*?)^\]", (DOCS / "conf.py").read_text(), re.DOTALL | re.MULTILINE)
    extensions = re.findall(r'"([\w.]+)"', listed)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-D",
        f"breathe_projects.amanda={headers}/xml",
        "-D",
        "nb_execution_mode=off",  # test_tutorials.py runs the cells
        "-D",
        "suppress_warnings=myst-nb.lexer",  # which an executed notebook names
        "-D",
        "html_theme=basic",  # half of the time goes into furo's navigation and the highlighted sources
        "-D",
        f"extensions={','.join(name for name in extensions if name != 'sphinx.ext.viewcode')}",
    ]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0
    pages = "".join((tmp_path / "html" / "reference" / page).read_text() for page in ("python.html", "cpp.html"))
    assert all(f'id="{name}"' in pages for name in ("amanda.apply", "_CPPv4N6amanda4ToolE"))
    assert 'href="quickstart.html"' in (tmp_path / "html" / "index.html").read_text()
    assert_names_link_to_the_reference(tmp_path / "html")


def assert_names_link_to_the_reference(site):
    pages = [page for page in site.rglob("*.html") if "_modules" not in page.parts]
    quickstart = (site / "quickstart.html").read_text()
    in_text = r'href="reference/python.html#{name}" title="{name}"><code[^>]*><span class="pre">{text}</span>'
    for name, text in [("amanda.points", "amanda.points"), ("amanda.OpContext.source", "context.source")]:
        assert re.search(in_text.format(name=name, text=text), quickstart)
    assert 'class="name" href="reference/python.html#amanda.apply"' in quickstart
    assert 'class="name" href="reference/tools.html#amanda.tools.profile.Profile"' in quickstart
    assert "#_CPPv4N6amanda5ScopeE" in (site / "building_cpp_tools.html").read_text()
    nested = re.compile(r"<a [^>]*>(?:(?!</a>).)*<a ", re.DOTALL)
    assert not [page for page in pages if nested.search(page.read_text())]


@needs_sphinx
def test_a_name_that_does_not_exist_is_found():
    exists = runpy.run_path(str(DOCS / "name_links.py"))["exists"]
    known = ("amanda.apply", "amanda.OpContext.op_id", "amanda.tools.profile", "amanda.toolkit.tensorflow")
    assert all(exists(name) for name in known)
    assert not any(exists(f"amanda.{name}") for name in ("aply", "tools.profile.Profil", "tools.nope.Profile"))
