"""The arguments of all commands that run a program: the program, and the options of scopes."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from typing import IO, Any

from amanda.cli import exported_program, onnx_model
from amanda.cli.program import Program
from amanda.driver import protocol, registry

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".keras", ".gguf")


def add(command: argparse.ArgumentParser) -> None:
    """The options of scopes, and a program with its arguments, which come last."""
    option = command.add_argument
    for name, (choices, meaning) in _scope_options().items():
        option(f"--{name}", choices=choices, default=choices[0], help=f"{meaning} (default: %(default)s)")
    option("--strict", action="store_true", help="exit status 4 if something ran that the tools did not look at")
    option("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="a module, as python -m")
    option(
        "program",
        nargs=argparse.REMAINDER,
        help="a script and its arguments, after all options of ours; or a .pt2 file of torch.export, or an .onnx file, "
        "which --inputs FILE.npz and --runs N may follow",
    )


def program_of(given: argparse.Namespace) -> Program | None:
    """The program of a command line, or None if there is none. Raises `ValueError`: it cannot be read."""
    if given.module == []:
        raise ValueError("argument -m: expected a module")
    top = getattr(given, "top", None)
    if top is not None and top < 0:
        raise ValueError(f"argument --top: expected a number of rows, got {top}")
    if given.module:
        return Program.of_module(given.module)
    if not given.program:
        return None
    suffix = os.path.splitext(given.program[0])[1]
    if suffix in _WEIGHTS:
        raise ValueError(f"{given.program[0]!r} is no program: give the script that loads it")
    made = {exported_program.SUFFIX: Program.of_exported, onnx_model.SUFFIX: Program.of_onnx}
    make = made.get(suffix, Program.of_script)
    try:
        return make(given.program)
    except OSError as error:
        raise ValueError(f"can't open {given.program[0]!r}: {error.strerror}") from None


def required(given: argparse.Namespace) -> Program:
    """The same, where there must be one."""
    program = program_of(given)
    if program is None:
        values = vars(given).items()
        taken = next((name for name, value in values if isinstance(value, str) and value.endswith(".py")), "")
        why = f"; --{taken} took {getattr(given, taken)!r} as its value" if taken else ""
        raise ValueError(f"expected a script, or -m and a module, or a .pt2 or .onnx file{why}")
    return program


def options(given: argparse.Namespace) -> dict[str, Any]:
    """The options of scopes, by name."""
    return {name: getattr(given, name) for name in _scope_options()}


def output_file(path: str | None) -> IO[str] | None:
    """The file that --json names, or None if it names none. Raises `ValueError`: it cannot be written."""
    try:
        return open(path, "w", encoding="utf-8") if path else None
    except OSError as error:
        raise ValueError(f"argument --json: can't write {path!r}: {error.strerror}") from None


def files_of(given: argparse.Namespace, options: Sequence[str]) -> dict[str, str]:
    """The absolute paths of the files that options name, by option: the program may change the current folder.

    Raises:
        ValueError: one could not be written after the program's run.
    """
    paths = {name: getattr(given, name) for name in options if getattr(given, name)}
    for name, path in paths.items():
        special = os.path.exists(path) and not os.path.isfile(path)
        changed = path if special else os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.access(changed, os.W_OK):
            raise ValueError(f"argument --{name}: can't write {path!r}")
        if missing := missing_packages(name):
            raise ValueError(f"argument --{name}: it needs {', '.join(missing)}: pip install 'amanda-nn[files]'")
    return {name: os.path.abspath(path) for name, path in paths.items()}


def missing_packages(form: str) -> list[str]:
    """The packages that write files of this form and are not installed."""
    needed = ("pandas", "pyarrow") if form == "parquet" else ()
    return [package for package in needed if importlib.util.find_spec(package) is None]


def _scope_options() -> dict[str, protocol.Option]:
    return {name: option for driver in registry.registered() for name, option in driver.options.items()}
