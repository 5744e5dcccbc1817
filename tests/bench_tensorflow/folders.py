"""Makes the modules that it shares with tests/bench importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))
