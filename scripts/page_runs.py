"""Runs the commands that pages show, and writes what they print: `python scripts/page_runs.py [PAGE ...]`.

A console block below `<!-- run -->` has a command and its output, run in docs/programs:

- `<!-- run: from TEXT -->` leaves out the lines above the first one that begins with TEXT;
- `<!-- run: 8 lines -->` shows so many;
- `<!-- run: from TEXT, 8 lines -->` does both.

docs/images/answers has pictures of the blocks that docs/index.md shows. They are drawn from the pages.
tests/python/house/test_page_runs.py runs the commands again, and compares.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PROGRAMS = DOCS / "programs"
PICTURES = DOCS / "images" / "answers"
BLOCK = re.compile(
    r"^<!-- run(?:: (?:from (?P<start>.+?))?(?:, )?(?:(?P<most>\d+) lines)?)? -->\n"
    r"```console\n\$ amanda (?P<command>.*)\n(?P<text>(?:.*\n)*?)```$",
    re.MULTILINE,
)
CUT = "..."  # stands for lines that a page leaves out


@dataclasses.dataclass(frozen=True)
class Run:
    """A command of a page, and the part of its output that the page has."""

    command: str
    start: str
    most: int | None
    text: str

    def part(self, output: str) -> str:
        lines = [line.rstrip() for line in re.sub(r"\n{3,}", "\n\n", output).strip("\n").splitlines()]
        first = next(i for i, line in enumerate(lines) if line.startswith(self.start))
        shown = lines[first:][: self.most]
        before, after = [CUT] * bool(first), [CUT] * (first + len(shown) < len(lines))
        return "".join(f"{line}\n" for line in [*before, *shown, *after])


def runs(page: Path) -> list[Run]:
    return [_run(found) for found in BLOCK.finditer(page.read_text())]


def _run(found: re.Match[str]) -> Run:
    most = int(found["most"]) if found["most"] else None
    return Run(found["command"], found["start"] or "", most, found["text"])


def pages() -> Iterator[Path]:
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("tools/*.md")]):
        if runs(page):
            yield page


def output(command: str) -> str:
    """The text that the command prints to a pipe; errors stand where they are printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "amanda", *shlex.split(command)],
        cwd=PROGRAMS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def rewritten(page: Path, run: Callable[[str], str] = output) -> str:
    """The page with what its commands print now."""

    def with_output(found: re.Match[str]) -> str:
        head = found[0].removesuffix(found["text"] + "```")
        return f"{head}{_run(found).part(run(found['command']))}```"

    return BLOCK.sub(with_output, page.read_text())


def shape(text: str) -> list[str]:
    """The lines without their numbers and units of time. Which places have less than 1% of a time varies."""
    text = re.sub(r"^(operators|the program) took .*", r"\1 took", text, flags=re.MULTILINE)
    text = re.sub(r"\d[\d.,e+-]*", "0", re.sub(r"─+", "─", text))
    text = re.sub(r"\b0 (?:ns|µs|us|ms|min)\b", "0 s", text)
    return [re.sub(r"\s+", " ", line) for line in text.splitlines()]


# The pictures of docs/index.md: a page, the command, and which lines of its output.
ANSWERS = {
    "nan": ("tools/nan.md", "nan nan.py", [range(1, 7)]),
    "slow": ("tools/profile.md", "profile --backward slow.py", [range(1), range(3, 5), range(12, 19)]),
    "memory": ("tools/memory.md", "memory memory.py", [range(1, 9)]),
    "diff": ("tools/diff.md", "diff original.py port.py", [range(1, 9)]),
    "flops": ("tools.md", "flops digits.py", [range(2, 3), range(4, 10)]),
    "prune": ("tools/pruning.md", "run -t vectorwise_pruning digits.py", [range(1), range(5, 13)]),
    "quantize": ("tools/quantization.md", "run -t fake_quantization digits.py", [range(1), range(5, 14)]),
}
COLUMNS, LINE, LETTER, MARGIN = 98, 19, 7.8, 16
STYLE = """<style>
text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3; white-space: pre }
.command { fill: #7ee787; font-weight: 600 } .cut { fill: #8d96a0 }
</style>
"""


def picture(answer: str) -> str:
    """A terminal with the command and a part of its output."""
    page, command, ranges = ANSWERS[answer]
    (run,) = [run for run in runs(DOCS / page) if run.command == command]
    printed = run.text.splitlines()
    shown = [fitted(line) for some in ranges for line in [*(printed[i] for i in some), CUT]]
    lines = [f"$ amanda {command}", *itertools.chain(*(shown if ranges[-1].stop < len(printed) else shown[:-1]))]
    width, height = round(COLUMNS * LETTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    drawn = "".join(_line(line, i) for i, line in enumerate(lines) if line.strip())
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>\n'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{STYLE}{frame}{drawn}</svg>\n'


def fitted(line: str) -> list[str]:
    """Sentences go on in the next line; a row of a table ends."""
    if len(line) <= COLUMNS:
        return [line]
    if re.search(r"\S {2,}\S|[─│]", line):
        return [f"{line[: COLUMNS - 1].rstrip()}…"]
    return textwrap.wrap(line, COLUMNS, subsequent_indent="    ")


def _line(line: str, row: int) -> str:
    kind = ' class="command"' if row == 0 else ' class="cut"' if line == CUT else ""
    y = MARGIN + row * LINE + 13
    # The width is given, so that columns stand below each other in every font.
    length = f'textLength="{len(line) * LETTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{MARGIN}" y="{y}"{kind} {length} xml:space="preserve">{html.escape(line, quote=False)}</text>\n'


def main(arguments: list[str]) -> None:
    for page in [Path(argument).resolve() for argument in arguments] or pages():
        page.write_text(rewritten(page))
    PICTURES.mkdir(exist_ok=True)
    for answer in ANSWERS:
        (PICTURES / f"{answer}.svg").write_text(picture(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
