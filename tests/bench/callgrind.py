"""Instructions per call or step, by valgrind. They are exact, and do not depend on what else the machine does.

Valgrind runs this file. It calls getppid() to say that a part begins or ends, and callgrind writes a file at each. Rows
are measured with N and 2N runs, and the difference is that of N.
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
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing
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
        files = [Path(folder, f"out.{number}") for number in range(1, 4 * len(parts) + 1)]  # four marks a row
        totals = [int(re.search(r"^totals: (\d+)", file.read_text(), re.M)[1]) for file in files]
    # A file holds what ran before its mark.
    for index, (name, row) in enumerate(parts):
        once, twice = totals[4 * index + 1], totals[4 * index + 3]
        yield name, row, (twice - once) / COUNTS[name]


def program(which, names):
    """What valgrind runs."""
    process.prepare()
    bare = [Configuration(VANILLA if which == CONTROL else BASELINE, nothing)]
    if which == ALL:
        import amanda  # noqa: F401
        from peers import PEERS

        rows = [*bare, *CONFIGURATIONS, *PEERS]
    else:
        rows = bare
    for workload in workloads.WORKLOADS:
        if workload.name in names:
            body, count = workload.make(False), COUNTS[workload.name]
            body.run(2 * count)
            for row in rows:
                try:
                    with row.open(workload, body) as session:
                        session.run(count)
                        for times in (count, 2 * count):
                            os.getppid()
                            session.run(times)
                            os.getppid()
                except Missing:
                    continue
                gc.collect()
                print(json.dumps([workload.name, row.name]), flush=True)


if __name__ == "__main__":
    program(sys.argv[1], sys.argv[2:])
