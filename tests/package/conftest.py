import os
import sys
from pathlib import Path

import pytest
from fresh_environment import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # From what `make` has compiled, where it has: that is most of the time.
    compiled = f"--config-settings=build-dir={ROOT}/build/release"
    run(ROOT / "scripts" / "wheel.sh", folder, ROOT, compiled, env={**os.environ, "PYTHON": sys.executable})
    (wheel,) = folder.glob("amanda_nn-*.whl")
    return wheel
