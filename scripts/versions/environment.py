"""Virtual environments for pairs of Python and PyTorch, below build/versions."""

import re
import shutil
import subprocess
from pathlib import Path

from pairs import CUDA, PACKAGES, Pair

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"


class NotInstalledError(Exception):
    """An environment cannot be made here; the text says why."""


class Environment:
    """A virtual environment, which is made if it is not there."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.folder = FOLDER / pair.folder
        self.python = self.folder / "env" / "bin" / "python"

    def make(self) -> None:
        """Raises `NotInstalledError`."""
        if not self.python.exists():
            _run(interpreter(self.pair.python), "-m", "venv", self.folder / "env")
        if self.ask("import importlib.metadata as m; print(m.version('torch').split('+')[0])") != self.pair.torch:
            self._install("--no-deps", f"torch=={self.pair.torch}")
        self._install_packages()
        if (
            "+cu" in self.ask("import torch.version as v; print(v.__version__)", alone=True)
            and not self._nvidia().exists()
        ):
            self._nvidia().symlink_to(self._cuda(), target_is_directory=True)
        if self.ask("import torch; print(torch.ones(2).sum().item())") != "2.0":
            raise NotInstalledError(f"torch {self.pair.torch} is installed, but cannot be imported")

    def _install_packages(self) -> None:
        """Those of PACKAGES, if they or their versions are others than the last time."""
        constraints = self.folder / "constraints.txt"
        constraints.write_text(re.sub(r"^torch==.*\n", "", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE))
        installed, wanted = self.folder / "packages", f"{' '.join(PACKAGES)}\n{constraints.read_text()}"
        if not installed.exists() or installed.read_text() != wanted:
            self._install("--constraint", constraints, *PACKAGES)
            installed.write_text(wanted)

    def ask(self, program: str, alone: bool = False) -> str:
        """The output of the program; an empty text if it fails. `alone`: `torch.version` without the rest of torch."""
        if alone:
            file = self._site() / "torch" / "version.py"
            program = f"exec(open({str(file)!r}).read()); print(__version__)"
        done = subprocess.run(
            [self.python, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=self.folder
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def use(self, stage: Path) -> None:
        """Imports the package from this folder from now on."""
        (self._site() / "amanda-stage.pth").write_text(f"{stage}\n")

    def _site(self) -> Path:
        return self.folder / "env" / "lib" / f"python{self.pair.python}" / "site-packages"

    def _nvidia(self) -> Path:
        return self._site() / "nvidia"

    def _cuda(self) -> Path:
        """CUDA's libraries, 3.4 GB; all environments share them."""
        folder = FOLDER / "cuda"
        if not (folder / "nvidia").exists():
            self._install("--no-deps", "--target", folder, *CUDA)
        return folder / "nvidia"

    def _install(self, *arguments: object) -> None:
        options = ("--quiet", "--disable-pip-version-check", "--no-compile")  # few of the modules are imported
        _run(self.python, "-m", "pip", "install", *options, *arguments)


def interpreter(version: str) -> Path:
    """The Python of this version that is on the PATH, or that pyenv has."""
    found = shutil.which(f"python{version}")
    own = [Path(found)] if found else []
    for python in [*own, *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]:
        shown = subprocess.run([python, "--version"], capture_output=True, text=True)  # pyenv's links may lead nowhere
        if shown.returncode == 0 and shown.stdout.startswith(f"Python {version}."):
            return python
    raise NotInstalledError(f"no Python {version} is on the PATH or among pyenv's")


def _run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise NotInstalledError(f"{' '.join(map(str, command[:4]))} ... failed: {said[-1]}")
