"""The tools that edit, compared: lines of code, oracles, and accuracy on real data.

make tools-table                       # both tables; writes them into docs/tools_comparison.md; minutes
python tests/tools_table --lines       # the table of lines alone
python tests/tools_table --tools NAME  # accuracy with some tools, such as MagnitudePruning; other rows stay
python tests/tools_table --quick       # does it run? Prints figures that mean nothing
"""

# ruff: noqa: E402 -- the folder of markdown_page comes first
import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))  # markdown_page

import accuracy
import cases
import comparison
import markdown_page

PAGE = ROOT / "docs" / "tools_comparison.md"
SEEDS = 3


def arguments():
    parser = argparse.ArgumentParser(
        prog="python tests/tools_table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    names = sorted({case.tool.rpartition(".")[2] for case in cases.CASES})
    option("--lines", action="store_true", help="the table of lines alone")
    option("--tools", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    option("--quick", action="store_true", help="one seed and hardly any training; writes nothing")
    return parser.parse_args()


def accuracy_table(options):
    start = time.perf_counter()
    titles = [case.title for case in cases.CASES if not options.tools or case.tool.rpartition(".")[2] in options.tools]
    rows = accuracy.rows(titles, range(1), 0.01) if options.quick else accuracy.rows(titles, range(SEEDS))
    if options.tools and not options.quick:
        rows = accuracy.kept(markdown_page.written(PAGE, "tools-table", "accuracy")) | rows
    print(f"[tools-table] accuracy took {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return f"{accuracy.markdown(rows)}\n\n{markdown_page.machine_line(markdown_page.machine())}"


def main():
    options = arguments()
    texts = {"comparison": comparison.markdown()}
    if not options.lines:
        texts["accuracy"] = accuracy_table(options)
    print("\n\n".join(texts.values()))
    if not options.quick:
        markdown_page.write(PAGE, "tools-table", texts)


if __name__ == "__main__":
    main()
