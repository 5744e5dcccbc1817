"""Draws the path of one operator call from the code's own names: `python scripts/call_picture.py`.

Each line of the picture is a function and the file that defines it, indented under the function that calls it. The
program looks both up in the sources, and fails if a function is gone or does not call the next one. It writes
docs/images/one_call.svg; tests/python/house/test_call_picture.py compares the picture with the sources.
"""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "one_call.svg"


@dataclasses.dataclass(frozen=True)
class Step:
    """A function at a depth of the call tree. `call` is the text of the call in its caller, if it is not `name(`."""

    depth: int
    file: str
    name: str
    does: str
    call: str = ""

    @property
    def short(self) -> str:
        return self.name.rpartition("::")[2]


DISPATCH, IDENTITY = "drivers/torch/dispatch/", "drivers/torch/identity/"
LATER = (
    Step(0, DISPATCH + "typed_kernels.cpp", "run", "takes the call from PyTorch's dispatcher"),
    Step(1, DISPATCH + "place_table.cpp", "find_way", "looks the place up"),
    Step(2, DISPATCH + "place_table.cpp", "sight", "which tools see this type?"),
    Step(2, IDENTITY + "identity.cpp", "raw_place", "hashes Python frames and parameters"),
    Step(2, DISPATCH + "place_table.cpp", "find", "the plan of the place: known"),
    Step(1, DISPATCH + "typed_kernels.cpp", "run_known", "if the plan has actions"),
    Step(2, DISPATCH + "place_table.cpp", "observe_known", ""),
    Step(3, "src/engine.cpp", "Engine::on_known_op", ""),
    Step(4, "src/executor.h", "run_before", "actions before the operator"),
    Step(4, "src/engine.cpp", "run_rest", ""),
    Step(5, "src/executor.h", "run_operator", "the operator, or its replacement"),
    Step(5, "src/executor.h", "run_last", "actions after the operator"),
)
FIRST = (
    Step(0, DISPATCH + "typed_kernels.cpp", "run", "takes the call from PyTorch's dispatcher"),
    Step(1, DISPATCH + "place_table.cpp", "find_way", "looks the place up: not known"),
    Step(1, DISPATCH + "typed_kernels.cpp", "run_observed", ""),
    Step(2, DISPATCH + "fallback.cpp", "observe", ""),
    Step(3, "src/engine.cpp", "Engine::on_op", ""),
    Step(4, "src/scope_stack.cpp", "ScopeStack::visibility", "which tools see the call?"),
    Step(4, "src/op_run.cpp", "OpRun::before", ""),
    Step(5, "src/action_cache.cpp", "ActionCache::find", "a plan of these scopes: none"),
    Step(5, "src/op_run.cpp", "OpRun::analyse", ""),
    Step(6, "src/analysis.cpp", "AnalysisSession::run", "calls the tools' analyses, in order"),
    Step(7, "src/analysis.cpp", "AnalysisSession::merge", "makes one plan of their actions"),
    Step(6, "src/action_cache.cpp", "ActionCache::keep", "stores the plan"),
    Step(4, "src/op_run.cpp", "OpRun::operate", "the operator, or its replacement"),
    Step(4, "src/op_run.cpp", "OpRun::after", "autograd nodes; actions after the operator"),
    Step(2, DISPATCH + "place_table.cpp", "learn_place", "keeps the plan, if the place had a name before"),
    Step(3, "src/engine.cpp", "Engine::known_call", ""),
)


def bodies(step: Step) -> list[tuple[int, str]]:
    """(line, text) of each function of that name which the file defines."""
    text = (ROOT / step.file).read_text()
    found = []
    for match in re.finditer(rf"\b{re.escape(step.name)}\(", text):
        opening = _body(text, _closing(text, match.end() - 1, "()"))
        if opening is not None:
            line = text.count("\n", 0, match.start()) + 1
            found.append((line, text[opening : _closing(text, opening, "{}") + 1]))
    return found


def _closing(text: str, start: int, pair: str) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    raise ValueError(f"no {pair[1]} for the {pair[0]} at {start}")


def _body(text: str, parameters_end: int) -> int | None:
    """The position where a definition's body begins, or None for a call or a declaration."""
    match = re.compile(r"\)\s*(const|noexcept|override|\s)*\{").match(text, parameters_end)
    return match.end() - 1 if match else None


def faults(steps: tuple[Step, ...]) -> list[str]:
    """The places where the picture and the sources differ."""
    found, callers = [], list[Step]()
    for step in steps:
        del callers[step.depth :]
        if not bodies(step):
            found.append(f"{step.file} defines no {step.name}()")
        call = re.compile(rf"\b{re.escape(step.call or step.short)}[({{]|\b{step.short}<\w+>\(")
        if callers and not any(call.search(body) for _, body in bodies(callers[-1])):
            found.append(f"{callers[-1].file}: {callers[-1].name}() does not call {step.short}()")
        callers.append(step)
    return found


STYLE = """<style>
text { font: 13px sans-serif; fill: #24292f } .head { font: 600 16px sans-serif }
.name { font: 600 13px monospace } .file { font: 11px monospace; fill: #57606a } .does { fill: #0969da }
path { stroke: #d0d7de; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .file { fill: #8d96a0 } .does { fill: #58a6ff } path { stroke: #484f58 }
}
</style>
"""
WIDTH, LINE, INDENT, TOP = 560, 40, 18, 70


def column(title: str, steps: tuple[Step, ...], left: int) -> str:
    """One call tree."""
    drawn = [f'<text class="head" x="{left}" y="30">{html.escape(title)}</text>\n']
    rows = [0] * 8  # the row of the last step, by depth
    for row, step in enumerate(steps):
        x, y = left + step.depth * INDENT, TOP + row * LINE
        rows[step.depth] = row
        if step.depth:
            above = TOP + rows[step.depth - 1] * LINE + 22
            drawn.append(f'<path d="M{x - 10} {above} V{y - 4} H{x - 3}"/>\n')
        names = f'<tspan class="name">{html.escape(step.name)}</tspan>'
        does = f'<tspan class="does" dx="10">{html.escape(step.does)}</tspan>' if step.does else ""
        drawn.append(f'<text x="{x}" y="{y}">{names}{does}</text>\n')
        drawn.append(f'<text class="file" x="{x}" y="{y + 15}">{html.escape(step.file)}</text>\n')
    return "".join(drawn)


def picture() -> str:
    if wrong := [*faults(LATER), *faults(FIRST)]:
        raise SystemExit("\n".join(["[call picture] the picture and the sources differ:", *wrong]))
    height = TOP + max(len(LATER), len(FIRST)) * LINE
    first = column("The first run of a place", FIRST, 20)
    later = column("Each later run", LATER, 20 + WIDTH)
    size = f'width="{2 * WIDTH + 20}" height="{height}" viewBox="0 0 {2 * WIDTH + 20} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{STYLE}{first}{later}</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(picture())
