"""ModuleAlignment: which run of a module made a value of a file whose nodes say no more than their modules."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import Any

from .alignment import Matched, Shape, kind_of
from .arrays import Array, Kept
from .calls import Call, ModuleRun, Ran
from .distance import distance
from .origins import Origin, scope_name
from .results import Result, reads
from .rows import Unmatched
from .words import word_of

Scope = tuple[str, ...]  # "/layers.0/norm/Mul" is in ("layers.0", "norm")
_CONSTANT = "Constant"  # it is left where an exporter folds what reads it
_LATER_RUN = re.compile(r"_\d+$")


class FileModules:
    """The modules in the names of nodes, which `torch.onnx.export(dynamo=False)` writes."""

    def __init__(self, graph: Any) -> None:
        self._nodes = list(graph.node)
        self.positions: dict[Scope, set[int]] = collections.defaultdict(set)  # of the nodes in a module, or below it
        self._readers: dict[str, set[int]] = collections.defaultdict(set)
        self._outputs = {each.name for each in graph.output}
        for i, node in enumerate(self._nodes):
            scope = _scope_of(node) if node.op_type != _CONSTANT else ()
            for depth in range(1, len(scope) + 1):
                self.positions[scope[:depth]].add(i)
            for name in reads(node):
                self._readers[name].add(i)

    def are_in(self, model: Any) -> bool:
        """Whether a module has these modules, and none of its own has them all."""
        return self._fit(model) and not any(map(self._fit, model.children()))

    def _fit(self, model: Any) -> bool:
        known = {scope_name(name) for name, _ in model.named_modules()}
        parts = {part for scope in self.positions for part in scope}
        return all(part in known or _LATER_RUN.sub("", part) in known for part in parts)

    @property
    def values(self) -> list[str]:
        """The values that leave modules."""
        return list(dict.fromkeys(name for scope in self.positions for name in self.leaving(scope)))

    def leaving(self, scope: Scope) -> list[str]:
        """The values that the nodes of a module make, and others read, in the order of the graph."""
        inside = self.positions[scope]
        made = [name for i in sorted(inside) for name in self._nodes[i].output if name]
        return [name for name in made if name in self._outputs or self._readers[name] - inside]

    def types_that_read(self, value: str) -> set[str]:
        return {self._nodes[i].op_type for i in self._readers[value]}

    def last(self, scope: Scope) -> Any:
        """The last node of a module."""
        return self._nodes[max(self.positions[scope])]


def _scope_of(node: Any) -> Scope:
    return tuple(node.name.split("/")[1:-1]) if node.name.startswith("/") else ()


class ModuleAlignment:
    """The counterparts of the values that leave modules.

    A value is the result of a module's run if both are the only ones of their shape there. An exporter folds a batch
    normalization into the convolution before it, whose value is then that of the batch normalization. Where what reads the
    result has no nodes in the file, something else may be folded: the value has no counterpart.
    """

    def __init__(self, modules: FileModules, shapes: Mapping[str, Shape], call: Call) -> None:
        self._modules, self._shapes, self._call = modules, shapes, call
        self._runs, self._why = _labelled(call, modules)
        self._present = {run.path for scope, run in self._runs.items() if scope in modules.positions}
        self._present |= {run.path for run in call.modules if run.scope in modules.positions}
        self._found: dict[str, Matched] = {}  # by value
        self._scopes: dict[str, list[Scope]] = collections.defaultdict(list)
        self._disputed: set[str] = set()
        for scope in modules.positions:
            self._match(scope)

    def matched(self) -> list[Matched]:
        """The pairs, in the order of the file."""
        return list(self._found.values())

    def unmatched(self) -> list[Unmatched]:
        """The modules without a value that has a counterpart, and why."""
        done = {scope for name in self._found for scope in self._scopes[name]}
        return [
            Unmatched(self._last_value(scope), self._modules.last(scope).op_type, ".".join(scope), self._why[scope])
            for scope in self._modules.positions
            if scope not in done
        ]

    def moved(self, values: Mapping[str, Array], tolerance: float) -> dict[str, Matched]:
        """The values that are results of later operators instead: an exporter has folded these into the module's nodes."""
        found = {}
        for name, (result, ran, kept) in self._found.items():
            value = values[name]
            if distance(value, kept.array).error <= tolerance:
                continue
            start = next(i for i, each in enumerate(self._call.ran) if each is ran) + 1
            others = ((later, each) for later in self._call.ran[start:] for each in later.outputs if each is not None)
            for later, other in others:
                if self._is_of_shape(other, name) and distance(value, other.array).error <= tolerance:
                    found[name] = Matched(result, later, other)
                    break
        self._found.update(found)
        return found

    def _last_value(self, scope: Scope) -> str:
        return next((name for name in reversed(self._modules.leaving(scope))), "")

    def _match(self, scope: Scope) -> None:
        run = self._runs.get(scope)
        if run is None:
            self._why.setdefault(scope, "the program ran no such module")
            return
        try:
            name, ran, kept = self._result(scope, run)
        except LookupError as why:
            self._why[scope] = str(why.args[0])
            return
        self._scopes[name].append(scope)
        before = self._found.get(name)
        if name in self._disputed or (before is not None and before.reference.key != kept.key):
            self._disputed.add(name)
            self._found.pop(name, None)
            self._why.update(
                dict.fromkeys(self._scopes[name], "it shares its value with a module that has another result")
            )
            return
        result = Result(name, Origin("", ran.place.name, run.path, (), ""), 0)
        self._found[name] = Matched(result, ran, kept)

    def _result(self, scope: Scope, run: ModuleRun) -> tuple[str, Ran, Kept]:
        """Raises `LookupError`: the reason why the value is not known."""
        if len(run.results) != 1:
            raise LookupError(f"it returns {len(run.results)} tensors")
        (result,) = run.results
        names = [name for name in self._modules.leaving(scope) if self._is_of_shape(result, name)]
        if len(names) != 1:
            raise LookupError(f"{len(names)} values of the shape {list(result.shape)} leave its nodes")
        made = [
            (ran, kept)
            for ran in self._call.ran[run.start : run.end]
            for kept in ran.outputs
            if kept is not None and (kept.key, kept.shape) == (result.key, result.shape)
        ]
        if not made:
            raise LookupError("no operator inside it makes its result")
        return names[0], *self._after_folding(names[0], run, *made[-1])

    def _after_folding(self, name: str, run: ModuleRun, ran: Ran, kept: Kept) -> tuple[Ran, Kept]:
        readers = [
            each
            for each in self._call.ran[run.end :]
            if kept.key in each.inputs and any(out is None or out.key != kept.key for out in each.outputs)
        ]
        norms = [each for each in readers if word_of(each.place.name) == "batch_norm"]
        if norms and "BatchNormalization" not in self._modules.types_that_read(name):
            result = norms[0].outputs[0]
            if len(readers) > 1 or result is None or not self._is_of_shape(result, name):
                raise LookupError("others than the batch normalization that is folded into it read its result")
            return norms[0], result
        for each in readers:
            path = self._call.path_inside(each.place.module_path)
            if path and path not in self._present:
                raise LookupError(f"{each.place.name} at {path} reads its result, and has no nodes in the file")
        return ran, kept

    def _is_of_shape(self, kept: Kept, name: str) -> bool:
        return self._shapes.get(name) == (kept.shape, kind_of(kept.flat))


def _labelled(call: Call, modules: FileModules) -> tuple[dict[Scope, ModuleRun], dict[Scope, str]]:
    """The run that each scope of the file names, and reasons for scopes that may name several."""
    groups: dict[Scope, list[ModuleRun]] = collections.defaultdict(list)
    for run in call.modules:
        groups[run.scope].append(run)
    found: dict[Scope, list[ModuleRun]] = collections.defaultdict(list)
    why: dict[Scope, str] = {}
    for scope, runs in groups.items():
        is_leaf = not any(len(other) > len(scope) and other[: len(scope)] == scope for other in groups)
        labels = [scope, *((*scope[:-1], f"{scope[-1]}_{k}") for k in range(1, len(runs)))]
        if len(runs) > 1 and not (is_leaf and all(label in modules.positions for label in labels)):
            why.update(
                (label, f"its nodes do not say to which of its {len(runs)} runs they belong") for label in labels
            )
            labels = labels[:1] * 2  # of none
        for label, run in zip(labels, runs, strict=False):
            found[label].append(run)
    for label, runs in found.items():
        if len(runs) > 1:
            why.setdefault(label, "the names of its nodes are those of two modules")
    return {label: runs[0] for label, runs in found.items() if len(runs) == 1}, why
