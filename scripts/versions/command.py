"""The command line of `make versions`."""

import argparse
import dataclasses
import json
import sys

import table
import trial
from environment import FOLDER, Environment, NotInstalledError
from pairs import PAIRS, SLICE, Pair


def main() -> None:
    parser = argparse.ArgumentParser(prog="versions", description="Tries Amanda on pairs of Python and PyTorch.")
    parser.add_argument("pairs", nargs="*", type=_pair, default=PAIRS, metavar="PYTHON:TORCH")
    parser.add_argument(
        "--slice", action="store_true", help="fewer tests, on a build that is not optimized, and no row of the table"
    )
    parser.add_argument(
        "--environment", action="store_true", help="only makes the environments, or downloads what lacks"
    )
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if given.environment:
        make_environments(given.pairs)
        return
    results = [tried(pair, given.slice) for pair in given.pairs]
    print(closing(results), flush=True)
    sys.exit(not all(map(trial.succeeded, results)))


def make_environments(pairs: list[Pair]) -> None:
    for pair in pairs:
        try:
            Environment(pair).make()
        except NotInstalledError as error:
            print(f"[versions] {pair}: {error}", flush=True)
        else:
            print(f"[versions] {pair}: its environment is complete", flush=True)


def tried(pair: Pair, a_slice: bool) -> trial.Result:
    print(f"[versions] {pair}", flush=True)
    result = trial.run(pair, SLICE, optimized=False) if a_slice else trial.run(pair)
    (FOLDER / pair.folder / "result.json").write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    if not a_slice:
        table.write([result])
    print(f"[versions] {table.row(result)}", flush=True)
    if result.seconds:
        took = ", ".join(f"{step} {seconds} s" for step, seconds in result.seconds.items())
        print(f"[versions] {took}", flush=True)
    for name, suite in result.suites.items():
        for test in suite.failed:
            print(f"[versions] failed: {name}: {test}", flush=True)
    return result


def closing(results: list[trial.Result]) -> str:
    """The last line: how each pair ended."""
    ends = [f"{result.pair} {end(result)}" for result in results]
    return f"[versions] {'; '.join(ends)}"


def end(result: trial.Result) -> str:
    if result.installed != "yes":
        return f"not tried: {result.installed}"
    return "passed" if trial.succeeded(result) else f"failed: see build/versions/{Pair.parse(result.pair).folder}"


def _pair(text: str) -> Pair:
    try:
        return Pair.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
