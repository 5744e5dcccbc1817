"""`amanda report`: a page about the run that a folder holds, whatever has become of it."""

import json
import re
import shutil
import sys

import amanda
import pytest
import torch
from amanda.cli.main import main
from amanda.cli.run_folder import RunFolder
from amanda.reports import progress
from amanda.reports.tool_sections import sections_of
from amanda.tools.flops import Flops
from amanda.tools.profile import Profile
from page_tables import tables_of
from terminals import ERASED, Terminal, percents, plain


@pytest.fixture
def tools():
    model, found = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), {"profile": Profile(), "flops": Flops()}
    with amanda.apply(*found.values()):
        model(torch.ones(2, 3))
    return found


@pytest.fixture
def write_run(tmp_path, tools):
    """write_run(formats): the folder of a run that has ended."""

    def write(formats=("json",)):
        folder = RunFolder(str(tmp_path / "out"), ["train.py", "--lr=1"], list(tools), formats)
        folder.begin()
        for name, tool in tools.items():
            folder.write(name, tool)
        folder.close(None, 4)
        return tmp_path / "out"

    return write


@pytest.fixture
def report(tmp_path, capsys):
    """report(folder): the exit status, the error output, the page."""

    def run(folder):
        path, status = tmp_path / "page.html", 0
        path.unlink(missing_ok=True)
        try:
            main(["report", str(folder), "-o", str(path)])
        except SystemExit as stopped:
            status = stopped.code
        return status, capsys.readouterr().err, path.read_text() if path.exists() else None

    return run


def headings(page):
    return re.findall(r'data-heading="(.*?)"', page)


def tables(page):
    return {table["heading"]: table for table in tables_of(page)}


def test_a_page_has_all_that_the_tools_show(write_run, report, tools):
    status, errors, page = report(write_run())
    assert (status, errors) == (0, "")
    assert "<title>train.py --lr=1</title>" in page
    for text in ("tools: profile, flops", "4 operators ran, ended with status 0 after", "torch  ", "python  "):
        assert text in page
    expected = [section.as_json() for name, tool in tools.items() for section in sections_of(name, tool)]
    assert sorted(headings(page)) == sorted([*(section["heading"] for section in expected), "environment"])
    assert headings(page)[:3] == [
        "profile: answer",
        "profile: time of modules and their operators",
        "profile: operators over time",
    ]
    for section in expected:
        if section["kind"] == "table":
            fields = tables(page)[section["heading"]]
            assert {name: section[name] for name in fields} == fields


def test_a_terminal_shows_how_far_the_page_is(write_run, report, monkeypatch):
    folder = write_run()
    _, _, page = report(folder)
    terminal = Terminal()
    monkeypatch.setattr(progress, "FIRST", 0)
    monkeypatch.setattr(progress, "PERIOD", 0)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal.file)
    status, _, shown = report(folder)
    assert (status, shown) == (0, page)
    text = terminal.text()
    reading, building = text.split(ERASED)[:-1]
    assert "reading results: flops.page.json " in plain(reading)
    assert percents(reading)[-1] == 100
    assert "building the page: flops by op " in plain(building)
    assert "building the page: writing the file " in plain(building)
    assert percents(building)[-1] == 100
    assert text.endswith(ERASED)


def test_ranks_are_one_page(write_run, report, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in ("0", "2"):
        monkeypatch.setenv("RANK", rank)
        folder = write_run()
    status, errors, page = report(folder)
    assert status == 1
    assert errors == "amanda report: missing: rank 1 of 3: nothing was written here\n"
    assert "missing: rank 1 of 3: nothing was written here" in page
    assert {"rank 0: profile by op", "rank 2: profile by op"} <= set(headings(page))
    assert "rank 0 of 3" in page
    assert "rank 2 of 3" in page


def test_what_is_left_of_a_run_is_shown(write_run, report):
    folder = write_run()
    run = json.loads((folder / "run.json").read_text())
    flops = (folder / "flops.page.json").read_text()

    (folder / "flops.page.json").write_text(flops[: len(flops) // 2])
    (folder / "profile.page.json").rename(folder / "elsewhere")
    status, errors, page = report(folder)
    assert status == 1
    first, second = errors.splitlines()
    assert first == "amanda report: missing: profile.page.json: it is listed, and is not there"
    assert second.startswith("amanda report: missing: flops.page.json cannot be read: ")
    assert "missing: profile.page.json: it is listed, and is not there" in page
    assert headings(page) == ["environment"]

    (folder / "flops.page.json").write_text(flops)
    del run["ended"], run["status"], run["operators"], run["environment"]
    (folder / "run.json").write_text(json.dumps(run | {"state": "running", "files": ["flops.page.json"]}))
    status, errors, page = report(folder)
    killed = f"run.json says that process {run['process']} has not ended: it still runs, or was killed"
    assert (status, errors) == (1, f"amanda report: missing: {killed}\n")
    assert "flops by op" in headings(page)
    assert "not ended: it still runs, or was killed" in page

    (folder / "run.json").write_text('{"schema": 1, "sta')
    status, errors, page = report(folder)
    assert status == 1
    assert errors.startswith("amanda report: missing: run.json cannot be read: ")
    assert errors.endswith("; the files beside it are shown\n")
    assert "flops by op" in headings(page)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": 99}, "flops.page.json cannot be read: its schema is 99, and this version reads 1"),
        (
            {"sections": [{"kind": "hologram", "heading": "h"}]},
            "flops.page.json cannot be read: [report] a section of kind 'hologram' cannot be read: known kinds are text, "
            "icicle, timeline, curve, listing, table",
        ),
    ],
)
def test_data_of_another_version_is_refused(write_run, report, change, text):
    folder = write_run()
    data = json.loads((folder / "flops.page.json").read_text())
    (folder / "flops.page.json").write_text(json.dumps(data | change))
    status, errors, page = report(folder)
    assert (status, errors) == (1, f"amanda report: missing: {text}\n")
    assert "profile by op" in headings(page)


def test_a_run_without_data_for_a_page(write_run, report):
    status, errors, page = report(write_run(["csv"]))
    assert status == 1
    assert errors.endswith("run.json lists no data for a page; run with --format json (or json and others)\n")
    assert headings(page) == ["environment"]


def test_a_folder_without_a_run(report, tmp_path):
    for folder, text in [
        (
            tmp_path / "nothing",
            f"there is no folder '{tmp_path}/nothing'; amanda run --out {tmp_path}/nothing makes one",
        ),
        (tmp_path, f"'{tmp_path}' holds no run: there is no run.json; amanda run --out {tmp_path} writes one"),
    ]:
        status, errors, page = report(folder)
        assert (status, page) == (2, None)
        assert errors.endswith(f"amanda report: error: {text}\n")


def test_two_runs_are_on_one_page(write_run, tmp_path, capsys):
    folder = write_run()
    for name in ("before", "after"):
        shutil.copytree(folder, tmp_path / name)
    after = tmp_path / "after" / "profile.page.json"
    after.write_text(after.read_text().replace("aten::relu", "aten::gelu"))
    path = tmp_path / "both.html"
    main(["report", str(tmp_path / "before"), str(tmp_path / "after"), "-o", str(path)])
    assert capsys.readouterr().out == f"the page is {path}\n"
    page = path.read_text()
    assert "<title>before and after</title>" in page
    assert (
        page.count('data-heading="before: profile: answer"') == page.count('data-heading="after: profile: answer"') == 1
    )
    (table,) = [table for table in tables_of(page) if table["heading"] == "profile by op"]
    rows = dict(zip(table["texts"][0], zip(*table["texts"][1:4], strict=True), strict=True))
    assert table["headings"][:4] == ["op", "calls, before", "calls, after", "calls, difference"]
    assert rows["aten::linear"] == ("1", "1", "+0")
    assert rows["aten::relu"] == ("1", "", "only before")
    assert page.count("<h3>before</h3>") == page.count("<h3>after</h3>") > 3
    assert page.count("<h2>source code of ") == len(set(re.findall('data-path="([^"]*)"', page))), (
        "one panel for each file"
    )
    assert rows["aten::gelu"] == ("", "1", "only after")


def test_three_runs_are_not_on_one_page(write_run, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", *[str(write_run())] * 3])
    assert stopped.value.code == 2
    assert "a page is about one run or two, got 3 folders" in capsys.readouterr().err
