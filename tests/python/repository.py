"""Where tests find the repository's other folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
