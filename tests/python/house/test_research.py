"""python/amanda/research/README.md has every tool of amanda.research, with a paper that its page cites, and an oracle."""

import importlib
import inspect
import re

import amanda
import amanda.research
from repository import ROOT

README = ROOT / "python" / "amanda" / "research" / "README.md"
PAGES = sorted((ROOT / "docs" / "research").glob("*.md"))


def rows():
    """(module, name, paper, oracle) of each row."""
    return re.findall(r"^\| `(\w+)\.(\w+)` \| (.+?) \| (.+?) \|$", README.read_text(), re.MULTILINE)


def test_every_tool_has_a_row():
    listed = {getattr(importlib.import_module(f"amanda.research.{module}"), name) for module, name, *_ in rows()}
    public = [getattr(amanda.research, name) for name in amanda.research.__all__]
    tools = {kind for kind in public if inspect.isclass(kind) and issubclass(kind, amanda.Tool)}
    bases = {base for kind in tools for base in kind.__mro__[1:]}
    assert listed == tools - bases | {amanda.research.Campaign}


def test_a_page_cites_every_paper():
    pages = " ".join(" ".join(page.read_text() for page in PAGES).split())
    for _, name, paper, oracle in rows():
        author, venue = re.match(r"\w\. (\w+) et al\.: .*, (\S+ \d{4})$", paper).groups()
        assert re.search(rf"{author} et al\.[^)]*{venue}", pages), name
        assert oracle
