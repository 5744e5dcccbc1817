"""The tutorials: every cell runs, in order, as in a notebook."""

import html
import importlib.util
import json
import re
import subprocess
import sys

import pytest
import torch
from repository import ROOT
from tutorials import PAGES, cells, run_cell


@pytest.fixture
def like_a_process_of_its_own(tmp_path, monkeypatch):
    """An empty folder, and back to this process's imports and threads afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads, loaded = torch.get_num_threads(), set(sys.modules)
    yield
    torch.set_num_threads(threads)
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("like_a_process_of_its_own")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_cell_of_the_tutorial_runs(page):
    names = {"__name__": "__main__"}
    for line, code in cells(page):
        run_cell(page, line, code, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tutorial_asserts_what_it_teaches(page):
    text = page.read_text()
    assert len(cells(page)) == text.count("{code-cell}") >= 2
    assert sum("\nassert " in code for _, code in cells(page)) >= 2


@pytest.mark.skipif(
    importlib.util.find_spec("myst_nb") is None, reason="docs/requirements.txt is not installed; scripts/setup.sh docs"
)
def test_the_site_shows_what_the_cells_print_and_offers_them_as_a_notebook(tmp_path):
    page = (ROOT / "docs" / "tutorials" / "driver.md").read_text()  # it needs no PyTorch
    (tmp_path / "driver.md").write_text(page.partition("## Next")[0])
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", str(ROOT / "docs"), "-D", "extensions=myst_nb"]
    command += ["-D", "root_doc=driver", str(tmp_path), str(tmp_path / "site" / "html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    printed = "[amanda] in tool 'Limit': clip after arrays::relu in h3"
    site = re.sub("<[^>]*>", "", (tmp_path / "site" / "html" / "driver.html").read_text())
    assert printed in html.unescape(site)
    (notebook,) = (tmp_path / "site" / "html" / "_downloads").rglob("driver.ipynb")
    executed = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(executed) == page.count("{code-cell}")
    assert printed in "".join(executed[-1]["outputs"][0]["text"])
