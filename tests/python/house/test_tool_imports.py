"""Tools and examples use public names of Amanda alone, so that they can be copied out of the tree, and read as examples."""

import importlib
import pkgutil
import subprocess
import sys
import textwrap

import amanda.toolkit
import pytest
from amanda.toolkit.imports import check
from repository import ROOT

TOOLS = ROOT / "python" / "amanda" / "tools"
TOOLKIT = [amanda.toolkit.__name__] + [
    found.name for found in pkgutil.walk_packages(amanda.toolkit.__path__, "amanda.toolkit.")
]


@pytest.mark.parametrize("folder", [TOOLS, ROOT / "examples"], ids=lambda folder: folder.name)
def test_nothing_private_is_imported(folder):
    found = check(folder)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", [name for name in TOOLKIT if not name.endswith(".tensorflow")])
def test_every_public_name_of_the_toolkit_exists(module):
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in getattr(loaded, "__all__", ()))


def test_the_toolkit_imports_no_framework():
    loaded = "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    program = f"import sys; sys.modules['torch'] = None; import amanda.toolkit; del sys.modules['torch']; {loaded}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_docstring_lists_every_name():
    missing = [name for name in amanda.toolkit.__all__ if f"`{name}`" not in amanda.toolkit.__doc__]
    assert not missing
    modules = {name.removeprefix("amanda.toolkit.").partition(".")[0] for name in TOOLKIT[1:]}
    inside = {
        "arrays",
        "imports",
        "locks",
        "marks",
        "native",
        "parameters",
        "places",
        "programs",
        "skips",
        "unwritten",
        "where",
    }
    assert not [name for name in modules - inside if f"{name}`" not in amanda.toolkit.__doc__]


# ---- the check itself --------------------------------------------------------------------------------------------------


@pytest.fixture
def complaints(tmp_path):
    """complaints(source): those about a tool that a user has copied, with this source."""

    def about(source):
        folder = tmp_path / "my_tool"
        folder.mkdir(exist_ok=True)
        (folder / "rows.py").write_text(textwrap.dedent(source))
        return check(folder)

    return about


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "from amanda import _core\n\nraise _core.Error('no')",
            "line 1, imports amanda._core: use amanda.Error",
        ),
        (
            "from amanda import _core as core\nroutine = core.NativeRoutine\nop: core.Operator",
            "line 1, imports amanda._core: use amanda.toolkit.native.NativeRoutine, amanda.Operator",
        ),
        ("from amanda._core import Error", "line 1, imports amanda._core.Error: use amanda.Error"),
        (
            "from amanda.core import fork\nfork.lock()",
            "line 1, imports amanda.core.fork: use amanda.toolkit.locks.lock",
        ),
        ("import amanda\n\namanda._core.Error", "line 3, imports amanda._core: use amanda.Error"),
        (
            "import amanda._core\n",
            "line 1, imports amanda._core: it is private; amanda and amanda.toolkit list what is public",
        ),
        (
            "from amanda.core.op_context import OpContext",
            "line 1, imports amanda.core.op_context.OpContext: use amanda.OpContext",
        ),
        (
            "from amanda.reports.results import Results",
            "line 1, imports amanda.reports.results.Results: use amanda.toolkit.tables.Results",
        ),
        (
            "def name(x):\n    from amanda.drivers.torch.identity import parameter_names\n    parameter_names.name_of(x)",
            "line 2, imports amanda.drivers.torch.identity.parameter_names: use amanda.toolkit.torch.parameter_name",
        ),
        (
            "from amanda.drivers.torch import port\nport.graph_task_id()",
            "line 1, imports amanda.drivers.torch.port: use amanda.toolkit.torch.graph_task_id",
        ),
        (
            "import importlib\nimportlib.import_module('amanda._torch_tools')",
            "line 2, imports amanda._torch_tools: use amanda.toolkit.native.torch_tools",
        ),
        (
            "from amanda.tools.diff.rows import Row",
            "line 1, imports amanda.tools.diff.rows.Row: use amanda.tools.diff.Row",
        ),
        (
            "from amanda.tools.diff.texts import shown",
            "line 1, imports amanda.tools.diff.texts.shown: it is private; amanda and amanda.toolkit list what is public",
        ),
        (
            "from amanda.toolkit.skips import _arrays",
            "line 1, imports amanda.toolkit.skips._arrays: it is private; amanda and amanda.toolkit list what is public",
        ),
    ],
)
def test_a_private_name_is_complained_of_with_the_public_one(complaints, source, message):
    assert complaints(source) == [f"my_tool/rows.py, {message}"]


def test_public_names_are_not_complained_of(complaints):
    assert (
        complaints(
            """
            import amanda
            import amanda.toolkit.tables
            import torch
            from amanda import Tool, apply, ops, toolkit, tools
            from amanda.tool import NativeTool
            from amanda.toolkit import Skips, locks, tables
            from amanda.toolkit.arrays import of_torch
            from amanda.toolkit.native import torch_tools
            from amanda.research.pruning import ChannelPruning
            from amanda.tools import flops
            from amanda.tools.diff import Row
            from amanda.tools.flops import Flops
            from .series import Point

            amanda.scheduled
            """
        )
        == []
    )


def test_a_shipped_tool_that_names_itself_by_the_whole_path_is_complained_of(tmp_path):
    folder = tmp_path / "amanda" / "tools" / "diff"
    folder.mkdir(parents=True)
    (folder / "index.py").write_text("from amanda.tools.diff.rows import Row\nfrom amanda.tools.difference import A\n")
    what = "a tool names its own modules from its folder: from .rows import Row"
    assert check(folder)[0] == f"diff/index.py, line 1, imports amanda.tools.diff.rows.Row: {what}"
    assert what not in check(folder)[1]
