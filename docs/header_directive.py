"""``.. header:: amanda/tool.h``: all that a C++ header declares, in its order."""

from __future__ import annotations

import functools
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# breathe's own doxygenfile declares the namespace again on every page, and finds files by their last name only.
DIRECTIVES = {"class": "doxygenclass", "struct": "doxygenstruct", "enum": "doxygenenum", "typedef": "doxygentypedef"}
DIRECTIVES |= {"function": "doxygenfunction", "variable": "doxygenvariable", "define": "doxygendefine"}


@functools.cache
def declarations(xml: Path) -> list[tuple[str, int, str, str, str]]:
    """(file, line, kind, qualified name, parameters) of all that namespaces hold, in Doxygen's XML."""
    compounds = [ElementTree.parse(path).getroot() for path in sorted(xml.glob("[cn]*_1_1*.xml"))]
    compounds += [
        ElementTree.parse(path).getroot() for path in sorted([*xml.glob("struct*.xml"), *xml.glob("name*.xml")])
    ]
    compounds = [compound for root in compounds for compound in root.iter("compounddef")]
    namespaces = {compound.findtext("compoundname") for compound in compounds if compound.get("kind") == "namespace"}
    found = set()
    for compound in compounds:
        kind, name = compound.get("kind"), compound.findtext("compoundname", "")
        members = compound.iter("memberdef") if kind == "namespace" else ()
        if kind in DIRECTIVES and name.rpartition("::")[0] in namespaces:
            members = [compound]
        for member in members:
            full_name = name if member is compound else f"{name}::{member.findtext('name')}"
            location = member.find("location")
            assert location is not None
            file, line = location.get("file", ""), int(location.get("line", 0))
            found.add((file, line, member.get("kind", ""), full_name, member.findtext("argsstring") or ""))
    return sorted(found)


class Header(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        header = self.arguments[0]
        (projects,) = self.config.breathe_projects.values()
        known = declarations(Path(self.env.srcdir, projects).resolve())
        here = [entry for entry in known if entry[0].endswith(f"/{header}")]
        if not here:
            raise self.error(f"no header {header} in Doxygen's XML")
        times = Counter(name for *_, name, _ in known)
        lines = []
        for _, _, kind, name, parameters in here:
            signature = parameters if kind == "function" and times[name] > 1 else ""
            lines += [f".. {DIRECTIVES[kind]}:: {name}{signature}", ""]
        title = nodes.section(ids=[nodes.make_id(header)])
        title += nodes.title("", header)
        self.state.nested_parse(StringList(lines, source=header), 0, title)
        return [title]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("header", Header)
    return {"parallel_read_safe": True}
