"""Writes Python stubs of the extension modules: `python scripts/stubs.py OUTPUT_FOLDER`."""

import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ["_core", "_cupti", "_tools", "_torch"]


def generate(folder: Path) -> None:
    """Puts a `.pyi` of each extension module of the installed package into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        for module in MODULES:
            command = [sys.executable, "-c", "import amanda; from pybind11_stubgen import main; main()"]
            command += [f"amanda.{module}", "--output-dir", scratch, "--exit-code"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            text = (Path(scratch) / "amanda" / f"{module}.pyi").read_text()
            # The module's own names, which it calls by their full names in some places.
            (folder / f"{module}.pyi").write_text(text.replace(f"amanda.{module}.", ""))


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
