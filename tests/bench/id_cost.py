"""The cost of an op_id: nanoseconds and, under callgrind, instructions.

    python tests/bench/id_cost.py                 # wall time, at several depths of the Python stack
    python tests/bench/id_cost.py --callgrind     # instructions per id; needs valgrind

The id is measured where it is made: `_torch.time_ids(tensor, count)` asks the driver `count` times for the id of
aten::linear on the given operands, on a hit.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DEPTHS = (1, 5, 15, 30)


def at_depth(depth, function):
    return function() if depth <= 1 else at_depth(depth - 1, function)


def wall():
    import torch
    from amanda import _torch

    x, weight = torch.ones(2, 4), torch.nn.Parameter(torch.ones(4, 4))
    count = 200_000
    print(f"fast frame walk: {_torch.walks_frames_directly()}")
    for depth in DEPTHS:
        best, frames = min(at_depth(depth, lambda: _torch.time_ids(x, weight, count)) for _ in range(7))
        print(f"{frames:3d} frames: {best / count:6.1f} ns an id ({best / count / frames:.1f} ns a frame)")


def instructions():
    def total(depth, count):
        program = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import id_cost, torch\n"
            "from amanda import _torch\n"
            "x, w = torch.ones(2, 4), torch.nn.Parameter(torch.ones(4, 4))\n"
            f"print(id_cost.at_depth({depth}, lambda: _torch.time_ids(x, w, {count}))[1])"
        )
        with tempfile.TemporaryDirectory() as folder:
            command = [
                "valgrind",
                "--tool=callgrind",
                f"--callgrind-out-file={folder}/out",
                sys.executable,
                "-c",
                program,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            collected = int(re.search(r"Collected : (\d+)", done.stderr)[1])
        return collected, int(done.stdout)

    few, many = 1_000, 2_001_000  # importing torch varies by millions of instructions
    for depth in (1, 15):
        (less, frames), (more, _) = total(depth, few), total(depth, many)
        print(f"{frames:3d} frames: {(more - less) / (many - few):.0f} instructions an id")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callgrind", action="store_true")
    instructions() if parser.parse_args().callgrind else wall()
