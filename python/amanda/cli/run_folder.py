"""The folder of a run: what ran, and the results of its tools, as files that other programs read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import amanda
from amanda.cli import doctor, program_arguments
from amanda.reports import sections
from amanda.reports.exports import PART
from amanda.reports.progress import Progress
from amanda.reports.rank import this_rank
from amanda.reports.results import Results
from amanda.reports.tool_sections import sections_of
from amanda.reports.whole_file import whole_file

SCHEMA = 2  # of run.json, and of the files that it lists
FORMATS = ("json", "csv", "parquet")


def begun(command: Sequence[str], tools: Sequence[str]) -> dict[str, Any]:
    """The content of run.json while the process runs."""
    rank = this_rank()
    return {
        "schema": SCHEMA,
        "amanda": amanda.__version__,
        "command": list(command),
        "tools": list(tools),
        "host": rank.host,
        "process": os.getpid(),
        "rank": rank.number,
        "world_size": rank.world_size,
        "started": time.time(),  # seconds since 1970
        "state": "running",
        "files": [],
    }


def ended(status: object, operators: int) -> dict[str, Any]:
    """The content that run.json has in addition after the end.

    Arguments:
        status: the program's exit status.
        operators: the number of operators that ran.
    """
    number = status if isinstance(status, int) else int(status is not None)  # as Python does with sys.exit's argument
    return {
        "state": "ended",
        "ended": time.time(),
        "status": number,
        "operators": operators,
        "environment": doctor.environment(),
    }


class RunFolder:
    """Files of one process. Those of a rank of several have its number in their names: "profile.module.rank3.json". Parquet
    files are parts of datasets: "profile/module/rank=3/part-0.parquet".

    "run.json" is there from `begin` on, and says whether the run has ended, and which files it has written.

    Arguments:
        path: it is made if it is not there.
        command: the program and its arguments.
        formats: of the results: "json", "csv", "parquet".
        overwrite: removes the files of an earlier run, as its run.json lists them.

    Raises:
        FileExistsError: it holds another run, and `overwrite` is False.
        ImportError: what writes one of the formats is not installed.
        OSError: it cannot be made, or written to.
        ValueError: the path is empty.
    """

    def __init__(
        self, path: str, command: Sequence[str], tools: Sequence[str], formats: Sequence[str], overwrite: bool = False
    ) -> None:
        for name in formats:
            if missing := program_arguments.missing_packages(name):
                raise ImportError(f"{name} needs {' and '.join(missing)}: pip install 'amanda-nn[files]'")
        if not path:
            raise ValueError("--out is a folder, got ''")
        self._formats = formats
        self._given, self.path = path, os.path.abspath(path)  # the program may change the current folder
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"--out is a folder, and {path!r} is a file")
        self._rank = this_rank()
        self._run = begun(command, tools)
        os.makedirs(self.path, exist_ok=True)
        self._overwrite = overwrite
        if not overwrite and (os.path.exists(self._run_file()) or self._of_other_ranks()):
            raise self._is_taken()

    def begin(self) -> None:
        """Removes an earlier run if that is asked for, and writes that this one runs. Raises as the constructor."""
        if self._overwrite:
            self._remove_earlier()
        try:
            with open(self._run_file(), "x"):  # of two runs that begin at once, one gets it
                pass
        except FileExistsError:
            raise self._is_taken() from None
        try:
            self._write_run()
        except OSError as error:
            os.remove(self._run_file())
            raise OSError(error.errno, error.strerror, self._given) from None

    def close(self, status: object, operators: int) -> None:
        """Writes how the run ended, as `ended` has it."""
        self._run |= ended(status, operators)
        self._write_run()

    def write(self, name: str, tool: Results[Any, Any]) -> None:
        """Writes a tool's rows for each of its groupings, and the tool's part of a page as JSON. Raises `OSError`."""
        files = [(kind, by) for kind in self._formats for by in tool.groupings()]
        with Progress(f"writing the results of {name}", len(files) + 1) as progress:  # and those of a page
            for kind, by in files:
                progress.now(f"{kind} by {by}")
                self._write_rows(name, tool, kind, by)
                progress.advance()
            self.write_page(name, lambda: sections_of(name, tool))
            progress.advance()

    def _write_rows(self, name: str, tool: Results[Any, Any], kind: str, by: str) -> None:
        if kind == "parquet":
            self.file(f"{name}/{by}/{self._rank.folder}/{PART}")
            tool.to_dataset(os.path.join(self.path, name, by), by, rank=self._rank.number)
        else:
            getattr(tool, f"to_{kind}")(self.file(f"{name}.{by}{self._rank.suffix}.{kind}"), by)

    def write_page(self, name: str, made: Callable[[], Sequence[sections.Section]]) -> None:
        """Writes sections of a page, if the formats have JSON. Raises `OSError`."""
        if "json" in self._formats:
            data = {"schema": sections.SCHEMA, "sections": [section.as_json() for section in made()]}
            path = self.file(f"{name}.page{self._rank.suffix}.json")
            with whole_file(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
                json.dump(data, file, allow_nan=False)

    def file(self, name: str) -> str:
        """The path of a file of this run, which is listed from now on."""
        self._run["files"].append(name)
        self._write_run()
        return os.path.join(self.path, name)

    def _is_taken(self) -> FileExistsError:
        return FileExistsError(
            f"{self._given!r} holds a run already: give another folder, or --overwrite to replace that run"
        )

    def _write_run(self) -> None:
        with whole_file(self._run_file()) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self._run, file, indent=1)

    def _run_file(self) -> str:
        return os.path.join(self.path, f"run{self._rank.suffix}.json")

    def _of_other_ranks(self) -> list[str]:
        """The run files of an earlier run with another number of processes that this run does not replace."""
        own = (
            {"run.json"} if self._rank.world_size == 1 else {f"run.rank{i}.json" for i in range(self._rank.world_size)}
        )
        return [
            name for name in os.listdir(self.path) if re.fullmatch(r"run(\.rank\d+)?\.json", name) and name not in own
        ]

    def _remove_earlier(self) -> None:
        self._remove(os.path.basename(self._run_file()))
        for name in self._of_other_ranks() if self._rank.number == 0 else ():
            self._remove(name)

    def _remove(self, run_file: str) -> None:
        """Removes what this file lists, the folders that are empty then, and the file."""
        try:
            with open(os.path.join(self.path, run_file), encoding="utf-8") as file:
                names = json.load(file)["files"]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            names = []
        names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        for name in [*names, run_file]:
            path = os.path.abspath(os.path.join(self.path, name))
            if not path.startswith(os.path.join(self.path, "")):
                continue
            if os.path.isfile(path):
                os.remove(path)
            with contextlib.suppress(OSError):  # it has other files, or another rank has removed it
                while (path := os.path.dirname(path)) != self.path:
                    os.rmdir(path)
