"""The times of the nodes of the graph that ONNX Runtime makes of a file."""

from __future__ import annotations

import collections
import concurrent.futures
import json
import statistics
from typing import Any

from .model_file import ModelFile
from .program_times import WARM_UPS

_KERNEL = "_kernel_time"
_RUN = "model_run"


def node_times(file: ModelFile, feeds: dict[str, Any], runs: int) -> list[float]:
    """The time of each node in nanoseconds: the median of `runs`, by ONNX Runtime's own profiler, which counts whole
    microseconds. A node with bodies includes what runs in them.

    Raises:
        ValueError: ONNX Runtime cannot load, run or profile the file.
    """

    def run() -> list[float]:
        with file.optimized_session(profiled=True) as (session, count):
            for _ in range(runs + WARM_UPS):
                file.run(session, file.outputs, feeds)
            with open(session.end_profiling(), encoding="utf-8") as profile:
                return _medians(json.load(profile), count)

    with concurrent.futures.ThreadPoolExecutor(1) as other:  # where no tool of the program is shown the nodes
        return other.submit(run).result()


def _medians(events: list[dict[str, Any]], nodes: int) -> list[float]:
    """`events`: those of a profile, of nodes named by their positions."""
    taken: list[collections.Counter[int]] = [collections.Counter()]  # by run
    for event in events:
        name = event["name"].removesuffix(_KERNEL)
        if event["name"] == _RUN:
            taken.append(collections.Counter())
        elif event["name"].endswith(_KERNEL) and name.isdecimal():
            taken[-1][int(name)] += event["dur"]
    measured = taken[WARM_UPS:-1]
    return [statistics.median(each[i] for each in measured) * 1e3 for i in range(nodes)]
