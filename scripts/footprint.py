"""Measures Amanda's size and the time of its import: `python scripts/footprint.py dist/amanda_nn-*.whl`.

The wheel is installed into a folder of its own; torch is that of this Python. Times are medians over fresh processes: in
turn, one imports torch alone, and one torch and then amanda. `--write` puts the figures into docs/installation.md. The exit
status is 1 if the import takes longer than `LIMIT`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "installation.md"
BEGIN, END = "<!-- footprint: written by scripts/footprint.py -->\n", "<!-- end of footprint -->\n"
LIMIT = 0.150  # seconds of CPU time
KINDS = {".so": "libraries", ".a": "libraries", ".py": "Python", ".pyi": "Python", ".pyc": "bytecode", ".h": "headers"}
# Python's collector goes through all of torch's objects at some allocation: not at one of Amanda's import.
TORCH = "import gc, torch, time, json; gc.collect()\n"
AMANDA = """
wall, cpu = time.perf_counter(), time.process_time()
import amanda
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, amanda.__file__]))
"""


class Import(NamedTuple):
    """Seconds that `import amanda` took, in a process that had imported torch."""

    wall: float
    cpu: float
    process: float  # CPU time of the whole process, less that of one that imported torch alone


def install(wheel: Path, folder: Path) -> None:
    """Installs as pip does, with bytecode."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder, wheel], check=True)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder, by kind."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            kind = KINDS.get(path.suffix, "other")
            found[kind] = found.get(kind, 0) + path.stat().st_size
    return found


def imports(folder: Path, rounds: int) -> list[Import]:
    """Measurements of the package in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}

    def run(program: str) -> tuple[str, float]:
        """The output of the program, and its CPU time."""
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"[footprint] importing failed, with exit status {process.returncode}")
        return printed, used.ru_utime + used.ru_stime

    found = []
    for _ in range(rounds + 1):
        _, alone = run(TORCH)
        printed, both = run(TORCH + AMANDA)
        wall, cpu, where = json.loads(printed)
        if not Path(where).is_relative_to(folder):
            sys.exit(f"[footprint] another amanda was imported: {where}")
        found.append(Import(wall, cpu, both - alone))
    return found[1:]  # the first one read files that are in memory now


def table(wheel: Path, installed: dict[str, int], measured: list[Import]) -> str:
    """The figures, as Markdown."""
    with zipfile.ZipFile(wheel) as archive:
        files = len(archive.namelist())
    parts = ", ".join(f"{_mb(size)} {kind}" for kind, size in sorted(installed.items(), key=lambda item: -item[1]))
    _, cpu, process = zip(*measured, strict=True)
    rows = [
        ("the wheel", f"{_mb(wheel.stat().st_size)}, {files} files"),
        ("installed", f"{_mb(sum(installed.values()))}: {parts}"),
        ("`import amanda` after `import torch`, CPU time", _ms(cpu)),
        ("the same, from the CPU time of whole processes", _ms(process)),
    ]
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]
    what = f"{len(measured)} processes each; Python {platform.python_version()}, torch {version('torch')}"
    return "\n".join([*lines, "", f"Medians ± half the interquartile range of {what}, {os.cpu_count()} cores.", ""])


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _ms(seconds: tuple[float, ...]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return f"{middle * 1e3:.0f} ± {(high - low) / 2 * 1e3:.0f} ms"


def rewritten(page: str, figures: str) -> str:
    """The page with these figures."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return "".join([before, BEGIN, figures, END, after])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("wheel", type=Path, help="make wheel puts one into dist/")
    arguments.add_argument(
        "--rounds", type=int, default=21, help="how many processes of each kind (default: %(default)s)"
    )
    arguments.add_argument("--write", action="store_true", help=f"writes the figures into docs/{PAGE.name}, too")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        install(given.wheel, folder)
        installed, measured = sizes(folder), imports(folder, given.rounds)
    figures = table(given.wheel, installed, measured)
    wall = _ms(tuple(each.wall for each in measured))
    print(f"{figures}\nWall time: {wall}; on a busy machine, that of other processes, too.")
    if given.write:
        PAGE.write_text(rewritten(PAGE.read_text(), figures))
    took = statistics.median(each.cpu for each in measured)
    if took > LIMIT:
        sys.exit(f"[footprint] import amanda took {took * 1e3:.0f} ms, more than {LIMIT * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
