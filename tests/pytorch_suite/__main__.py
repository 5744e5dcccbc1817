"""PyTorch's own tests, outside a scope and inside one that looks at everything: does each of them end the same way?

    python tests/pytorch_suite PYTORCH                          # a copy of PyTorch's repository; the files of FILES
    python tests/pytorch_suite PYTORCH test_autograd.py nn/test_pooling.py
    python tests/pytorch_suite PYTORCH test_nn.py --again       # runs them anew; else results of an earlier run are used
    python tests/pytorch_suite PYTORCH test_linalg.py --every 20

Each file runs twice, in processes of its own. A test that ends differently is run again, alone with the others that did;
if it then ends as outside, it is called unstable. What may differ, and why, is in `allowed.py`. Outcomes are
kept in build/pytorch_suite. Any other difference makes the exit status 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from allowed import reason_for
from amanda.reports.progress import Progress

ROOT = Path(__file__).parents[2]
FILES = [
    "test_autograd.py",
    "test_nn.py",
    "test_torch.py",
    "test_custom_ops.py",
    "test_python_dispatch.py",
    "test_subclass.py",
    "test_view_ops.py",
    "test_indexing.py",
    "test_optim.py",
    "test_stateless.py",
    "test_autocast.py",
    "test_namedtensor.py",
    "test_autograd_fallback.py",
    "test_dispatch.py",
    "test_library.py",
    "test_type_promotion.py",
    "test_complex.py",
    "test_scatter_gather_ops.py",
    "test_sort_and_select.py",
    "test_shape_ops.py",
    "test_segment_reductions.py",
    "test_native_mha.py",
    "test_flop_counter.py",
    "test_module_tracker.py",
    "test_per_overload_api.py",
    "test_schema_check.py",
    "test_functionalization.py",
    "test_maskedtensor.py",
    "test_nestedtensor.py",
    "test_foreach.py",
    "test_transformers.py",
    "test_modules.py",
    "test_sparse.py",
    "test_linalg.py",
    "test_overrides.py",
    "test_serialization.py",
    "functorch/test_eager_transforms.py",
    "higher_order_ops/test_with_effects.py",
    "nn/test_convolution.py",
    "nn/test_dropout.py",
    "nn/test_embedding.py",
    "nn/test_init.py",
    "nn/test_lazy_modules.py",
    "nn/test_load_state_dict.py",
    "nn/test_module_hooks.py",
    "nn/test_multihead_attention.py",
    "nn/test_packed_sequence.py",
    "nn/test_parametrization.py",
    "nn/test_pooling.py",
    "nn/test_pruning.py",
    "autograd/test_complex.py",
    "autograd/test_functional.py",
    "autograd/test_logging.py",
]


def arguments():
    parser = argparse.ArgumentParser(
        prog="python tests/pytorch_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("pytorch", type=Path, help="a copy of PyTorch's repository, of a version close to the installed one")
    option("files", nargs="*", metavar="FILE", help="files below PYTORCH/test; a fixed list if none is given")
    option("--again", action="store_true", help="do not use results of an earlier run")
    option("--timeout", type=int, default=60, help="seconds for a test")
    option("--results", type=Path, default=ROOT / "build" / "pytorch_suite", help="where outcomes are kept")
    option("--shard", default="0/1", metavar="I/N", help="every N-th file, from the I-th on")
    option("--every", type=int, default=1, metavar="N", help="of each file's tests, every N-th only")
    return parser.parse_args()


def say(text):
    print(f"[suite] {text}", file=sys.stderr, flush=True)


def records(path):
    """What a process wrote, by test; a test it died in is left as "started"."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        found[record["test"]] = record
    return found


class Side:
    """One file, outside or inside a scope: as many processes as it takes."""

    def __init__(self, options, file, in_scope, folder):
        self.options, self.file, self.in_scope = options, file, in_scope
        part = "" if options.every == 1 else f".every-{options.every}"
        self.record = folder / f"{file.replace('/', '.')}{part}.{'inside' if in_scope else 'outside'}.jsonl"
        self.log = self.record.with_suffix(".log")

    def done(self):
        return self.record.with_suffix(".done").exists()

    def outcomes(self):
        return records(self.record)

    def run(self, only=None):
        self.record.unlink(missing_ok=True)
        skip = self.record.with_suffix(".skip")
        for _ in range(50):
            skip.write_text("\n".join(self.outcomes()))
            ended = self.process(only, skip)
            died_in = [record for record in self.outcomes().values() if record["outcome"] == "started"]
            for record in died_in:
                with self.record.open("a") as file:
                    file.write(json.dumps(record | {"outcome": "crashed", "why": ended}) + "\n")
            if not died_in:
                break
        self.record.with_suffix(".done").touch()

    def process(self, only, skip):
        """Runs what is left; returns how the process ended."""
        tests = self.options.pytorch / "test"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "amanda_suite_plugin", "-p", "no:cacheprovider"]
        command += ["-c", "/dev/null", "--noconftest", "--rootdir", tests, "-W", "ignore"]
        command += [f"--timeout={self.options.timeout}", "--timeout-method=signal", tests / self.file]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                [
                    str(ROOT / "tests" / "pytorch_suite"),
                    str(ROOT / "tests" / "python" / "support"),
                    os.environ.get("PYTHONPATH", ""),
                ]
            ),
            "OMP_NUM_THREADS": "1",
            "AMANDA_SUITE_RECORD": str(self.record),
            "AMANDA_SUITE_SCOPE": str(int(self.in_scope)),
            "AMANDA_SUITE_SKIP": str(skip),
            "AMANDA_SUITE_EVERY": str(self.options.every),
        }
        environment.pop("CI", None)
        if only is not None:
            wanted = self.record.with_suffix(".only")
            wanted.write_text("\n".join(only))
            environment["AMANDA_SUITE_ONLY"] = str(wanted)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=tests,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            return self.watch(process)

    def watch(self, process):
        """Ends a process in which nothing has ended for three times a test's time: it hangs where no signal reaches."""
        moved, size = time.monotonic(), -1
        while True:
            try:
                status = process.wait(2)
                return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            except subprocess.TimeoutExpired:
                now = self.record.stat().st_size if self.record.exists() else 0
                if now != size:
                    moved, size = time.monotonic(), now
                elif time.monotonic() - moved > 3 * self.options.timeout:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return "hung"


def outcome(side, test):
    record = side.get(test, {"outcome": "absent", "why": ""})
    return "timeout" if record["why"].startswith("Failed: Timeout") else record["outcome"]


def compare(outside, inside):
    """The tests that ended differently. One that took too long has not ended."""
    pairs = {test: (outcome(outside, test), outcome(inside, test)) for test in outside.keys() | inside.keys()}
    return sorted(test for test, (a, b) in pairs.items() if a != b and "timeout" not in (a, b))


def run_file(options, file, folder, progress):
    """What both sides say, and for each test that differed: once, or again when run a second time."""
    sides = [Side(options, file, in_scope, folder) for in_scope in (False, True)]
    for side in sides:
        if options.again or not side.done():
            with progress.away():
                say(f"{file}, {'inside' if side.in_scope else 'outside'}")
            side.run()
    outside, inside = (side.outcomes() for side in sides)
    differing = compare(outside, inside)
    unstable = []
    if differing:
        again = [Side(options, file, in_scope, folder / "again") for in_scope in (False, True)]
        for side in again:
            if options.again or not side.done():
                side.run(only=differing)
        still = set(compare(*(side.outcomes() for side in again)))
        unstable = [test for test in differing if test not in still]
        differing = [test for test in differing if test in still]
    return outside, inside, differing, unstable


def report(file, outside, inside, differing, unstable):
    """Prints the results of one file; returns its numbers."""
    unexplained = []
    for test in differing:
        reason = reason_for(test)
        what = f"{test}: {outcome(outside, test)} outside, {outcome(inside, test)} inside"
        if reason is None:
            unexplained.append(test)
            why = inside.get(test, {}).get("why") or outside.get(test, {}).get("why") or "?"
            print(f"DIFFERS {what}\n    {why.splitlines()[0][:160]}")
        else:
            print(f"allowed {what}: {reason}")
    for test in unstable:
        print(f"unstable {test}")
    everything = outside.keys() | inside.keys()
    late = sum("timeout" in (outcome(outside, test), outcome(inside, test)) for test in everything)
    passed = sum(outcome(outside, test) == "passed" for test in outside)
    failed = sum(outcome(outside, test) in ("failed", "crashed") for test in outside)
    return {
        "tests": len(everything),
        "passed": passed,
        "failed": failed,
        "skipped": len(everything) - passed - failed - late,
        "too long": late,
        "same": len(everything) - len(differing) - len(unstable) - late,
        "allowed": len(differing) - len(unexplained),
        "unstable": len(unstable),
        "unexplained": len(unexplained),
    }


def main():
    options = arguments()
    options.pytorch = options.pytorch.resolve()
    folder = options.results.resolve()
    (folder / "again").mkdir(parents=True, exist_ok=True)
    index, count = map(int, options.shard.split("/"))
    files = options.files or FILES[index::count]
    rows = {}
    with Progress("running test files", len(files), ticks=True) as progress:
        for file in files:
            progress.now(file)
            if (options.pytorch / "test" / file).exists():
                found = run_file(options, file, folder, progress)
                with progress.away():
                    rows[file] = report(file, *found)
            else:
                with progress.away():
                    say(f"{file} is not in this copy")
            progress.advance()
    if not rows:
        sys.exit("[suite] none of these files is in this copy")
    columns = list(next(iter(rows.values())))
    print("\n| file | " + " | ".join(columns) + " |\n" + "| --- " * (len(columns) + 1) + "|")
    for file, row in rows.items():
        print(f"| `{file}` | " + " | ".join(str(row[column]) for column in columns) + " |")
    total = {column: sum(row[column] for row in rows.values()) for column in columns}
    print("| all | " + " | ".join(str(total[column]) for column in columns) + " |")
    sys.exit(1 if total["unexplained"] else 0)


if __name__ == "__main__":
    main()
