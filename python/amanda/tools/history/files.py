"""Files: what a history writes, in folders that belong to one training run each."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amanda.toolkit.programs import Rank, this_rank

from .alarms import Alarm
from .parameter_histograms import Histogram
from .series import Point
from .wandb import WandbRun
from .write_errors import explained

LAYOUT = 2  # of a folder; see docs/tools/history.md


class Files:
    """Writers for these folders, and a run of W&B, where they are not None. From the first step on, a folder has a mark of
    each rank.

    Raises:
        TypeError: `wandb` is no run.
        ImportError: what one needs is not installed.
        FileExistsError: a folder has a run already, and this one does not resume it.
        OSError: a folder cannot be made.
    """

    def __init__(self, parquet: Any, tensorboard: Any, wandb: Any, resume: bool) -> None:
        given = {"pyarrow": parquet, "tensorboard": tensorboard}
        self._folders = list(dict.fromkeys(Path(folder).absolute() for folder in given.values() if folder is not None))
        rank = this_rank()
        self._mark = f"history{rank.suffix}.json"
        self._writers = [_writer(needs, Path(folder), rank) for needs, folder in given.items() if folder is not None]
        if wandb is not None:
            self._writers.append(WandbRun(wandb))
        self._resume, self._started = resume, False
        for folder in self._folders:
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
                if not resume and (folder / self._mark).exists():
                    raise _taken(folder)

    def start(self, step: int) -> None:
        """To be called before the first step; of several processes that have the same folder, one succeeds.

        Raises:
            ValueError: it resumes a run from its beginning, or before, which would drop all of it; or a run that was
                written in another layout.
        """
        if self._started:
            return
        first: int | None = None  # step of the run that is resumed
        for folder in self._folders:
            with explained(folder):
                try:
                    with open(folder / self._mark, "x") as file:
                        json.dump({"version": LAYOUT, "created": time.time(), "first_step": step}, file)
                except FileExistsError:
                    if not self._resume:
                        raise _taken(folder) from None
                    _check_layout(folder, self._mark)
                    first = _first_step(folder / self._mark)
        if first is not None:
            if step <= first:
                raise ValueError(
                    f"[history] resume=True, and the first step is {step}, would drop all that was written; tell the "
                    "number of the first step: amanda.scheduled(history, first_step=...)"
                )
            for writer in self._writers:
                writer.drop_from(step)
        self._started = True

    def add(
        self, step: int, points: list[Point], alarms: Sequence[Alarm], histograms: Sequence[Histogram] = ()
    ) -> None:
        for writer in self._writers:
            writer.add(step, points, alarms, histograms)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Another `add` opens them again."""
        for writer in self._writers:
            writer.close()


def _first_step(mark: Path) -> int:
    try:
        return int(json.loads(mark.read_text())["first_step"])
    except (ValueError, KeyError):  # the run ended while it wrote this
        return 0


def _writer(needs: str, folder: Path, rank: Rank) -> Any:
    try:
        if needs == "pyarrow":
            from .parquet import ParquetFolder

            return ParquetFolder(folder, rank)
        from .tensorboard import TensorBoardFolder

        return TensorBoardFolder(folder / f"rank{rank.number}" if rank.world_size > 1 else folder)
    except ImportError as error:
        option = "parquet" if needs == "pyarrow" else needs
        raise ImportError(f"[history] {option}= needs {needs}: pip install 'amanda-nn[files]'") from error


def _check_layout(folder: Path, mark: str) -> None:
    version = json.loads((folder / mark).read_text())["version"]
    if version != LAYOUT:
        raise ValueError(
            f"[history] {str(folder)!r} has a run in layout {version}, and this version of Amanda writes {LAYOUT}; give a "
            "new folder"
        )


def _taken(folder: Path) -> FileExistsError:
    return FileExistsError(
        f"[history] {str(folder)!r} has another run; give each run a folder of its own, or go on with that one: resume=True"
    )
