"""The folder of a run: what ran, and the results of its tools, as files that other programs read."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import amanda
from amanda.reports.results import Results
from amanda.reports.whole_file import whole_file

SCHEMA = 1  # of run.json, and of the files that it lists
NEEDS = {"json": (), "csv": (), "parquet": ("pandas", "pyarrow")}  # what writes a format


class RunFolder:
    """Files of one process. Those of a rank of several have its number in their names: "profile.module.rank3.json".

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
            missing = [module for module in NEEDS[name] if importlib.util.find_spec(module) is None]
            if missing:
                raise ImportError(f"{name} needs {' and '.join(missing)}: pip install 'amanda[{name}]'")
        if not path:
            raise ValueError("--out is a folder, got ''")
        self._formats = formats
        self._given, self.path = path, os.path.abspath(path)  # the program may change the current folder
        rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "1")
        self._suffix = f".rank{rank}" if rank.isdigit() and world_size != "1" else ""
        self._run: dict[str, Any] = {
            "schema": SCHEMA,
            "amanda": amanda.__version__,
            "command": list(command),
            "tools": list(tools),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "rank": int(rank) if rank.isdigit() else 0,
            "world_size": int(world_size) if world_size.isdigit() else 1,
            "started": time.time(),  # seconds since 1970
            "state": "running",
            "files": [],
        }
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"--out is a folder, and {path!r} is a file")
        os.makedirs(self.path, exist_ok=True)
        self._overwrite = overwrite
        if not overwrite and os.path.exists(self._run_file()):
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
        except OSError:
            os.remove(self._run_file())
            raise

    def close(self, status: object) -> None:
        """Writes how the run ended: the program's exit status."""
        number = (
            status if isinstance(status, int) else int(status is not None)
        )  # as Python does with sys.exit's argument
        self._run |= {"state": "ended", "ended": time.time(), "status": number}
        self._write_run()

    def write(self, name: str, tool: Results[Any, Any]) -> None:
        """Writes the rows of a tool, for each of its groupings. Raises `OSError`."""
        for kind in self._formats:
            for by in tool.groupings():
                file = f"{name}.{by}{self._suffix}.{kind}"
                getattr(tool, f"to_{kind}")(os.path.join(self.path, file), by)
                self._run["files"].append(file)
        self._write_run()

    def _is_taken(self) -> FileExistsError:
        return FileExistsError(
            f"{self._given!r} holds a run already: give another folder, or --overwrite to replace that run"
        )

    def _write_run(self) -> None:
        with whole_file(self._run_file()) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self._run, file, indent=1)

    def _run_file(self) -> str:
        return os.path.join(self.path, f"run{self._suffix}.json")

    def _remove_earlier(self) -> None:
        try:
            with open(self._run_file(), encoding="utf-8") as file:
                names = json.load(file)["files"]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            names = []
        names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        for name in [*names, os.path.basename(self._run_file())]:
            path = os.path.join(self.path, os.path.basename(name))
            if os.path.exists(path):
                os.remove(path)
