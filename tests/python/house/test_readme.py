"""The README's programs run as printed, its picture is what they print, and its figures are those that were measured."""

import re
from xml.etree import ElementTree

import pytest
from repository import ROOT

README = (ROOT / "README.md").read_text()
STATISTICS, SPARSITY = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PICTURE = ROOT / "docs" / "images" / "statistics.svg"
ROWS = {  # of the README, and what docs/performance.md calls them
    "Amanda imported, no scope open": "imported, no scope",
    "**Amanda**, C++ routine, forward": "C++ routine, forward",
    "**Amanda**, Python routine, forward": "Python routine, forward",
    "**Amanda**, Python routine, forward and backward": "Python routine, forward and backward",
    "module hooks, forward and full backward": "module hooks, forward and full backward",
    "`TorchFunctionMode`": "TorchFunctionMode, counts",
    "`TorchDispatchMode`": "TorchDispatchMode, counts",
    "`RecordFunction`, C++": "RecordFunction, inputs, empty callback",
    "`torch.profiler`, CPU": "torch.profiler, CPU",
    "`DebugMode`": "DebugMode",
}
COLUMNS = ["torch.add", "transformer layer, train", "BERT-base, train"]


def test_the_tool_in_the_readme_runs(forked_python):
    zeros = eval(forked_python(SPARSITY))
    assert set(zeros) == {"1", "3"}
    assert all(0 < share < 1 for share in zeros.values())


def test_the_two_commands_are_there():
    assert re.findall(r"^make (\w+) ", README, re.MULTILINE) == ["demo", "test"]


def test_the_picture_is_what_the_five_lines_print(preloaded, tmp_path):
    _, printed = STATISTICS.split("\n\n")
    script = ROOT / "scripts" / "table_picture.py"
    assert printed in script.read_text()
    drawn = tmp_path / "drawn.svg"
    done = preloaded.run(str(script), str(drawn), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found, expected = words(drawn), words(PICTURE)
    assert "encoder.layer.0.output.dense" in expected
    assert len(found) == len(expected)
    for word, known in zip(found, expected, strict=True):
        if re.fullmatch(r"-?[\d.]+", known):
            assert float(word) == pytest.approx(float(known), rel=0.01)  # another processor adds in another order
        else:
            assert word == known
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg|<!--.*?-->", "", PICTURE.read_text())


def words(picture):
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return [word for text in texts for word in "".join(text.itertext()).split()]


def table(text, title):
    """The rows of the table that has this column, by their first cells."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    start = next(i for i, row in enumerate(cells) if title in row)
    return {
        row[0]: dict(zip(cells[start], row, strict=True)) for row in cells[start + 2 :] if len(row) == len(cells[start])
    }


def test_the_figures_are_those_of_the_performance_page():
    page = (ROOT / "docs" / "performance.md").read_text()
    measured = table(page[page.index("<!-- bench: time -->") : page.index("<!-- end: time -->")], "torch.add")
    shown = table(README, "observer")
    assert shown.keys() == ROWS.keys()
    for row, name in ROWS.items():
        for cell, column in zip(list(shown[row].values())[2:], COLUMNS, strict=True):
            figure = measured[name][column].partition(" ")[0]
            assert cell == measured[name][column] or float(cell) == pytest.approx(float(figure), abs=0.0051), (
                row,
                column,
            )
    (platform,) = set(re.findall(r"^(AMD .*)\.$", page, re.MULTILINE))
    for part in re.findall(r"AMD EPYC|Python [\d.]+\d|torch [\d.]+\+cpu|amanda [\d.]+\d", platform):
        assert part in README
