"""Names in code link to their entries in the reference: `amanda.apply`, `Profile`, `context.op_id`, `amanda::Scope`.

A link needs no mark in the page. A name that more than one entry ends with, as `reset` does, is no link. `amanda.NAME`
that is neither in the reference nor in the package is a warning.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import re
import sys
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?=\(|$)")
CPP_NAME = re.compile(r"amanda(?:::\w+)+(?=[( ]|$)")
CPP_PAGE = re.compile(r"(?:^|/)(?:building_)?cpp")  # names without a prefix are C++ there
# Names of objects of these classes in pages and examples.
VARIABLES = {"context": "amanda.OpContext", "scope": "amanda.Scope"}
IMPORT = re.compile(
    r'<span class="kn">from</span>(?:<span class="w"> </span>| )<span class="nn">(amanda[\w.]*)</span>'
    r'(?:<span class="w"> </span>| )<span class="kn">import</span>(.*)'
)
USE = re.compile(
    r'(?P<first><span class="n">(\w+)</span>)(?P<rest><span class="o">\.</span><span class="n">(\w+)</span>)?'
)
CODE = re.compile(r'<div class="highlight-(?:python|ipython3) .*?</pre>', re.DOTALL)


class NameLinks(SphinxPostTransform):
    default_priority = 100  # after references, which roles in docstrings make, are resolved

    def run(self, **_: Any) -> None:
        for node in list(self.document.findall(nodes.literal)):
            if not inside(node, nodes.reference | nodes.title | nodes.literal) and not any(
                node.findall(nodes.reference)
            ):
                self._link(node)

    def _link(self, node: nodes.literal) -> None:
        text, of_cpp = node.astext(), CPP_PAGE.search(self.env.docname)
        target = None
        if found := CPP_NAME.match(text):
            target = cpp_entries(self.app).get(found[0])
        elif found := NAME.match(text):
            target = cpp_entries(self.app).get(f"amanda::{found[0]}") if of_cpp else entry(self.app, found[0])
            if target is None:
                self._must_exist(found[0], node)
        if target is not None:
            document, anchor = target
            uri = self.app.builder.get_relative_uri(self.env.docname, document)
            link = nodes.reference("", "", internal=True, refuri=f"{uri}#{anchor}", reftitle=anchor)
            node.replace_self(link)
            link += node

    def _must_exist(self, name: str, node: nodes.Node) -> None:
        if name.startswith("amanda.") and not exists(name) and name.rpartition(".")[2] not in SUFFIXES:
            LOGGER.warning("no such name: %s", name, location=node, type="name_links")


SUFFIXES = {"h", "md", "py", "so", "trace", "hpp"}  # of files


def inside(node: nodes.Node, kinds: Any) -> bool:
    while (node := node.parent) is not None:
        if isinstance(node, kinds):
            return True
    return False


def entry(app: Sphinx, name: str) -> tuple[str, str] | None:
    """The page and the anchor of the one entry in the reference of Python with that name, or that ends with it."""
    objects = app.env.domains["py"].objects  # type: ignore[attr-defined]
    first, _, rest = name.partition(".")
    if first in VARIABLES and rest:
        name = f"{VARIABLES[first]}.{rest}"
    elif name not in objects and (name[:1].isupper() or "." in name or "_" in name):
        ends = endings(app).get(name, ())
        name = ends[0] if len(ends) == 1 and (name[:1].isupper() or objects[ends[0]].objtype in CALLED) else ""
    found = objects.get(name)
    return (found.docname, found.node_id) if found else None


CALLED = {"class", "exception", "function", "method"}


@functools.cache
def endings(app: Sphinx) -> dict[str, list[str]]:
    """Full names by what they end with: `MagnitudePruning`, `pruning.MagnitudePruning`."""
    found: dict[str, list[str]] = {}
    for name, known in app.env.domains["py"].objects.items():  # type: ignore[attr-defined]
        parts = name.split(".")
        for start in range(1, len(parts)) if not known.aliased else ():
            found.setdefault(".".join(parts[start:]), []).append(name)
    return found


@functools.cache
def cpp_entries(app: Sphinx) -> dict[str, tuple[str, str]]:
    """The page and the anchor of each C++ name; of the first, if functions are overloaded."""
    found: dict[str, tuple[str, str]] = {}
    for name, _, _, document, anchor, _ in app.env.domains["cpp"].get_objects():
        found.setdefault(name, (document, anchor))
    return found


@functools.cache
def exists(name: str) -> bool:
    """True for a module of the package, which need not be importable here, and for what one has."""
    module, _, last = name.rpartition(".")
    if not module:
        return name == "amanda"
    if not exists(module):
        return False
    try:
        if importlib.util.find_spec(name):
            return True
    except ModuleNotFoundError:  # `module` is none
        pass
    owner, _, attribute = module.rpartition(".")
    holder = sys.modules.get(module) or getattr(importlib.import_module(owner or module), attribute, None)
    return hasattr(holder, last)


def link_code(app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: nodes.document | None) -> None:
    """Names in blocks of Python: `amanda.NAME`, and names that the page imports from amanda."""
    if app.builder.format != "html" or "body" not in context or page.startswith("_modules"):
        return
    imported = {
        name: (f"{module}.{name}", name)
        for module, names in IMPORT.findall(context["body"])
        for name in re.findall(r'class="n">(\w+)', names)
    }

    def link(found: re.Match[str]) -> str:
        of_amanda = found[2] == "amanda" and found[4]
        names = [f"amanda.{found[4]}"] if of_amanda else imported.get(found[2], ())
        target = next(filter(None, (entry(app, name) for name in names)), None)
        if target is None:
            return found[0]
        linked, rest = (found[0], "") if of_amanda else (found["first"], found["rest"] or "")
        uri = html.escape(f"{app.builder.get_relative_uri(page, target[0])}#{target[1]}")
        return f'<a class="name" href="{uri}" title="{target[1]}">{linked}</a>{rest}'

    context["body"] = CODE.sub(lambda block: USE.sub(link, block[0]), context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(NameLinks)
    app.connect("html-page-context", link_code)
    return {"parallel_read_safe": True}
