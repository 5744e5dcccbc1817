"""Results as Markdown tables for the documentation."""

import statistics

import compiled_rows
import markdown_page
import onnx_sessions
import targets
from configurations import BASELINE, CONFIGURATIONS
from markdown_page import table
from measure import VANILLA
from peers import PEERS
from targets import spread

NAMES = [VANILLA, BASELINE, *(row.name for row in CONFIGURATIONS), *(row.name for row in PEERS)]


def duration(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def ratio(values):
    middle = statistics.median(values)
    return f"{middle:.3g} ±{spread(values):.2g}" if middle >= 10 else f"{middle:.3f} ±{spread(values):.3f}"


def time_table(results):
    """Rows by workloads, as ratios to the baseline."""

    def cell(result, name):
        values = result["ratios"].get(name)
        return ratio(values) if values else result["missing"].get(name, "")

    sizes = ["", *(f"{r['size']}" for r in results)]
    base = ["baseline", *(f"{duration(statistics.median(r['baseline_ns']))} a {r['unit']}" for r in results)]
    rows = [[name, *(cell(result, name) for result in results)] for name in NAMES]
    return table(["", *(r["workload"] for r in results)], [sizes, base, *(row for row in rows if any(row[1:]))])


def target_table(results):
    return table(["", "at most", "measured", "met"], targets.rows(results))


def compiled_table(results):
    """Rows by programs: ratios of a step, and of the first, which compiles."""
    sizes = ["", *(result["size"] for result in results), *("" for _ in results)]
    base = [
        "baseline",
        *(duration(statistics.median(result["baseline_ns"])) for result in results),
        *(f"{result['first_s'][BASELINE]:.0f} s" for result in results),
    ]
    rows = [
        [
            name,
            *(
                ratio(result["ratios"][name]) if name in result["ratios"] else result["missing"][name]
                for result in results
            ),
            *(compilation(result, name) for result in results),
        ]
        for name in [BASELINE, *compiled_rows.NAMES]
    ]
    names = [result["workload"] for result in results]
    return table(["", *names, *(f"first step, {name}" for name in names)], [sizes, base, *rows])


def compilation(result, name):
    seconds = result["first_s"].get(name)
    return f"{seconds / result['first_s'][compiled_rows.NOBODY_ASKS]:.2f}" if seconds else ""


def compiled_target_table(results):
    return table(["", "at most", "measured", "met"], targets.compiled_rows(results))


def first_use_table(results):
    def cells(found):
        added = [
            found["first_ns"] - found["usual_ns"],
            *(found[f"{key}_ns"] for key in ("rebuilt", "later", "same_line")),
        ]
        each = [max(ns, 0) / max(found["places"], 1) for ns in added]
        return map(duration, (found["usual_ns"], found["first_ns"], *each, found["filtered_ns"]))

    added = ["added per analysis, at first", "for an equal model", "in a later scope", "at the same line"]
    return table(
        ["", "analyzed", "usual", "first run", *added, "entering with a filter"],
        [[found["workload"], int(found["places"]), *cells(found)] for found in results],
    )


def memory_table(results):
    def cell(result, name):
        peaks = result["peak_bytes"]
        if name not in peaks:
            return "not built"
        base = peaks[VANILLA]
        return f"{base / 2**20:.0f} MiB" if name == VANILLA else f"{peaks[name] / base - 1:+.1%}"

    names = dict.fromkeys(name for result in results for name in result["peak_bytes"])
    return table(["", *(r["workload"] for r in results)], [[n, *(cell(r, n) for r in results)] for n in names])


def onnxruntime_table(results):
    def cell(result, name):
        ns = result["ns"][name]
        return duration(ns) if name == onnx_sessions.VANILLA else f"+{duration(max(ns, 0))}"

    names = [onnx_sessions.VANILLA, *onnx_sessions.ROWS]
    return table(["", *(r["program"] for r in results)], [[n, *(cell(r, n) for r in results)] for n in names])


def cache_table(rows):
    return table(
        ["", "cache on", "cache off", "off / on"],
        [[row["tool"], ratio(row["on"]), ratio(row["off"]), f"{row['saved']:.1f}"] for row in rows],
    )


def coverage_table(rows):
    def cells(row, phase):
        figures = row["phases"][phase]
        operators = figures["operators"]
        reached = figures["in_leaf_modules"]
        return [operators, f"{reached} ({reached / operators:.0%})", figures["leaf_modules"]]

    headings = ["", "forward operators", "inside leaf modules", "leaf modules"]
    headings += ["backward operators", "inside leaf modules", "leaf modules"]
    return table(headings, [[row["model"], *cells(row, "forward"), *cells(row, "backward")] for row in rows])


def count_table(results):
    def cell(result, name):
        counts = result["counts"]
        if name not in counts:
            return ""
        base = counts[VANILLA]
        more = counts[name] - base
        return f"{base:,.0f}" if name == VANILLA else f"{more:+,.0f} ({more / base:+.2%})"

    names = [name for name in NAMES if any(name in result["counts"] for result in results)]
    return table(["", *(r["workload"] for r in results)], [[n, *(cell(r, n) for r in results)] for n in names])


TABLES = {
    "time": time_table,
    "targets": target_table,
    "compiled": compiled_table,
    "compiled targets": compiled_target_table,
    "first use": first_use_table,
    "memory": memory_table,
    "onnxruntime": onnxruntime_table,
    "cache": cache_table,
    "coverage": coverage_table,
    "instructions": count_table,
    "l1i misses": count_table,
}
SOURCE = {
    "targets": "time",
    "compiled targets": "compiled",
}  # the results that a table is made of, where they have another name


def markdown(results):
    """A text for each table that there are results for."""
    made = {}
    for name, make in TABLES.items():
        found = results.get(SOURCE.get(name, name))
        if found:
            made[name] = f"{make(found)}\n\n{markdown_page.machine_line(results['machine'])}"
    return made
