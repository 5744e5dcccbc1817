"""Pages that show code and what it prints.

`python tests/python/support/page_outputs.py docs/migrating.md` writes the outputs.

What a ```python block prints stands in the ```text block directly below it. A block below `<!-- needs: NAME -->` runs only
where that package is installed, and no later block sees its names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>\w+) -->\n)?^```python\n(?P<code>.*?)^```$(?P<output>\n\n```text\n(?P<text>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    line: int
    code: str
    needs: str | None
    text: str | None  #: the output as the page has it


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start("code")) + 1, found["code"], found["needs"], found["text"])
        for found in BLOCK.finditer(text)
    ]


def printed(page: Path, block: Block, names: dict[str, Any]) -> str:
    """What the block prints, without spaces at the ends of lines."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def installed(needs: str | None) -> bool:
    return needs is None or importlib.util.find_spec(needs) is not None


def rewritten(page: Path) -> str:
    """The page with what its blocks print now. A block that can't run here keeps its text."""
    names: dict[str, Any] = {}

    def with_output(found: re.Match[str]) -> str:
        block = next(block for block in blocks(page) if block.code == found["code"])
        if not installed(block.needs):
            return found[0]
        text = printed(page, block, {**names} if block.needs else names)
        code = found[0].removesuffix(found["output"] or "")
        return f"{code}\n\n```text\n{text}```" if text else code

    return BLOCK.sub(with_output, page.read_text())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        Path(argument).write_text(rewritten(Path(argument)))
