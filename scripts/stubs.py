"""Writes Python stubs of the extension modules: `python scripts/stubs.py OUTPUT_FOLDER`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ["_core", "_cupti", "_rematerialization", "_tensorflow", "_tools", "_torch", "_torch_compile", "_torch_tools"]

# One process for all: it spends most of its time on `import amanda`.
STUBGEN = """
import sys
import amanda
from pybind11_stubgen import main
for module in sys.argv[2:]:
    main([f"amanda.{module}", "--output-dir", sys.argv[1], "--exit-code"])
"""

# pybind11-stubgen leaves out special names. An Operator's instances have a __name__, as functions have.
NAME = "    @property\n    def __name__(self) -> str:\n        ...\n"


def generate(folder: Path) -> None:
    """Puts a `.pyi` of each extension module of the installed package into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-c", STUBGEN, scratch, *MODULES], check=True, stdout=subprocess.DEVNULL)
        for module in MODULES:
            text = (Path(scratch) / "amanda" / f"{module}.pyi").read_text()
            # The module's own names, which it calls by their full names in some places.
            text = text.replace(f"amanda.{module}.", "")
            # A pointer may be None; pybind11 does not say so.
            text = re.sub(r"(\w+: \w+) = None", r"\1 | None = None", text)
            text = _short(_with_name(text) if module == "_core" else text)
            (folder / f"{module}.pyi").write_text(text)


def _with_name(text: str) -> str:
    before, operator, after = text.partition("class Operator:\n")
    members, properties, rest = after.partition("    @property\n")
    if not properties:
        raise ValueError("[stubs] the stub of _core has no class Operator with properties to put its __name__ before")
    return before + operator + members + NAME + properties + rest


def _short(text: str) -> str:
    """The same with each docstring of one line, and each empty body, on one line, as in other code."""
    text = re.sub(r'"""\n *(.*)\n *"""', r'"""\1"""', text)
    return re.sub(r":\n +\.\.\.\n", ": ...\n", text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
