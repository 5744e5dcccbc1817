"""docs/images/one_call.svg is drawn from the sources as they are."""

import dataclasses
import runpy

import pytest
from repository import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "call_picture.py"))
TREES = [SCRIPT["FIRST"], SCRIPT["LATER"]]


def test_the_picture_is_drawn_from_the_sources():
    assert SCRIPT["PICTURE"].read_text() == SCRIPT["picture"](), "run: python scripts/call_picture.py"


@pytest.mark.parametrize("steps", TREES)
def test_a_function_that_is_gone_is_found(steps):
    gone = [dataclasses.replace(step, name="gone") if step is steps[-1] else step for step in steps]
    assert f"{steps[-1].file} defines no gone()" in SCRIPT["faults"](tuple(gone))


@pytest.mark.parametrize("steps", TREES)
def test_a_call_that_is_gone_is_found(steps):
    """Each function is looked for in the body of each other one: only those that call it are right."""
    first, *rest = steps
    for step in rest:
        if step.depth != 1:
            wrong = (first, dataclasses.replace(step, depth=1))
            assert SCRIPT["faults"](wrong) == [f"{first.file}: {first.name}() does not call {step.short}()"]
