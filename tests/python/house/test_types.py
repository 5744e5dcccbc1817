"""Type checkers infer what the public interface gives: no property is Any."""

import subprocess
import sys

import pytest
from repository import ROOT

TYPED = ROOT / "tests" / "python" / "typed_tool.py"


def errors(path):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_mypy_infers_what_a_tool_uses():
    assert errors(TYPED) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "inferred"),
    [
        ("assert_type(context.op, amanda.Operator)", "assert_type(context.op, str)", "Operator"),
        ("assert_type(context.op_id, int)", "assert_type(context.op_id, str)", "int"),
        (
            'assert_type(profiled.rows("line")[0].median_ns, float)',
            "assert_type(profiled.rows()[0].median_ns, str)",
            "float",
        ),
    ],
)
def test_mypy_is_asked_a_question_that_it_can_deny(tmp_path, right, wrong, inferred):
    text = TYPED.read_text()
    assert right in text
    path = tmp_path / "wrong_tool.py"
    path.write_text(text.replace(right, wrong))
    (error,) = errors(path).splitlines()
    assert f'Expression is of type "{inferred}", not "str"' in error
