"""docs/caches.md names caches, files and tests that exist."""

import re

import pytest
from repository import ROOT

PAGE = (ROOT / "docs" / "caches.md").read_text()
CACHES = re.findall(r"^\| `([\w:]+)`, (?:`([\w/.]+)`|the same file) \|", PAGE, re.MULTILINE)
NUMBERS = re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", PAGE, re.MULTILINE)
TESTS = re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)


def test_the_page_lists_caches_and_tests():
    assert len(CACHES) == PAGE.count("\n| `") - len(NUMBERS) > 10
    assert len(TESTS) > 10


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, file in [*CACHES, *NUMBERS] if file])
def test_a_cache_is_in_its_file(name, file):
    words = set(re.findall(r"\w+", (ROOT / file).read_text()))
    assert set(name.split("::")) <= words


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_exists(file, name):
    text = (ROOT / file).read_text()
    assert re.search(rf"^def {name}\(|^TEST(_F|_P)?\(\w+, {name}\)", text, re.MULTILINE)
