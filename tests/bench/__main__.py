"""The cost of instrumentation, compared with tools of PyTorch and others.

    make bench                              # every table; writes them into docs/performance.md
    python tests/bench --workloads add      # one group; prints
    python tests/bench --full --workloads bert --rounds 3 --rows "forward and backward"    # some rows; prints
    python tests/bench --workloads compiled # programs that torch.compile compiled, alone: writes their tables, too
    python tests/bench --workloads first-use    # first runs, alone: writes their table, too
    python tests/bench --workloads memory   # peak memory, alone: writes its table, too
    python tests/bench --workloads onnxruntime    # sessions of ONNX Runtime, alone: writes their table, too
    python tests/bench --quick              # does it run?
    python tests/bench --callgrind          # instructions and cache misses in place of time; needs valgrind. --rows: some

The results go to build/bench.json.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import callgrind
import compiled
import families
import first_use
import markdown_page
import measure
import memory
import onnx_sessions
import process
import report
import shipped
import workloads

ROOT = Path(__file__).parents[2]
ALONE = ["compiled", "first-use", "memory", "onnxruntime"]  # groups with tables of their own


def arguments():
    parser = argparse.ArgumentParser(
        prog="python tests/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    known = [*workloads.GROUPS, *ALONE]
    groups = ", ".join(known)
    option("--workloads", nargs="+", choices=known, metavar="GROUP", help=f"of {groups}; prints the tables")
    option(
        "--rows",
        nargs="+",
        default=[],
        metavar="PART",
        help="rows with these names, or with one of these parts in them; prints",
    )
    option("--rounds", type=int, help=f"measurements of each row, {measure.Settings().rounds} if not given")
    option("--quick", action="store_true", help="two short rounds without the last tables; its figures mean nothing")
    option("--full", action="store_true", help="BERT-base and ResNet-50 at batch 8 and full size: hours")
    option("--callgrind", action="store_true", help="instructions and cache misses in place of time")
    options = parser.parse_args()
    if options.rows and set(options.workloads or [""]) <= set(ALONE):
        parser.error(
            "--rows selects rows of the tables of time and of instructions: not of compiled programs, first runs, or memory"
        )
    if options.callgrind and options.workloads and set(options.workloads) <= set(ALONE):
        parser.error(f"--callgrind counts instructions of {', '.join(workloads.GROUPS)}: not of {', '.join(ALONE)}")
    for part in options.rows:
        if not any(part in name for name in report.NAMES):
            parser.error(f"--rows {part!r} is part of no row's name; the rows are {'; '.join(report.NAMES)}")
    return options


def say(text):
    print(f"[bench] {text}", file=sys.stderr, flush=True)


def measured(options, settings):
    """Everything that was asked for."""
    from amanda.reports.progress import Progress  # here: no process that measures imports this

    groups = options.workloads or [*workloads.GROUPS, *ALONE]
    if options.rows:  # of the table of time
        groups = [group for group in groups if group not in ALONE]
    chosen = [workload for workload in workloads.WORKLOADS if workload.group in groups]
    programs = compiled.PROGRAMS if "compiled" in groups else []
    fresh = workloads.WORKLOADS if "first-use" in groups else []
    resident = memory.WORKLOADS if "memory" in groups else []
    sessions = onnx_sessions.PROGRAMS if "onnxruntime" in groups else []
    rest = not (options.workloads or options.rows or options.quick)
    results = {"machine": markdown_page.machine(), "settings": dataclasses.asdict(settings)}
    if options.callgrind:
        say("counting instructions: several minutes")
        return results | callgrind.counts([workload.name for workload in chosen], options.rows)
    parts = len(chosen) + len(programs) + len(fresh) + len(resident) + len(sessions) + 2 * rest
    with Progress("measuring", parts, ticks=True) as progress:

        def result(what, function, *arguments):
            with progress.away():
                say(what)
            progress.now(what)
            found = function(*arguments)
            progress.advance()
            return found

        call = process.call
        if chosen:
            results["time"] = [
                result(f"time: {workload.name}", call, measure.measurement, workload, settings) for workload in chosen
            ]
        if programs:
            results["compiled"] = [
                result(f"time: {name}", call, compiled.measurement, name, settings.rounds) for name in programs
            ]
        if fresh:
            results["first use"] = [
                result(f"first use: {workload.name}", first_use.measurement, workload, settings) for workload in fresh
            ]
        if resident:
            results["memory"] = [
                result(f"memory: {workload.name}", memory.peaks, workload, settings) for workload in resident
            ]
        if sessions:
            results["onnxruntime"] = [
                result(f"ONNX Runtime: {name}", onnx_sessions.measurement, name, settings) for name in sessions
            ]
        if rest:
            results["cache"] = result("the cache", call, shipped.cache_costs, settings)
            results["coverage"] = result("coverage", call, families.coverage)
    return results


def main():
    options = arguments()
    settings = measure.QUICK if options.quick else measure.Settings(full=options.full)
    if options.rounds:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    settings = dataclasses.replace(settings, rows=tuple(options.rows))
    results = measured(options, settings)
    texts = report.markdown(results)
    if options.rows:
        texts.pop("targets", None)  # of rows that were not measured
    whole = not options.rows and (not options.workloads or set(options.workloads) <= set(ALONE))  # of the tables
    if not whole or options.quick:
        print("\n\n".join(texts.values()))
        return
    output = ROOT / "build" / "bench.json"
    output.parent.mkdir(exist_ok=True)
    kept = json.loads(output.read_text()) if output.exists() else {}
    output.write_text(json.dumps(kept | results, indent=1) + "\n")
    markdown_page.write(ROOT / "docs" / "performance.md", "bench", texts)
    say(f"tables are in docs/performance.md, measurements in {output.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
