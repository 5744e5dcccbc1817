"""Type checkers infer what the public interface gives: no property is Any."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

TYPED = ROOT / "tests" / "python" / "support" / "typed_tool.py"
EXAMPLES = ROOT / "examples" / "python"


def errors(*paths):
    """Mypy's, as the package itself is checked."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def errors_for_users(*paths):
    """Mypy's, with few options, and without the packages that are installed: only Amanda's types count."""
    options = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--check-untyped-defs"]
    command = [
        sys.executable,
        "-m",
        "mypy",
        *options,
        "--follow-imports=silent",
        "--no-error-summary",
        *map(str, paths),
    ]
    environment = os.environ | {"MYPYPATH": str(ROOT / "python")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment).stdout


def pyright_errors(folder, *paths):
    """(file, message) of each error of basedpyright, which comes with its own node, under pyright's standard rules.

    It finds packages by the `python` on the PATH: there is none, so only Amanda's types count.
    """
    settings = {
        "include": [str(path) for path in paths],
        "extraPaths": [str(ROOT / "python")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        "reportMissingImports": "none",
        "reportMissingModuleSource": "none",
        "reportPossiblyUnbound": "none",
        "reportPossiblyUnboundVariable": "none",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(Path(sys.executable).with_name("basedpyright")), "-p", str(folder), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": str(folder)})
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= len(paths), found
    return [(Path(error["file"]).name, error["message"]) for error in found["generalDiagnostics"]]


WRONG = [
    ("assert_type(context.op, amanda.Operator)", "assert_type(context.op, str)", "Operator"),
    ("assert_type(context.op_id, int)", "assert_type(context.op_id, str)", "int"),
    (
        'assert_type(profiled.rows("line")[0].median_ns, float)',
        "assert_type(profiled.rows()[0].median_ns, str)",
        "float",
    ),
]


@pytest.fixture(scope="module")
def wrong_tool(tmp_path_factory):
    """A copy of the typed tool with other expectations: a checker can deny them."""
    text = TYPED.read_text()
    for right, wrong, _ in WRONG:
        assert right in text
        text = text.replace(right, wrong)
    path = tmp_path_factory.mktemp("types") / "wrong_tool.py"
    path.write_text(text)
    return path


def test_mypy_infers_what_a_tool_uses(wrong_tool):
    found = errors(TYPED, wrong_tool).splitlines()
    assert len(found) == len(WRONG)
    for error, (_, _, inferred) in zip(found, WRONG, strict=True):
        assert "wrong_tool.py" in error
        assert f'Expression is of type "{inferred}", not "str"' in error


def test_mypy_accepts_the_examples():
    assert errors_for_users(EXAMPLES) == ""


def test_pyright_infers_what_a_tool_uses_and_accepts_the_examples(wrong_tool):
    found = pyright_errors(wrong_tool.parent, TYPED, EXAMPLES, wrong_tool)
    assert [file for file, _ in found] == ["wrong_tool.py"] * len(WRONG)
    for (_, message), (_, _, inferred) in zip(found, WRONG, strict=True):
        assert f'expected "str" but received "{inferred}"' in message
