"""A run in a folder: one part for each process that has written there."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amanda.reports.progress import Progress
from amanda.reports.sections import SCHEMA, Section, section_of


class SavedRun(NamedTuple):
    """One process of a run."""

    about: Mapping[str, Any]  # run.json; empty if it cannot be read
    sections: Sequence[Section]
    problems: Sequence[str] = ()  # what is missing, and why
    rank: int = 0


def saved_runs(folder: str) -> list[SavedRun]:
    """The processes of the run in a folder, by rank.

    Raises:
        ValueError: there is no run, or one of a later version.
        OSError: a file cannot be read.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder!r}; amanda run --out {folder} makes one")
    ranks = {}
    for name in os.listdir(folder):
        if found := re.fullmatch(r"run(?:\.rank(\d+))?\.json", name):
            ranks[int(found[1] or 0)] = name
    if not ranks:
        raise ValueError(f"{folder!r} holds no run: there is no run.json; amanda run --out {folder} writes one")
    files = glob.glob(f"{glob.escape(folder)}/*.page*.json")
    with Progress("reading results", len(files)) as progress:
        runs = [_read(folder, rank, ranks[rank], progress) for rank in sorted(ranks)]
    world_size = max(run.about.get("world_size", 1) for run in runs)
    absent = [str(rank) for rank in range(world_size) if rank not in ranks]
    if absent:
        who = "rank" if len(absent) == 1 else "ranks"
        problem = f"{who} {', '.join(absent)} of {world_size}: nothing was written here"
        runs[0] = runs[0]._replace(problems=[problem, *runs[0].problems])
    return runs


def _read(folder: str, rank: int, name: str, progress: Progress) -> SavedRun:
    suffix = name.removeprefix("run").removesuffix(".json")
    problems: list[str] = []
    pages = sorted(map(os.path.basename, glob.glob(f"{glob.escape(folder)}/*.page{suffix}.json")))
    try:
        about = _json(folder, name)
        pages = [file for file in about["files"] if file.endswith(f".page{suffix}.json")]
        if about["state"] != "ended":
            problems.append(f"{name} says that process {about['process']} has not ended: it still runs, or was killed")
        elif not pages and about["files"]:
            problems.append(f"{name} lists no data for a page; run with --format json (or json and others)")
    except (ValueError, KeyError, TypeError) as error:
        about = {}
        problems.append(f"{name} cannot be read: {error}; the files beside it are shown")
    sections: list[Section] = []
    for file in pages:
        progress.now(file)
        try:
            data = _json(folder, file)
            if data["schema"] != SCHEMA:
                raise ValueError(f"its schema is {data['schema']}, and this version reads {SCHEMA}")
            sections += map(section_of, data["sections"])
        except FileNotFoundError:
            problems.append(f"{file}: it is listed, and is not there")
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"{file} cannot be read: {error}")
        progress.advance()
    return SavedRun(about, sections, problems, rank)


def _json(folder: str, name: str) -> Any:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)
