"""Where the operators of a torch.fx graph come from: the module and the line of the program that it was traced from.

Graphs of torch.export, also from a `.pt2` file, and of torch.fx's tracers run as Python code that is generated from them.
The tracer has noted the places in the nodes.
"""

from __future__ import annotations

import os
import re
from types import CodeType
from typing import Any

import torch

from amanda.driver.identity import frames
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import lifetimes

GRAPH_FILE = port.GRAPH_FILE
_UNKNOWN = "", "", False
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LINE = re.compile(r'^  File "(.*)", line (\d+), in ', re.MULTILINE)
_TORCH_ELSEWHERE = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")  # the graph may come from another machine
_REPEATED = re.compile(r"@\d+(?=\.|$)")  # the second call of a module

_known: dict[int, list[tuple[str, str, bool]]] = {}  # for each node of a graph, by the address of its code


def traced_place(graph_module: Any, code: CodeType, line: int) -> tuple[str, str, bool]:
    """The module and the source line that a line of a graph's code was traced from; "" for what is not known.

    The third item is true if the line runs a region, which is a graph of the same trace.
    The module's name is relative to the module that was traced, in regions, too. Once the code has died, `forget` must be
    called before this is called again.
    """
    node = port.node_at(graph_module, code, line)
    if node is None:
        return _UNKNOWN
    places = _known.get(id(code))
    if places is None:
        places = _known[id(code)] = [_place_of(each) for each in graph_module.graph.nodes]
    return places[node] if node < len(places) else _UNKNOWN


def file_of(module: str, path: str) -> tuple[str, str]:
    """As `frames.file_of`. Files of graphs have no names of their own, but numbers among all graphs of the process."""
    return frames.file_of(module, path, GRAPH_FILE if path.startswith(GRAPH_FILE) else "")


def _place_of(node: Any) -> tuple[str, str, bool]:
    runs_region = isinstance(node.target, port.HigherOrderOperator)
    return _module_of(node.meta.get("nn_module_stack")), _source_of(node.meta.get("stack_trace")), runs_region


def _module_of(stack: Any) -> str:
    innermost = list(stack.values())[-1] if isinstance(stack, dict) and stack else None
    name = innermost[0] if isinstance(innermost, tuple) and innermost else None
    if not isinstance(name, str):
        return ""
    name = _REPEATED.sub("", name)
    # Others are expressions: Dynamo's are.
    return name if all(part.isidentifier() or part.isdigit() for part in name.split(".")) else ""


def _source_of(trace: Any) -> str:
    """The innermost line outside of torch and Amanda."""
    if not isinstance(trace, str):
        return ""
    for file, line in reversed(_LINE.findall("  " + trace.lstrip())):
        if not (file.startswith(_TORCH) or _TORCH_ELSEWHERE.search(file) or frames.is_ours(file)):
            return f"{file}:{line}"
    return ""


def _forget(code: int) -> None:
    _known.pop(code, None)


lifetimes.objects.listen(_forget)
