"""What the tests of this folder share: they run commands, and install wheels into fresh environments."""

import site
import subprocess
import sys
import venv


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
