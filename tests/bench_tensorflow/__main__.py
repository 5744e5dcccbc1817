"""The cost of instrumentation on TensorFlow: ratios to the same program without a scope, measured in turn.

    make bench-tensorflow                            # writes the tables of docs/performance_tensorflow.md
    python tests/bench_tensorflow --rounds 3         # fewer rounds; prints

Time is CPU time of the process: what other processes use does not count.
"""

import argparse
import os
import platform
import statistics
import time
import warnings
from pathlib import Path

import amanda
import folders
import markdown_page
import rows
import tensorflow as tf
import workloads
from amanda.reports.progress import Progress

TARGETS = {
    "nobody asks": 1.01,
    "C++ routine on each convolution": 1.02,
    "Python routine on each convolution": 1.10,
}
ROUNDS = 5
KNOWN = 3
# TensorFlow takes a kernel that it does not know yet for an expensive one, which it hands to another thread. It knows the
# time of one after so many runs.
KERNELS_KNOWN = 100


def timed(run, count):
    start = time.process_time_ns()
    for _ in range(count):
        run()
    return (time.process_time_ns() - start) / count


def opened(scope, run, count):
    """Nanoseconds of a run in the scope."""
    with scope:
        run()
        return timed(run, count)


def measured(make, makers, rounds, known=KNOWN):
    """Of each row: the median ratio to the program without a scope, its spread, and the first run. `known`: the runs after
    which it is measured."""
    run, count = make()
    scopes = {name: amanda.apply(make_tool()) for name, make_tool in makers.items()}  # a new one is a new copy
    for _ in range(known):
        run()
    other, _ = make()
    second = timed(other, 1)
    firsts = {}
    for name, scope in scopes.items():
        with scope:
            firsts[name] = timed(run, 1)
            for _ in range(known):
                run()
    ratios, baseline = {name: [] for name in makers}, []
    for _ in range(rounds):
        before = timed(run, count)
        for name, scope in scopes.items():
            ns = opened(scope, run, count)
            after = timed(run, count)
            ratios[name].append(2 * ns / (before + after))
            baseline.append(after)
            before = after
    return {
        "baseline": statistics.median(baseline),
        "second": second,
        "rows": {name: (statistics.median(ratios[name]), spread(ratios[name]), firsts[name]) for name in makers},
    }


def spread(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def peers(make, rounds):
    """Nanoseconds that TensorFlow's own ways to call Python add, per call."""
    run, count = make(None)
    found = {}
    for name, call in rows.PEERS.items():
        other, _ = make(call)
        other()
        added = []
        for _ in range(rounds):
            before, ns, after = timed(run, count), timed(other, count), timed(run, count)
            added.append((ns - (before + after) / 2) / workloads.CHAIN)
        found[name] = statistics.median(added)
    return found


def step_table(results):
    headings = ["", *results]
    lines = [["baseline", *(f"{found['baseline'] / 1e6:.2f} ms" for found in results.values())]]
    for name in rows.STEP_ROWS:
        cells = [found["rows"][name] for found in results.values()]
        lines.append([name, *(f"{ratio:.3f} ±{half:.3f}" for ratio, half, _ in cells)])
        if name in TARGETS:
            lines.append(
                [f"{name}: at most {TARGETS[name]}", *(verdict(ratio, half, TARGETS[name]) for ratio, half, _ in cells)]
            )
    seconds = [f"{found['second'] / found['baseline']:.1f} steps" for found in results.values()]
    lines.append(["first run of a new program, without a scope", *seconds])
    for name in rows.STEP_ROWS:
        lines.append(
            [
                f"first run in a scope: {name}",
                *(f"{found['rows'][name][2] / found['baseline']:.1f} steps" for found in results.values()),
            ]
        )
    return markdown_page.table(headings, lines)


def verdict(ratio, half, limit):
    return "noise" if abs(ratio - limit) <= half else "yes" if ratio <= limit else "no"


def call_table(results, others):
    def added(found, name):
        ratio = found["rows"][name][0]
        return f"{(ratio - 1) * found['baseline'] / workloads.CHAIN / 1e3:.2f} µs"

    lines = [[name, *(added(found, name) for found in results.values())] for name in rows.CALL_ROWS]
    lines += [[name, *(f"{others[front][name] / 1e3:.2f} µs" for front in results)] for name in rows.PEERS]
    return markdown_page.table(["", *results], lines)


def machine_line():
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("model name")]
    return (
        f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, one thread for operators; Python "
        f"{platform.python_version()}, TensorFlow {tf.__version__}, amanda {amanda.__version__}."
    )


def main():
    parser = argparse.ArgumentParser(
        prog="python tests/bench_tensorflow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help=f"fewer rounds than {ROUNDS}; prints the tables")
    asked = parser.parse_args().rounds
    rounds = asked or ROUNDS
    warnings.simplefilter("ignore", amanda.UnmatchedFilterWarning)  # "nobody asks"
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with Progress("measuring", len(workloads.STEPS) + 2 * len(workloads.CHAINS)) as progress:

        def result(name, function, *arguments):
            progress.now(name)
            found = function(*arguments)
            progress.advance()
            return found

        steps = {name: result(name, measured, make, rows.STEP_ROWS, rounds) for name, make in workloads.STEPS.items()}
        chains = {
            name: result(name, measured, lambda make=make: make(None), rows.CALL_ROWS, rounds, KERNELS_KNOWN)
            for name, make in workloads.CHAINS.items()
        }
        others = {name: result(f"{name}, peers", peers, make, rounds) for name, make in workloads.CHAINS.items()}
    about = machine_line()
    texts = {"steps": f"{step_table(steps)}\n\n{about}", "calls": f"{call_table(chains, others)}\n\n{about}"}
    if asked:
        print("\n\n".join(texts.values()))
    else:
        markdown_page.write(folders.ROOT / "docs" / "performance_tensorflow.md", "bench-tensorflow", texts)


if __name__ == "__main__":
    main()
