"""Writes the reasons why tools do not see an operator into docs/limitations.md: `python scripts/reasons.py`."""

from pathlib import Path

from amanda.core.coverage.reasons import REASONS

PAGE = Path(__file__).parents[1] / "docs" / "limitations.md"
BEGIN, END = "<!-- reasons: written by scripts/reasons.py -->\n", "<!-- end of reasons -->\n"


def rewritten(page: str) -> str:
    """The page with the table of reasons."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    rows = [f"| `{reason}` | {sentence} |\n" for reason, sentence in REASONS.items()]
    return "".join([before, BEGIN, "| reason | the call was not shown, because |\n| --- | --- |\n", *rows, END, after])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
