"""The page of `check` lists the rules that there are."""

import runpy

from repository import ROOT


def test_the_list_is_current():
    script = runpy.run_path(str(ROOT / "scripts" / "check_rules.py"))
    text = script["PAGE"].read_text()
    assert script["page"](text) == text, "run: python scripts/check_rules.py"
