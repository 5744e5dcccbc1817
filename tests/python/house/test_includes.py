"""The C++ sources as a house: its folders are layers that include inwards only, and no includes form a circle."""

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]

# The public headers of the core: include/amanda/README.md.
CORE = ["include/amanda/base", "include/amanda", "include/amanda/driver"]
# Innermost first: a folder may include itself, and what is before it in some row. `*`: each such folder for itself.
ROWS = [
    [*CORE, "src"],
    [*CORE, "drivers/reference/include", "drivers/reference", "drivers/reference/python"],
    [
        *CORE,
        "python/base",
        "drivers/torch/include",
        "drivers/torch/base",
        "drivers/torch/thread",
        "drivers/torch/identity",
        "drivers/torch/coverage",
        "drivers/torch/backward",
        "drivers/torch/forward",
        "drivers/torch/dispatch",
        "drivers/torch",
        "drivers/torch/python/identity",
        "drivers/torch/python",
        "drivers/torch_compile",
    ],
    [*CORE, "python/base", "python/include", "python/src", "drivers/reference/python"],
    [
        *CORE,
        "python/base",
        "python/include",
        "python/src",
        "drivers/torch/python/identity",
        "drivers/torch/python",
        "drivers/torch_compile",
    ],
    [*CORE, "python/base", "python/include", "python/src", "drivers/tensorflow/include", "drivers/tensorflow"],
    [*CORE, "python/include", "tools", "tools/*"],
    # These read PyTorch's tensors, most by what they have in common.
    ["drivers/torch/include", "tools/values", "tools/gradients"],
    ["tools/values", "tools/graph"],
    ["tools/values", "tools/inplace"],
    ["tools/values", "tools/nonfinite"],
    ["tools/values", "tools/quantization"],
    ["tools/values", "tools/statistics"],
    [*CORE, "python/include", "tools", "drivers/torch/include", "research/*"],
]
# Where a folder's public headers are: `include/amanda/scope.h` and `src/scope.cpp` are one unit.
PUBLIC = {
    "include/amanda": "src",
    "include/amanda/base": "src",
    "include/amanda/driver": "src",
    "drivers/reference/include/amanda/reference": "drivers/reference",
    "drivers/tensorflow/include/amanda": "drivers/tensorflow",
    "drivers/torch/include/amanda": "drivers/torch",
    "python/include/amanda": "python/src",
}
# It may include any of CORE: tools describe operands by Backend::describe().
UMBRELLA = Path("include/amanda/amanda.h")
# What `#include "..."` may be relative to, besides the folder of the file.
INCLUDE_PATH = [
    "include",
    "drivers/reference/include",
    "drivers/tensorflow/include",
    "drivers/tensorflow",
    "drivers/torch/include",
    "drivers/torch",
    "drivers/reference",
    "tools",
    "research",
    "python/base",
    "python/include",
    "python/src",
]

Graph = dict[str, set[str]]


def sources() -> list[Path]:
    """C++ files, relative to the root."""
    tops = ["src", "include", "drivers", "tools", "research", "python"]
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in (".h", ".cpp")]
    return sorted(path.relative_to(ROOT) for path in files)


def included_by(file: Path) -> list[Path]:
    """What a file includes of the house's own, relative to the root."""
    found = []
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', (ROOT / file).read_text(), re.MULTILINE):
        folders = [file.parent, *map(Path, INCLUDE_PATH)]
        known = [folder / name for folder in folders if (ROOT / folder / name).exists()]
        assert known, f'{file} includes "{name}", which is in none of: {", ".join(map(str, folders))}'
        found.append(known[0])
    return found


def layer_of(file: Path) -> str:
    """The folder of a file that the rows have an entry for: its own, or else the nearest around it."""
    for folder in map(str, file.parents):
        if any(fnmatch.fnmatch(folder, entry) for row in ROWS for entry in row):
            return folder
    raise AssertionError(
        f"{file} is in no folder that ROWS in {Path(__file__).name} names: give its folder a place there"
    )


def inside(layer: str) -> set[str]:
    """Entries that a layer may include, besides itself."""
    before: set[str] = set()
    for row in ROWS:
        for i, entry in enumerate(row):
            if fnmatch.fnmatch(layer, entry):
                before.update(row[:i])
    return before


def may_include(layer: str, other: str) -> bool:
    return other == layer or any(fnmatch.fnmatch(other, entry) for entry in inside(layer))


def unit_of(file: Path) -> str:
    """A header and its source."""
    folder = PUBLIC.get(str(file.parent), str(file.parent))
    return f"{folder}/{file.stem}"


def units(*tops: str) -> Graph:
    """Which units of these folders include which."""
    graph: Graph = {}
    for file in sources():
        unit = unit_of(file)
        for other in map(unit_of, included_by(file)):
            if other != unit and unit.startswith(tops) and other.startswith(tops):
                graph.setdefault(unit, set()).add(other)
    return graph


def circles(graph: Graph) -> list[str]:
    """The shortest circle through each unit that is in one, each circle once: "a -> b -> a"."""
    found = {}
    for start in sorted(graph):
        came_from = {start: ""}
        open_units = [start]
        for unit in open_units:
            if start in graph.get(unit, ()):
                circle = [unit]
                while circle[0] != start:
                    circle.insert(0, came_from[circle[0]])
                found.setdefault(frozenset(circle), " -> ".join([*circle, start]))
                break
            for other in sorted(graph.get(unit, set()) - came_from.keys()):
                came_from[other] = unit
                open_units.append(other)
    return sorted(found.values())


def listed(lines: Iterable[str]) -> str:
    return "\n  ".join(["", *lines])


def test_folders_include_inwards_only():
    outwards = [
        f"{file} includes {other}, but {layer_of(file)}/ may include only {', '.join(sorted(inside(layer_of(file))))}"
        for file in sources()
        for other in included_by(file)
        if file != UMBRELLA and not may_include(layer_of(file), layer_of(other))
    ]
    assert not outwards, "includes that point outwards:" + listed(outwards)


def test_rows_name_folders_that_are_there():
    named = {entry for row in ROWS for entry in row}
    gone = [entry for entry in named if not list(ROOT.glob(entry))]
    assert not gone, f"ROWS names folders that are not there: {gone}"


def test_includes_of_the_core_form_no_circle():
    found = circles(units("src/"))
    assert not found, "includes form circles:" + listed(found)


def test_includes_of_the_reference_driver_form_no_circle():
    found = circles(units("drivers/reference/"))
    assert not found, "includes form circles:" + listed(found)


def test_includes_of_the_pytorch_driver_form_no_circle():
    found = circles(units("drivers/torch/"))
    assert not found, "includes form circles:" + listed(found)


def test_includes_of_tools_and_bindings_form_no_circle():
    found = circles(units("tools/", "research/", "python/"))
    assert not found, "includes form circles:" + listed(found)


def test_a_circle_is_found_and_named():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}}) == ["b -> c -> b"]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_a_layer_may_include_what_is_before_it():
    assert inside("drivers/torch/identity") == {
        *CORE,
        "python/base",
        "drivers/torch/include",
        "drivers/torch/base",
        "drivers/torch/thread",
    }
    assert layer_of(Path("tools/flops/flops.h")) == "tools/flops"
    assert may_include("tools/flops", "python/include")
    assert not may_include("tools/flops", "tools/cupti_profiler")
    assert not may_include("tools/graph", "tools/statistics")
