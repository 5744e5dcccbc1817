"""The stubs of the extension modules say what the modules are."""

import importlib.util

import pytest
from repository import ROOT

spec = importlib.util.spec_from_file_location("stubs", ROOT / "scripts" / "stubs.py")
stubs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stubs)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    stubs.generate(folder)
    return folder


@pytest.mark.parametrize("module", stubs.MODULES)
def test_the_stub_is_up_to_date(generated, module):
    written = (ROOT / "python" / "amanda" / f"{module}.pyi").read_text()
    assert written == (generated / f"{module}.pyi").read_text(), "run `make stubs`"
