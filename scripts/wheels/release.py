"""A wheel for one pair of Python and PyTorch, compiled with a profile."""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "wheel"


class Build:
    """A folder of CMake's, in which the libraries that a profile is of are compiled twice, and the rest once.

    Args:
        python: the Python that the wheel is for, with the torch that it is for.
        name: the name of this pair, as "3.12-2.11.0".
    """

    def __init__(self, python: Path, name: str) -> None:
        self.python = python
        self.folder = FOLDER / name
        self._profile = self.folder / "profile"

    def record(self) -> None:
        """Makes a profile: builds, and runs scripts/profile_training.py."""
        with tempfile.TemporaryDirectory() as folder:
            wheel = self._wheel(Path(folder, "dist"), "generate")
            package = Path(folder, "package")
            run([self.python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", package, wheel])
            shutil.rmtree(self._profile, ignore_errors=True)
            variables = {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
            run([self.python, "-W", "ignore", ROOT / "scripts" / "profile_training.py"], **variables)

    def use(self, folder: Path) -> Path:
        """The wheel in `folder`, compiled with the profile."""
        return self._wheel(folder, "use")

    def pack(self, archive: Path) -> None:
        """Saves the profile."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        with (
            archive.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,  # else its name is in it
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for path in sorted(self._profile.iterdir()):
                info = tarfile.TarInfo(path.name)
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)

    def unpack(self, archive: Path) -> None:
        """Takes a profile that was saved, in place of a recorded one."""
        shutil.rmtree(self._profile, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(self._profile, filter="data")

    def _wheel(self, folder: Path, profile: str) -> Path:
        settings = {
            "build-dir": self.folder,
            "cmake.define.AMANDA_PROFILE": profile,
            "cmake.define.AMANDA_PROFILE_DIR": self._profile,
        }
        options = [f"--config-settings={key}={value}" for key, value in settings.items()]
        run([ROOT / "scripts" / "wheel.sh", folder, ".", *options], PYTHON=str(self.python))
        (wheel,) = folder.glob("*.whl")
        return wheel


def run(command: list[object], **variables: str) -> str:
    """The output of the command, with these variables."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"[wheels] {' '.join(map(str, command[:4]))} ... failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
