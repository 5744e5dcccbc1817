"""Exported: what `torch.onnx.export(dynamo=True)` writes into the metadata of a node about its origin."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

_PREFIX = "pkg.torch.onnx."
_FRAME = re.compile(r'File "(?!<eval_with_key>)([^"]*)", line (\d+)')  # no frame of code that torch.export generated


class Exported(NamedTuple):
    """The operator of the exported program that a node was made of, and its modules."""

    fx_node: (
        str  #: as text: "%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = ...)"
    )
    name_scopes: tuple[str, ...]  #: from the outermost module to the operator itself: ("", "encoder", "linear")
    class_hierarchy: tuple[str, ...]  #: their classes
    source: str  #: the line of the program, "model.py:12"; ""

    @property
    def module_path(self) -> str:
        """The path of the operator's module: "encoder"."""
        return self.name_scopes[-2] if self.name_scopes[1:] else ""


def exported_of(node: Any) -> Exported | None:
    """None if the node has no such metadata.

    Arguments:
        node: a node of an ONNX graph, as of `onnx.NodeProto`.
    """
    found = {each.key.removeprefix(_PREFIX): each.value for each in node.metadata_props if each.key.startswith(_PREFIX)}
    if not found:
        return None
    frames = _FRAME.findall(found.get("stack_trace", ""))
    return Exported(
        found.get("fx_node", ""),
        _listed(found.get("name_scopes", "")),
        _listed(found.get("class_hierarchy", "")),
        ":".join(frames[-1]) if frames else "",
    )


def _listed(text: str) -> tuple[str, ...]:
    try:
        found = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
