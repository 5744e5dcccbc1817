"""What the tests of this folder share: they run commands, and install wheels into fresh environments."""

import importlib.metadata
import site
import subprocess
import sys
import venv
from pathlib import Path

from packaging.requirements import Requirement


def run(*command, **kwargs):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def install(wheel, folder):
    """(its Python, the package's folder) of a fresh environment in `folder` that has the wheel, and borrows torch."""
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (environment,) = (folder / "env" / "lib").glob("python*/site-packages")
    # A .pth inside a .pth'd folder has no effect, so this environment's own staged amanda stays out of sight.
    (environment / "borrowed.pth").write_text(site.getsitepackages()[0])
    return python, environment / "amanda"


def install_with_dependencies_only(wheel, folder):
    """The scripts' folder of a fresh environment with the wheel, torch, and what they depend on: nothing else is found.

    The packages are links to those of this environment.
    """
    python, package = install(wheel, folder)
    environment = package.parent
    (environment / "borrowed.pth").unlink()
    (own,) = importlib.metadata.distributions(path=[str(environment)], name="amanda-nn")
    for distribution in [own, *_closure([*own.requires, "torch"])][1:]:
        root = Path(distribution.locate_file(""))
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            link = environment / top
            if not link.exists() and (root / top).exists():
                link.symlink_to(root / top)
    return python.parent


def _closure(requirements):
    """The distributions that requirements without extras name, and what these require."""
    found, left = {}, list(requirements)
    while left:
        requirement = Requirement(left.pop())
        if requirement.name in found or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            found[requirement.name] = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # CUDA's libraries, where torch is a build for CPUs
        left += found[requirement.name].requires or []
    return found.values()
