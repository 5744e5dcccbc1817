"""Writes the list of rules into docs/tools/check.md: `python scripts/check_rules.py`.

tests/python/house/test_check_rules_page.py compares.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

from amanda.tools.check import RULES, Rule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tools" / "check.md"
MARKED = re.compile(r"(?<=<!-- rules -->\n).*?(?=<!-- end of rules -->)", re.DOTALL)


def listed(rules: tuple[type[Rule], ...] = RULES) -> str:
    """The text between the marks."""
    advice = [rule for rule in rules if rule.is_advice]
    default = [rule for rule in rules if not rule.is_advice]
    parts = [*map(_section, default), "## Rules of --advice", *map(_section, advice)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _section(rule: type[Rule]) -> str:
    wrong = textwrap.dedent(rule.bad).strip("\n").rstrip()
    return (
        f"### {rule.name}\n\n{rule.sentence[0].upper()}{rule.sentence[1:]}. {_one_paragraph(rule)}\n\n"
        f"Wrong:\n\n```text\n{wrong}\n```\n\nFix: {rule.fix}."
    )


def _one_paragraph(rule: type[Rule]) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(rule) or "").split("\n\n"))


def page(text: str) -> str:
    """The page with the list of now."""
    return MARKED.sub(lambda _: listed(), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
