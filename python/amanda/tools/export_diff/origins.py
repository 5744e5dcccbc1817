"""Origin: the operator of the exported program that a node was made of."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from amanda.toolkit.onnx import exported_of

_NAME = re.compile(r"%(\w+)")
_TARGET = re.compile(r"target=(?:torch\.ops\.)?(\w+)\.(\w+)")


class Origin(NamedTuple):
    """An operator of the exported program."""

    name: str  # of its FX node: "linear_1"
    op: str  # "linear"
    module_path: str  # "encoder.linear1"
    arguments: tuple[str, ...]  # names of FX nodes; parameters and buffers are p_encoder_linear1_weight
    text: str  # the arguments as the exporter writes them


def origin_of(node: Any) -> Origin | None:
    """None if the node has no such metadata."""
    exported = exported_of(node)
    target = None if exported is None else _TARGET.search(exported.fx_node)
    if exported is None or target is None:
        return None
    name = exported.fx_node.partition(" ")[0].lstrip("%")
    arguments = exported.fx_node.partition("](")[2]
    return Origin(name, target[2], exported.module_path, tuple(_NAME.findall(arguments)), arguments)


def root_class(nodes: Any) -> str | None:
    """The name of the class of the module that was exported; None if no node has such metadata."""
    for node in nodes:
        exported = exported_of(node)
        if exported is not None and exported.class_hierarchy:
            return exported.class_hierarchy[0].rpartition(".")[2]
    return None


def scope_name(module_path: str) -> str:
    """A module in the names of nodes that `torch.onnx.export(dynamo=False)` writes: the last part of its path. Numbers have
    the part before them: "layers.0"."""
    parts = module_path.split(".")
    first = len(parts) - 1
    while first and parts[first].isdecimal():
        first -= 1
    return ".".join(parts[first:])
