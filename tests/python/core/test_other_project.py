"""`amanda` on PyPI is another project, with a command of the same name."""

import re
import sys
import warnings

import pytest
from amanda.core import other_project


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "[env]" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


@pytest.mark.parametrize("others", [[], ["amanda_nn-0.1.0.dist-info"], ["amanda", "amandas-1.dist-info"]])
def test_without_it_nothing_is_said(site, others):
    for other in others:
        (site / other).mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other_project.warn()


def test_with_it_a_warning_names_the_folder_and_the_remedy(site):
    (site / "amanda-0.2.dist-info").mkdir()
    text = (
        f"[import] another project named 'amanda' is installed in {site}, and its command `amanda` replaces this one's; "
        "this project is amanda-nn: pip uninstall amanda, then pip install --force-reinstall --no-deps amanda-nn"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        other_project.warn()


def test_entries_of_the_search_path_may_be_paths(site, monkeypatch):
    monkeypatch.setattr(sys, "path", [site])
    (site / "amanda-0.2.dist-info").mkdir()
    with pytest.warns(UserWarning, match="another project named 'amanda'"):
        other_project.warn()
