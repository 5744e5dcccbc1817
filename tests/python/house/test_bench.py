"""The benchmark runs and reports every row. What it measures is no test's business."""

import runpy
import subprocess
import sys

import pytest
from repository import ROOT


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "bench")
    import report

    return report


@pytest.fixture
def markdown_page(report):
    return report.markdown_page


SOME = ["vanilla: a process without Amanda", "Python routine, forward", "TorchDispatchMode, counts"]


def quick_run(*options):
    """Its rows, each with what its cell says. Those of `SOME` were measured, and none fails."""
    command = [sys.executable, ROOT / "tests" / "bench", "--quick", "--workloads", "add", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = dict(line[2:-2].split(" | ") for line in done.stdout.splitlines() if line.count(" | ") == 1)
    assert set(SOME) <= {name for name, cell in rows.items() if "±" in cell}
    assert not [cell for cell in rows.values() if "fails" in cell]
    return rows


def test_a_quick_run_of_some_rows():
    assert "tools.profile" not in quick_run("--rows", *SOME)


@pytest.mark.long
def test_a_quick_run_reports_every_row(report):
    assert set(report.NAMES) <= set(quick_run())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--callgrind"], "--callgrind counts instructions of add, linear, transformer, bert, resnet, decode: not of"),
        (["--rows", "NaN"], "--rows selects rows of the tables of time and of instructions: not of compiled"),
    ],
)
@pytest.mark.usefixtures("report")
def test_a_table_of_its_own_has_no_rows_and_no_instructions(monkeypatch, capsys, options, says):
    command = runpy.run_path(str(ROOT / "tests" / "bench" / "__main__.py"), run_name="bench")
    monkeypatch.setattr(sys, "argv", ["bench", *options, "--workloads", "memory", "first-use"])
    with pytest.raises(SystemExit) as ended:
        command["arguments"]()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_every_table_has_its_place_in_the_documentation(report, markdown_page, tmp_path):
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text())
    markdown_page.write(page, "bench", dict.fromkeys(report.TABLES, "| figures |"))
    assert page.read_text().count("| figures |") == len(report.TABLES)


def test_a_page_without_markers_is_refused(markdown_page, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no place\n")
    with pytest.raises(ValueError, match="no markers for the table 'time'"):
        markdown_page.write(page, "bench", {"time": ""})


def test_a_cell_is_the_median_and_half_the_quartiles_distance(report):
    assert report.ratio([1.0, 1.1, 1.2, 1.3, 9.0]) == "1.200 ±0.100"


def test_misses_of_the_cache_are_reported_beside_instructions(report):
    import callgrind

    once = callgrind.total("events: Ir Dr Dw I1mr D1mr\nsummary: 1\ntotals: 100 40 20 7\n")
    assert once == {"instructions": 100, "l1i misses": 7}
    rows = {report.VANILLA: 200.0, "Python routine, forward": 250.0}
    text = report.markdown(
        {
            "machine": dict.fromkeys(("cpu", "cores", "python", "torch", "amanda"), "x"),
            "l1i misses": [{"workload": "torch.add", "counts": rows}],
        }
    )["l1i misses"]
    assert "| Python routine, forward | +50 (+25.00%) |" in text
