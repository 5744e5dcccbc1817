"""The table of pairs in docs/installation.md."""

from environment import ROOT
from junit import Suite
from pairs import Pair
from trial import Result

PAGE = ROOT / "docs" / "installation.md"
BEGIN, END = "<!-- versions: written by scripts/versions -->\n", "<!-- end of versions -->\n"
HEAD = "| Python, PyTorch | builds | imports | tests that passed | limits |\n| --- | --- | --- | --- | --- |\n"
# By minor version of torch.
LIMITS = {
    "2.11": 'compiled="graph": functions that are compiled in scopes count towards Dynamo\'s limit of recompilations',
    "2.12": 'compiled="graph": as with 2.11',
    "2.14": "`apply` of a `torch.autograd.Function` that was obtained before a scope is not seen",
}


def write(results: list[Result]) -> None:
    """Puts these results into the page. The rows of other pairs stay."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    rows = {row.split("|")[1].strip(): row for row in table.splitlines()[2:] if row.startswith("|")}
    for result in results:
        rows[_name(Pair.parse(result.pair))] = row(result)
    lines = [rows[name] for name in sorted(rows)]
    PAGE.write_text(before + BEGIN + HEAD + "".join(f"{line}\n" for line in lines) + END + after)


def row(result: Result) -> str:
    pair = Pair.parse(result.pair)
    limits = LIMITS.get(pair.torch.rpartition(".")[0], "none known")
    if result.installed != "yes":
        cells = ["not tried", "", f"could not be installed: {result.installed}", limits]
    else:
        tests = "; ".join(f"{name} {_counts(suite)}" for name, suite in result.suites.items())
        cells = [result.builds, result.imports, tests or "none", limits]
    return f"| {_name(pair)} | {' | '.join(cells)} |"


def _name(pair: Pair) -> str:
    return f"{pair.python}, {pair.torch}"


def _counts(suite: Suite) -> str:
    """ "12", or "11 of 12, 3 skipped"."""
    if suite.error:
        return f"({suite.error})"
    total = suite.passed + len(suite.failed)
    counts = str(suite.passed) if not suite.failed else f"{suite.passed} of {total}"
    return f"{counts}, {suite.skipped} skipped" if suite.skipped else counts
