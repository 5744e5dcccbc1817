"""Runs the benchmark on wheels: `python scripts/bench_wheel.py WHEEL... -- [option of tests/bench...]`.

Each wheel is installed into a folder of its own, from which the benchmark imports it; torch and the rest are those of this
Python. The options select tables that are printed, as `--workloads add decode`: see `python tests/bench --help`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import footprint

BENCH = Path(__file__).parents[1] / "tests" / "bench"


def bench(wheel: Path, options: list[str]) -> None:
    """Prints the tables for a wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        footprint.install(wheel, folder)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        program = "import amanda; print(amanda.__file__)"
        where = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout
        if not Path(where).is_relative_to(folder):
            sys.exit(f"[bench] {wheel} was not imported, but {where.strip() or 'nothing'}")
        print(f"[bench] {wheel}", flush=True)
        subprocess.run([sys.executable, BENCH, *options], env=environment, check=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        usage="%(prog)s [-h] WHEEL... [-- option of tests/bench...]", description=__doc__.partition("\n")[0]
    )
    arguments.add_argument("wheels", type=Path, nargs="+", help="scripts/wheels puts them into dist/")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = arguments.parse_args(sys.argv[1:split])
    for wheel in given.wheels:
        bench(wheel.absolute(), sys.argv[split + 1 :])


if __name__ == "__main__":
    main()
