"""Draws the picture in docs/profiling.md: `python scripts/trace_picture.py docs/images/trace.svg`.

A training step of a small network runs under CuptiProfiler; the picture shows the Chrome trace that it writes, as Perfetto
would: a row for each depth of operators inside operators, and one for each stream of a GPU if there is one.
"""

import json
import math
import sys
import tempfile
import time
from html import escape
from pathlib import Path

import amanda
import torch
from amanda.tools.cupti_profiler import CuptiProfiler

WIDTH, ROW, MARGIN, TITLE = 1000, 22, 8, 20
COLOURS = {"forward": "#4c78a8", "backward": "#e45756", "optimizer": "#72b7b2", "recompute": "#f58518"}
OTHER = "#b279a2"


def record(path: Path) -> None:
    """The fastest of several steps of a small network, because other processes run too."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 30 * 30, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 3, 32, 32, device=device)
    labels = torch.zeros(32, dtype=torch.long, device=device)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    profiler = CuptiProfiler()
    scope = amanda.apply(profiler)
    quickest = math.inf
    for _ in range(20):
        profiler.reset()
        start = time.perf_counter()
        with scope:
            step()
        taken = time.perf_counter() - start
        if taken < quickest:
            quickest = taken
            profiler.export_chrome_trace(path)


def draw(trace: dict) -> str:
    slices = sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
    names = {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in trace["traceEvents"] if e["ph"] == "M"}
    begin = min(e["ts"] for e in slices)
    scale = (WIDTH - 2 * MARGIN) / (max(e["ts"] + e["dur"] for e in slices) - begin)
    shapes, top = [], MARGIN
    for pid, tid in sorted({(e["pid"], e["tid"]) for e in slices}):
        title = f"{names.get((pid, 0, 'process_name'))}, {names.get((pid, tid, 'thread_name'))}"
        shapes.append(f'<text x="{MARGIN}" y="{top + 13}" class="t">{escape(title)}</text>')
        top += TITLE
        ends: list[float] = []  # of the open slices, outermost first
        deepest = 0
        for event in (e for e in slices if (e["pid"], e["tid"]) == (pid, tid)):
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            shapes.append(_slice(event, MARGIN + (event["ts"] - begin) * scale, top + len(ends) * ROW, scale))
            ends.append(event["ts"] + event["dur"])
            deepest = max(deepest, len(ends))
        top += deepest * ROW + MARGIN
    legend = "".join(
        f'<rect x="{MARGIN + 110 * i}" y="{top}" width="14" height="14" fill="{colour}"/>'
        f'<text x="{MARGIN + 110 * i + 20}" y="{top + 12}" class="t">{phase}</text>'
        for i, (phase, colour) in enumerate(COLOURS.items())
    )
    style = ".t{font:12px sans-serif;fill:#333}.n{font:11px sans-serif;fill:#fff}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 22}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(shapes)}{legend}</svg>\n'
    )


def _slice(event: dict, x: float, y: float, scale: float) -> str:
    width = max(event["dur"] * scale, 0.5)
    colour = COLOURS.get(event["cat"], OTHER)
    tip = f"{event['name']}  {event['dur']:.0f} µs  {event['args'].get('module_path', '')}"
    name = event["name"].removeprefix("aten::")
    fits = int((width - 6) / 6.5)  # letters
    label = ""
    if fits >= 4:
        name = name if len(name) <= fits else name[: fits - 1] + "…"
        label = f'<text x="{x + 3:.1f}" y="{y + 14:.0f}" class="n">{escape(name)}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}" stroke="#fff" '
        f'stroke-width="0.4"><title>{escape(tip)}</title></rect>{label}'
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "trace.json")
        picture = draw(json.loads((Path(folder) / "trace.json").read_text()))
    Path(sys.argv[1]).write_text(picture)
