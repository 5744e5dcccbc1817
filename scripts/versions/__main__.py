"""Tries Amanda on pairs of Python and PyTorch: `python scripts/versions 3.12:2.11.0`; without arguments, all pairs.

Each pair gets an environment, a build and a package of its own below build/versions, about 2 GB; 4 GB of CUDA's libraries
are shared. It is built, imported, and tested with ctest and parts of the Python tests. The result is in
`result.json` in its folder, and in a row of the table in docs/installation.md. The exit status is 1 if something failed.
"""

import argparse
import dataclasses
import json
import sys

import table
import trial
from environment import FOLDER
from pairs import PAIRS, Pair


def main() -> None:
    parser = argparse.ArgumentParser(prog="versions", description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", type=Pair.parse, default=PAIRS, metavar="PYTHON:TORCH")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = []
    for pair in given.pairs:
        print(f"[versions] {pair}", flush=True)
        result = trial.run(pair)
        folder = FOLDER / f"{pair.python}-{pair.torch}"
        folder.mkdir(exist_ok=True)
        (folder / "result.json").write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
        results.append(result)
        table.write([result])
        print(f"[versions] {table.row(result)}", flush=True)
        for name, suite in result.suites.items():
            for test in suite.failed:
                print(f"[versions] failed: {name}: {test}", flush=True)
    sys.exit(not all(map(succeeded, results)))


def succeeded(result: trial.Result) -> bool:
    """A pair that could not be installed here has not failed: its row says so."""
    if result.installed != "yes":
        return True
    suites = result.suites.values()
    return result.imports == "yes" and all(suite.passed and not suite.failed and not suite.error for suite in suites)


main()
