"""Finding the Parquet datasets in a folder: those with parts such as ``rank=3/part-0.parquet``."""

from __future__ import annotations

import json
from pathlib import Path


def dataset_of(folder: Path) -> tuple[Path, list[int]]:
    """A dataset, and the ranks that it has: the folder itself, the first one of `amanda run`, or the only one inside.

    Raises:
        FileNotFoundError: there is none.
        ValueError: there are several.
    """
    ranks = _ranks(folder)
    if not ranks:
        listed = _listed(folder)
        found = listed[:1] or sorted({path.parent for path in folder.glob("**/rank=*")})
        found = [path for path in found if _ranks(path)]
        if not found:
            raise FileNotFoundError(
                f"[report] {str(folder)!r} has no files such as rank=0/part-0.parquet; amanda run --format parquet --out "
                "FOLDER and to_dataset of tools write them"
            )
        if len(found) > 1:
            raise ValueError(f"[report] {str(folder)!r} has several datasets; give one: {', '.join(map(str, found))}")
        (folder,) = found
        ranks = _ranks(folder)
    return folder, ranks


def _ranks(folder: Path) -> list[int]:
    numbers = [path.parent.name.removeprefix("rank=") for path in folder.glob("rank=*/*.parquet")]
    return sorted({int(number) for number in numbers if number.isdigit()})


def _listed(folder: Path) -> list[Path]:
    """The datasets that `amanda run` has written, in its order."""
    for run in sorted(folder.glob("run*.json")):
        names = json.loads(run.read_text(encoding="utf-8"))["files"]
        return list(dict.fromkeys(folder / Path(name).parents[1] for name in names if "/rank=" in name))
    return []
