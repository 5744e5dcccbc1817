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
CPP_NAME = re.compile(r"amanda(?:::\w+)+(?=\(|$)")
# What pages and examples call an object of that class.
VARIABLES = {"context": "amanda.OpContext", "scope": "amanda.Scope"}
IMPORT = re.compile(
    r'<span class="kn">from</span> *<span class="nn">(amanda[\w.]*)</span> *<span class="kn">import</span> *(.*)'
)
USE = re.compile(r'<span class="n">(\w+)</span>(?:<span class="o">\.</span><span class="n">(\w+)</span>)?')


class NameLinks(SphinxPostTransform):
    default_priority = 100  # after references, which roles in docstrings make, are resolved

    def run(self, **_: Any) -> None:
        for node in list(self.document.findall(nodes.literal)):
            if not isinstance(node.parent, nodes.reference | nodes.title) and not self.document.get("generated"):
                self._link(node)

    def _link(self, node: nodes.literal) -> None:
        text = node.astext()
        if found := NAME.match(text):
            target = entry(self.app, found[0])
            if target is None:
                self._must_exist(found[0], node)
        else:
            target = cpp_entry(self.app, found[0]) if (found := CPP_NAME.match(text)) else None
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


def entry(app: Sphinx, name: str) -> tuple[str, str] | None:
    """The page and the anchor of the one entry in the reference of Python with that name, or that ends with it."""
    objects = app.env.domains["py"].objects  # type: ignore[attr-defined]
    first, _, rest = name.partition(".")
    name = f"{VARIABLES[first]}.{rest}" if first in VARIABLES and rest else name
    if name not in objects and (name.startswith("amanda.") or name[:1].isupper() or "." in name):
        ends = endings(app).get(name.removeprefix("amanda."), ())
        name = next(iter(ends)) if len(ends) == 1 else ""
    found = objects.get(name)
    return (found.docname, found.node_id) if found else None


_ENDINGS: dict[str, list[str]] = {}


def endings(app: Sphinx) -> dict[str, list[str]]:
    """Full names by what they end with: `MagnitudePruning`, `pruning.MagnitudePruning`."""
    if not _ENDINGS:
        for name, found in app.env.domains["py"].objects.items():  # type: ignore[attr-defined]
            parts = name.split(".")
            for start in range(1, len(parts)) if not found.aliased else ():
                _ENDINGS.setdefault(".".join(parts[start:]), []).append(name)
    return _ENDINGS


def cpp_entry(app: Sphinx, name: str) -> tuple[str, str] | None:
    return cpp_entries(app).get(name)


_CPP: dict[str, tuple[str, str]] = {}


def cpp_entries(app: Sphinx) -> dict[str, tuple[str, str]]:
    if not _CPP:
        for name, _, _, document, anchor, _ in app.env.domains["cpp"].get_objects():
            _CPP.setdefault(name, (document, anchor))
    return _CPP


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
    body = context["body"]
    imported = {
        name: f"{module}.{name}"
        for module, names in IMPORT.findall(body)
        for name in re.findall(r'class="n">(\w+)', names)
    }

    def link(found: re.Match[str]) -> str:
        name = f"amanda.{found[2]}" if found[1] == "amanda" and found[2] else imported.get(found[1], "")
        target = entry(app, name) if name else None
        if target is None:
            return found[0]
        uri = f"{app.builder.get_relative_uri(page, target[0])}#{target[1]}"
        inner, rest = found[0], ""
        if found[1] != "amanda" and found[2]:
            inner, dot, after = found[0].partition('<span class="o">.</span>')
            rest = dot + after
        return f'<a class="name" href="{html.escape(uri)}" title="{name}">{inner}</a>{rest}'

    context["body"] = re.sub(
        r'<div class="highlight-(?:python|ipython3|default) .*?</pre>',
        lambda block: USE.sub(link, block[0]),
        body,
        flags=re.DOTALL,
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(NameLinks)
    app.connect("html-page-context", link_code)
    return {"parallel_read_safe": True}
