"""The page that has the tables, and a legend of their words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amanda.core.coverage.reasons import REASONS as NOT_SHOWN
from amanda.core.evidence import FACTS
from amanda.toolkit.arrays import REASONS as NOT_READ

from regime_table.cells import NOTHING, OF_PYTORCH, REFUSES, YES
from regime_table.tools import TOOLS

PAGE = Path(__file__).parents[2] / "docs" / "limitations.md"
BEGIN, END = "<!-- tools: written by scripts/tool_regimes.py -->\n", "<!-- end of tools -->\n"
PYTORCH = (
    *("eager", "compiled", 'compiled, "graph"', 'compiled, "opaque"'),
    *("checkpoint", "vmap", "jvp", "sparse", "DTensor"),
)
OTHERS = (
    *("arrays of numpy", "ONNX Runtime"),
    *("TensorFlow, eager", "TensorFlow, function", "TensorFlow, XLA", "TensorFlow, session"),
)
WORDS = {
    YES: "nothing is known to have run that it left out",
    NOTHING: "none of the operators that it asks for ran",
    REFUSES: "an error of the tool ends the program, and says what would work",
    OF_PYTORCH: "it cannot be imported without PyTorch",
}

Cells = Mapping[tuple[str, str], str]


def rewritten(page: str, cells: Cells) -> str:
    """The page with these cells; those that are missing are empty."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    lines = [*_table(PYTORCH, cells), "\n", *_table(OTHERS, cells), "\n", *_legend(cells)]
    return "".join([before, BEGIN, *lines, END, after])


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """Those that the page has."""
    found: dict[tuple[str, str], str] = {}
    regimes: list[str] = []
    for row in page.split(BEGIN)[1].split(END)[0].splitlines():
        name, *texts = [text.strip() for text in row[2:-2].split(" | ")]
        if name == "tool":
            regimes = texts
        elif name.startswith("`") and len(texts) == len(regimes):
            found |= {(name.strip("`"), regime): text for regime, text in zip(regimes, texts, strict=True)}
    return found


def _table(regimes: tuple[str, ...], cells: Cells) -> list[str]:
    lines = ["| tool | " + " | ".join(regimes) + " |\n", "| --- |" + " --- |" * len(regimes) + "\n"]
    return lines + [
        f"| `{tool}` | " + " | ".join(cells.get((tool, regime), "") for regime in regimes) + " |\n" for tool in TOOLS
    ]


def _legend(cells: Cells) -> list[str]:
    facts = {reason: f"{'an' if noun[0] in 'aeiou' else 'a'} {noun} {what}" for reason, (noun, what) in FACTS.items()}
    known = WORDS | facts | {reason: text for reason, text in NOT_SHOWN.items() if reason not in facts} | NOT_READ
    used = {word for text in cells.values() for word in text.split(", ")}
    lines = [f"| {word} | {text} |\n" for word, text in known.items() if word in used]
    return ["| word | in a cell of these tables |\n", "| --- | --- |\n", *lines]
