"""Origin: the operator of the exported program that a node was made of. `torch.onnx.export(dynamo=True)` writes it into
the node's metadata."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

_PREFIX = "pkg.torch.onnx."
_NAME = re.compile(r"%(\w+)")
_TARGET = re.compile(r"target=(?:torch\.ops\.)?(\w+)\.(\w+)")
_LAST = -2  # the last scope is the operator's own


class Origin(NamedTuple):
    """An operator of the exported program."""

    name: str  # of its FX node: "linear_1"
    op: str  # "linear"
    module_path: str  # "encoder.linear1"
    arguments: tuple[str, ...]  # names of FX nodes; parameters and buffers are p_encoder_linear1_weight
    text: str  # the arguments as the exporter writes them


def origin_of(node: Any) -> Origin | None:
    """None if the node has no such metadata."""
    found = {each.key: each.value for each in node.metadata_props}
    text = found.get(f"{_PREFIX}fx_node", "")
    target = _TARGET.search(text)
    if target is None:
        return None
    name = text.partition(" ")[0].lstrip("%")
    arguments = text.partition("](")[2]
    scopes = _listed(found.get(f"{_PREFIX}name_scopes", ""))
    path = scopes[_LAST] if len(scopes) >= -_LAST else ""
    return Origin(name, target[2], path, tuple(_NAME.findall(arguments)), arguments)


def root_class(nodes: Any) -> str | None:
    """The name of the class of the module that was exported; None if no node has such metadata."""
    for node in nodes:
        for each in node.metadata_props:
            if each.key == f"{_PREFIX}class_hierarchy":
                classes = _listed(each.value)
                if classes:
                    return classes[0].rpartition(".")[2]
    return None


def scope_name(module_path: str) -> str:
    """A module in the names of nodes that `torch.onnx.export(dynamo=False)` writes: the last part of its path. Numbers have
    the part before them: "layers.0"."""
    parts = module_path.split(".")
    first = len(parts) - 1
    while first and parts[first].isdecimal():
        first -= 1
    return ".".join(parts[first:])


def _listed(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []
