"""The builds of the driver that this installation holds: one for each minor version of torch, because LibTorch has no
stable ABI. This file does not import torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator

from amanda import _core
from amanda.drivers.torch.versions import KNOWN, is_newer_than_known, minor_of

# A folder in the package's, which holds the extension modules and libraries that link LibTorch.
_FOLDER = re.compile(r"_torch_(\d+)_(\d+)")


class Builds:
    """The builds in a package.

    Args:
        path: the package's `__path__`, where Python looks for its modules. `use` puts the folder of a build first.
    """

    def __init__(self, path: list[str]) -> None:
        self._path = path
        self._package = path[0]
        self.used: str | None = None  #: the minor version of torch whose build is in use, as "2.13"

    def minors(self) -> list[str]:
        """The minor versions of torch that there are builds for, in ascending order, as ["2.12", "2.13"]."""
        found = (_FOLDER.fullmatch(name) for name in os.listdir(self._package))
        return [f"{major}.{minor}" for major, minor in sorted((int(m[1]), int(m[2])) for m in found if m)]

    def use(self, torch_version: str, others: Callable[[], str] = str) -> None:
        """From now on, the package's extension modules that link LibTorch are those built for this version of torch.

        Args:
            others: returns what the message is to say of other torches that are installed

        Raises:
            ImportError: there is no build for it.
        """
        minor = minor_of(torch_version)
        minors = self.minors()
        if minor not in minors:
            raise ImportError(_no_build(torch_version, minors) + others())
        folder = os.path.join(self._package, "_torch_" + minor.replace(".", "_"))
        if folder not in self._path:
            self._path.insert(0, folder)
        self.used = minor

    @contextlib.contextmanager
    def loading(self, torch_version: str, torch_folder: str) -> Iterator[None]:
        """A context in which the modules of the build that is used are imported.

        Raises:
            ImportError: they do not load with this torch.
        """
        try:
            yield
        except ImportError as error:
            if not (error.path or "").endswith(".so"):  # not of the dynamic loader, which says which module it loads
                raise
            raise ImportError(
                f"[torch] the build for torch {self.used} does not load with torch {torch_version} in {torch_folder}: "
                f"{error}; if that torch was built from source, or with another C++ ABI, {_AGAIN}"
            ) from error


_AGAIN = (
    "build amanda again, against a torch from 2.11 on: pip install --no-build-isolation "
    f"amanda_nn-{_core.__version__}.tar.gz (its sdist), or . in a checkout"
)


def _no_build(torch_version: str, minors: list[str]) -> str:
    installed = f"torch {torch_version} is installed"
    otherwise = _AGAIN
    if is_newer_than_known(torch_version):
        installed += f", which is newer than this amanda knows ({KNOWN[0]} to {KNOWN[-1]})"
        otherwise = "a newer amanda"
    return (
        f"[torch] {installed}, and this amanda holds {_listed(minors)} only; install torch {minors[-1]} "
        f'(pip install "torch=={minors[-1]}.*"), or {otherwise}'
    )


def _listed(minors: list[str]) -> str:
    if len(minors) == 1:
        return f"a build for torch {minors[0]}"
    return f"builds for torch {', '.join(minors[:-1])} and {minors[-1]}"
