"""Instructions per call or step, by valgrind. They are exact, and do not depend on what else the machine does.

Valgrind runs this file. It calls getppid() to say that a part begins or ends, and callgrind writes a file at each. Rows
run N times to warm up, then N and 2N times, and the difference is that of N.
"""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import process
import workloads
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing, phases
from measure import VANILLA
from memory import nothing

COUNTS = {"torch.add": 400, "F.linear, grad": 200, "transformer layer, train": 4}
CONTROL, ALL = "control", "all"


def instructions(names):
    """Instructions by workload and row, vanilla's among them; the workloads that `names` has and callgrind can bear."""
    chosen = [name for name in COUNTS if name in names]
    found = {name: {} for name in chosen}
    for which in (CONTROL, ALL):
        for name, row, count in under_valgrind(which, chosen):
            found[name][row] = count
    return [{"workload": name, "instructions": rows} for name, rows in found.items()]


def under_valgrind(which, names):
    if shutil.which("valgrind") is None:
        raise SystemExit("[bench] --callgrind needs valgrind on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, __file__, which, *names]
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"[bench] callgrind: {done.stderr[-2000:]}")
        parts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        files = [Path(folder, f"out.{number}") for number in range(1, 6 * len(parts) + 1)]  # six marks a row
        totals = [int(re.search(r"^totals: (\d+)", file.read_text(), re.M)[1]) for file in files]
    # A file holds what ran before its mark.
    for index, (name, row) in enumerate(parts):
        once, twice = totals[6 * index + 3], totals[6 * index + 5]
        yield name, row, (twice - once) / COUNTS[name]


def program(which, names):
    """What valgrind runs."""
    process.prepare()
    if which == CONTROL:
        order = [[Configuration(VANILLA, nothing)]]
    else:
        import amanda  # noqa: F401
        from peers import PEERS

        order = phases([Configuration(BASELINE, nothing), *CONFIGURATIONS, *PEERS])
    chosen = [workload for workload in workloads.WORKLOADS if workload.name in names]
    bodies = [workload.make(False) for workload in chosen]
    for workload, body in zip(chosen, bodies, strict=True):
        body.run(2 * COUNTS[workload.name])
    for rows in order:
        for workload, body in zip(chosen, bodies, strict=True):
            for row in rows:
                if count_row(row, workload, body):
                    print(json.dumps([workload.name, row.name]), flush=True)


def count_row(row, workload, body):
    """Runs it between marks; False if it cannot be had."""
    count = COUNTS[workload.name]
    try:
        with row.open(workload, body) as session:
            for times in (
                count,
                count,
                2 * count,
            ):  # one call: another call would be another place, and be analyzed first
                os.getppid()
                session.run(times)
                os.getppid()
    except Missing:
        return False
    finally:
        gc.collect()
    return True


if __name__ == "__main__":
    program(sys.argv[1], sys.argv[2:])
