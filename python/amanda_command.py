"""The command `amanda`. A module of its own: where `import amanda` fails, the command says why in one sentence."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys


def main() -> None:
    """Runs the command line of this process.

    Raises:
        SystemExit: as `amanda.cli.main.main`; or the package cannot be imported.
    """
    if _only_prints(sys.argv[1:]):
        sys.modules["torch"] = None  # type: ignore[assignment]  # hides it: the text needs no framework, whose import takes seconds
    try:
        from amanda.cli.main import main as run
    except ImportError as error:
        if not str(error).startswith("["):  # none of Amanda's
            raise
        if sys.argv[1:2] == ["doctor"]:
            print(_installation())
        sys.exit(f"amanda: {error}")
    run()


def _only_prints(arguments: list[str]) -> bool:
    """True for `amanda`, `amanda help ...`, `amanda --help` and `amanda COMMAND --help`. Behind a script, --help is its."""
    return arguments[:1] in ([], ["help"]) or not {"-h", "--help"}.isdisjoint(arguments[:2])


def _version(folder: str) -> str:
    found = importlib.metadata.distributions(name="amanda-nn", path=[folder])
    return next((one.version for one in found), "of unknown version")


def _installation() -> str:
    """The first lines of `amanda doctor`, as far as they are known without the package."""
    folder = os.path.dirname(__file__)
    found = [
        ("amanda", f"{_version(folder)}, in {folder}; it cannot be imported"),
        ("python", f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}"),
        ("C library", " ".join(platform.libc_ver()) or "unknown"),
    ]
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:{width}}  {value}" for name, value in found)
