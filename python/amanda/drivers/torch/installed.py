"""The torch that this Python finds, and the others that are installed. This file does not import torch."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import NamedTuple


class Metadata(NamedTuple):
    """The metadata of a torch that pip or conda has installed."""

    version: str  #: as "2.13.0+cpu"
    folder: str  #: in which its package is

    def __str__(self) -> str:
        return f"{self.version} in {self.folder}"


def spec() -> ModuleSpec | None:
    """The spec of torch; None if it is not installed."""
    found = _found()
    return None if found is None or _is_left_over(found) else found


def left_over() -> list[str]:
    """The folders called torch that hold no Python package: what remains of one that was removed."""
    found = _found()
    return list(found.submodule_search_locations or ()) if found is not None and _is_left_over(found) else []


def _found() -> ModuleSpec | None:
    try:
        return importlib.util.find_spec("torch")
    except ValueError:  # the program has put a module without a spec into sys.modules
        return None


def _is_left_over(found: ModuleSpec) -> bool:
    return found.origin is None and found.submodule_search_locations is not None


def load() -> ModuleType:
    """Imports torch.

    Raises:
        ImportError: it does not load, or is another module of that name.
    """
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: of the libraries that it opens itself
        found = spec()
        where = os.path.dirname(found.origin or "") if found else ""
        raise ImportError(
            f"[torch] amanda needs a torch that can be imported, and the one in {where} can't: {_why(error, where)}; "
            f"install torch again for {sys.executable}{others_as_text(where)}"
        ) from error
    if not hasattr(torch, "__version__"):
        raise ImportError(
            f"[torch] `import torch` imports {torch.__file__}, which is not PyTorch; rename that file or folder, or start "
            "Python elsewhere"
        )
    return torch


def _why(error: Exception, torch_folder: str) -> str:
    """The reason for an error of `import torch`, in one line. PyTorch's own text is long where it's for another Python."""
    modules = sorted(map(os.path.basename, glob.glob(os.path.join(glob.escape(torch_folder), "_C.*"))))
    if modules and not any(f"_C{suffix}" in modules for suffix in EXTENSION_SUFFIXES):
        return f"it is for another Python, because its extension module is {', '.join(modules)}"
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def metadata(folders: Sequence[str] | None = None) -> Iterator[Metadata]:
    """The torches in these folders, by default in those where Python looks."""
    for folder in dict.fromkeys(map(os.path.realpath, map(str, sys.path if folders is None else folders))):
        for path in glob.glob(os.path.join(glob.escape(folder), "torch-[0-9]*.dist-info")):
            yield Metadata(os.path.basename(path)[len("torch-") : -len(".dist-info")], folder)


def others(torch_folder: str) -> list[Metadata]:
    """The torches in other folders than this one, which Python does not import."""
    used = os.path.realpath(os.path.dirname(torch_folder))
    return [other for other in metadata() if other.folder != used]


def others_as_text(torch_folder: str) -> str:
    """The other torches, for a message about the one in this folder; empty if there are none."""
    listed = " and ".join(f"torch {other}" for other in others(torch_folder))
    return f" (another one is not imported, because its folder is later on sys.path: {listed})" if listed else ""


def mixed(torch_version: str, torch_folder: str) -> str | None:
    """The text of a warning if the folder has metadata of another version than the torch in it; otherwise None."""
    folder = os.path.dirname(torch_folder)
    named = sorted(one.version for one in metadata([folder]))
    if all(_public(version) == _public(torch_version) for version in named):
        return None
    return (
        f"[torch] the torch that is imported is {torch_version}, and {folder} has the metadata of torch "
        f"{' and '.join(named)}: files of several versions may be mixed there; pip uninstall torch until none is left, "
        "then install one"
    )


def warn_if_mixed(torch: ModuleType) -> None:
    """Warns if two versions of torch are installed in one folder."""
    text = mixed(torch.__version__, torch.__path__[0])
    if text is not None:
        warnings.warn(text, stacklevel=2)


def _public(version: str) -> str:
    """Without the local part: torch 2.13.0+cu130 of PyPI is 2.13.0 in its metadata."""
    return str(version).partition("+")[0]
