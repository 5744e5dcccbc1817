"""Outputs on pages are those of runs, and pictures are those of pages."""

import re
import runpy
import shlex

import pytest
from repository import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "page_runs.py"))
DOCS = ROOT / "docs"
RUNS = [
    pytest.param(page, run, id=f"{page.stem}: {run.command}")
    for page in SCRIPT["pages"]()
    for run in SCRIPT["runs"](page)
]


@pytest.fixture
def output(preloaded):
    """The output of a command, and behind it what it printed to standard error."""

    def run(command):
        done = preloaded.run("-m", "amanda", *shlex.split(command), folder=SCRIPT["PROGRAMS"])
        return f"{done.stdout}\n{done.stderr}"

    return run


@pytest.mark.parametrize(("page", "run"), RUNS)
def test_the_page_shows_what_the_command_prints(page, run, output):
    found, known = (SCRIPT["shape"](text) for text in (run.part(output(run.command)), run.text))
    if run.command.startswith("profile "):  # which lines a listing has depends on their times: its head is compared
        found, known = ([line for line in lines if "│" not in line or "line calls" in line] for lines in (found, known))
    found, known = ([line for line in lines if line != SCRIPT["CUT"]] for lines in (found, known))
    assert found == known, f"run: python scripts/page_runs.py {page}"


def test_the_shape_is_what_stays_on_another_machine():
    shape = SCRIPT["shape"]
    assert shape(" a  1.5 ms\n ───\n") == shape(" a   12 s\n ─────\n") != shape(" a  1.5 MB\n ───\n")


@pytest.mark.parametrize("answer", SCRIPT["ANSWERS"])
def test_the_picture_is_drawn_from_the_page(answer):
    assert (SCRIPT["PICTURES"] / f"{answer}.svg").read_text() == SCRIPT["picture"](answer), "run: scripts/page_runs.py"


def test_the_first_page_has_each_picture_and_links_it_to_its_page():
    shown = re.findall(r"\]\(images/answers/(\w+)\.svg\)\]\(([^)#]+)", (DOCS / "index.md").read_text())
    assert shown == [(answer, page) for answer, (page, *_) in SCRIPT["ANSWERS"].items()]


def test_texts_name_the_share_that_the_program_prints():
    (run,) = [run for run in SCRIPT["runs"](DOCS / "tools.md") if run.command == "flops digits.py"]
    (share,) = re.findall(r"right: ([\d.]+%)", run.text)
    for page in ("pruning.md", "quantization.md"):
        assert f"reads {share} of its test digits right" in (DOCS / "tools" / page).read_text()
