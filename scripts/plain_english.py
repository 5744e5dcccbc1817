"""Finds sentences that a reader has to read twice: `python scripts/plain_english.py [PATH ...]`.

It reads documentation, docstrings and comments. A description is a statement, and its subject comes first. See
docs/contributing.md for the rules; each has an example in tests/python/house/test_plain_english.py.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 35
CODE_BLOCK = re.compile(r"^(( *)\S.*::)\n(?: *\n|\2 +.*\n)+", re.MULTILINE)  # of a docstring, after "::"


@dataclasses.dataclass(frozen=True)
class Text:
    """A comment, a docstring or a paragraph. `code` is true for text about code, where a question is a finding."""

    file: str
    line: int
    text: str
    code: bool


@dataclasses.dataclass(frozen=True)
class Finding:
    file: str
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.sentence}"


RULES = {
    "begins with What": re.compile(r"What (?!.*\?$)"),
    "begins with Of": re.compile(r"Of (?!course)"),
    "told": re.compile(r".*\b(told|tells?)\b", re.IGNORECASE),
    "beside": re.compile(r".*\bbeside\b", re.IGNORECASE),
    "a legend": re.compile(r"(.*[(;,] )?(null|none|empty|true|false|0|\"\"): ", re.IGNORECASE),
}
SUGGESTIONS = {
    "begins with What": "name the thing first: 'The operands that ...'",
    "begins with Of": "name the thing that has it: 'The tool's name'",
    "told": "say who learns what: 'know', 'show', 'notify', 'distinguish'",
    "beside": "'in addition to', 'next to', 'with'",
    "a legend": "a sentence: 'None if there is none.'",
    "a question": "a statement: 'True if ...'",
    "long": f"at most {MOST_WORDS} words",
}


def findings(text: Text) -> Iterator[Finding]:
    """The findings of each rule in the sentences of one text."""
    for sentence in sentences(text.text):
        rules = [name for name, pattern in RULES.items() if pattern.match(sentence)]
        if text.code and sentence.endswith("?"):
            rules.append("a question")
        if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > MOST_WORDS:
            rules.append("long")
        for rule in rules:
            yield Finding(text.file, text.line, rule, sentence)


def sentences(text: str) -> list[str]:
    text = re.sub(r"``.*?``|`[^`]*`", "X", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    end = r"(?:(?<=[.?!])|(?<=[.?!][)\"'])|(?<=[.?!]\*\*))\s+(?=[A-Z\"'(*])"
    parts = re.split(end + r"|\n\s*\n|\n\s*[-*] |\n\s*[\w, ]+: |\n\s*[\w.]+: ", text)
    return [" ".join(part.split()) for part in parts if part.strip()]


def texts(path: Path) -> Iterator[Text]:
    """The texts of one file."""
    file, source = str(path.relative_to(ROOT)), path.read_text()
    if path.suffix == ".md":
        yield from _of_markdown(file, source)
    elif path.suffix == ".py":
        yield from _of_python(file, source)
    elif path.suffix in (".h", ".cpp"):
        yield from _of_cpp(file, source)


def _of_markdown(file: str, source: str) -> Iterator[Text]:
    source = re.sub(r"^```.*?^```$|<!--.*?-->", lambda match: "\n" * match[0].count("\n"), source, flags=re.M | re.S)
    for match in re.finditer(r"(?:^(?![#|]).+\n?)+", source, re.MULTILINE):
        yield Text(file, source.count("\n", 0, match.start()) + 1, match[0], code=False)


def _of_python(file: str, source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (document := ast.get_docstring(node)):
            yield Text(file, node.body[0].lineno, CODE_BLOCK.sub(r"\1\n\n", document + "\n"), code=True)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    yield from _joined(
        file,
        [(token.start[0], token.string.lstrip("#: "), not token.line.lstrip().startswith("#")) for token in comments],
    )


def _of_cpp(file: str, source: str) -> Iterator[Text]:
    lines = []
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r"(.*?(?:^|[;{}),]) *)///?<? ?(.*)$", line):
            lines.append((number, match[2], bool(match[1].strip())))
    yield from _joined(file, lines)


def _joined(file: str, lines: list[tuple[int, str, bool]]) -> Iterator[Text]:
    """Comments on consecutive lines are one text; the third item says that a comment follows code on its line."""
    block: list[tuple[int, str]] = []
    for line, text, trailing in [*lines, (-1, "", True)]:
        if block and (trailing or line != block[-1][0] + 1):
            yield Text(file, block[0][0], "\n".join(text for _, text in block), code=True)
            block = []
        if not re.match(r"-{4}|noqa|type:|ruff:|clang-format|NOLINT|pragma", text):
            block.append((line, text))


def files(paths: list[str]) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if Path(name).suffix in (".md", ".py", ".h", ".cpp")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--count", action="store_true", help="findings by folder and rule only")
    options = parser.parse_args()
    found = [one for path in files(options.paths) for text in texts(path) for one in findings(text)]
    if options.count:
        for key, count in sorted(Counter(one.rule for one in found).items()):
            print(f"{count:6} {key}")
        for key, count in sorted(Counter(str(Path(one.file).parent) for one in found).items()):
            print(f"{count:6} {key}")
    else:
        print(*found, sep="\n")
    print(f"[plain English] {len(found)} sentences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
