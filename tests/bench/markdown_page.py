"""Tables in pages of the documentation that a command writes: `make bench`, `make tools-table`."""

import os
import platform
import re
from pathlib import Path


def machine():
    import amanda
    import torch

    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "amanda": amanda.__version__,
    }


def machine_line(about):
    return (
        f"{about['cpu']}, {about['cores']} cores, one thread used; Python {about['python']}, torch {about['torch']}, "
        f"amanda {about['amanda']}."
    )


def table(headings, rows, texts=()):
    """Of numbers, but for the first column and those whose headings are in `texts`."""
    sides = [" --- |" if heading in (headings[0], *texts) else " ---: |" for heading in headings]
    lines = ["| " + " | ".join(headings) + " |", "|" + "".join(sides)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def write(page, command, texts):
    """Puts each text between its markers in the page, `<!-- command: name -->` and `<!-- end: name -->`.

    Raises:
        ValueError: a marker is missing.
    """
    content = page.read_text()
    for name, text in texts.items():
        before, _, after = _parts(page, content, command, name)
        content = f"{before}{text}\n{after}"
    page.write_text(content)


def written(page, command, name):
    """What `write` has put there.

    Raises:
        ValueError: a marker is missing.
    """
    return _parts(page, page.read_text(), command, name)[1].removesuffix("\n")


def _parts(page, content, command, name):
    """What comes before the text, begin marker included; the text; and the rest."""
    begin, end = f"<!-- {command}: {name} -->\n", f"<!-- end: {name} -->"
    before, found, rest = content.partition(begin)
    text, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"[{command}] {page.name} has no markers for the table '{name}': {begin.strip()} … {end}")
    return before + begin, text, end + after
