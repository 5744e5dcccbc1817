"""Alignment: which operator of the eager program made a value of the file."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .arrays import Array, Kept, Key
from .calls import Call, Ran
from .results import Result
from .rows import Unmatched
from .words import MOVES, word_of

Shape = tuple[tuple[int, ...], str]  # of a value, and the kind of its elements: "f", "i", "b"
_KINDS = {"u": "i"}
_COMPUTES, _MOVES = 8, 1  # weights of a match: what only moves elements decides where all else is equal


class Matched(NamedTuple):
    """A value of the file, and the tensor of the program."""

    result: Result
    ran: Ran
    reference: Kept


class Alignment:
    """The counterparts of the file's values in a call.

    In each module, the operators of both sides are aligned in their order, where their words, shapes and kinds of elements
    agree. Each match is then checked by the flow of data: where the arguments of the file's operator have counterparts,
    the program's operator has read these tensors. So of two equal views, each gets its own.
    """

    def __init__(self, results: Sequence[Result], shapes: Mapping[str, Shape], call: Call, feeds: Mapping[str, Kept]):
        self._results, self._shapes, self._call, self._feeds = results, shapes, call, feeds
        self._groups: dict[str, list[Result]] = collections.defaultdict(list)  # by FX node
        for each in results:
            if each.name in shapes:
                self._groups[each.origin.name].append(each)
        self._by_module: dict[str, list[int]] = collections.defaultdict(list)
        for i, ran in enumerate(call.ran):
            self._by_module[call.path_inside(ran.place.module_path)].append(i)
        self._owner = {each.name: fx for fx, group in self._groups.items() for each in group}
        self._words = [word_of(ran.place.name) for ran in call.ran]
        self._found: dict[str, int] = {}  # position in `call.ran`, by FX node
        self._align()
        self._check()

    def matched(self) -> list[Matched]:
        """The pairs, in the order of the file."""
        return [
            Matched(result, self._call.ran[i], kept)
            for fx, i in self._found.items()
            for result, kept in zip(self._groups[fx], self._outputs(fx, i), strict=False)
        ]

    def unmatched(self) -> list[Unmatched]:
        """The values without a counterpart, and why."""
        return [
            Unmatched(each.name, each.origin.op, each.origin.module_path, self._why_unmatched(each))
            for each in self._results
            if each.name not in self._shapes or each.origin.name not in self._found
        ]

    def _why_unmatched(self, result: Result) -> str:
        if result.name not in self._shapes:
            return "ONNX Runtime's Python has no array for it"
        first = self._groups[result.origin.name][0]
        word, (shape, _) = word_of(first.origin.op), self._shapes[first.name]
        here = self._by_module.get(first.origin.module_path, [])
        if not here:
            return "the program ran no operator in this module"
        same = [i for i in here if self._words[i] == word]
        if not same:
            return "the program ran no such operator in this module"
        if not any(kept is not None and kept.shape == shape for i in same for kept in self._call.ran[i].outputs):
            return f"the program's results in this module have other shapes than {list(shape)}"
        return "the program's operators in this module read other values, or have other counterparts"

    # ---- in order ---------------------------------------------------------------------------------------------------

    def _align(self) -> None:
        ours: dict[str, list[str]] = collections.defaultdict(list)
        for fx, group in self._groups.items():
            ours[group[0].origin.module_path].append(fx)
        for path, names in ours.items():
            theirs = self._by_module.get(path, [])
            for i, k in self._pairs(names, theirs):
                self._found[names[i]] = theirs[k]
        self._found = {fx: self._found[fx] for fx in self._groups if fx in self._found}

    def _pairs(self, names: Sequence[str], theirs: Sequence[int]) -> list[tuple[int, int]]:
        """The heaviest common subsequence."""
        best = [[0] * (len(theirs) + 1) for _ in range(len(names) + 1)]
        weights = [[self._weight(fx, k) for k in theirs] for fx in names]
        for i in reversed(range(len(names))):
            for k in reversed(range(len(theirs))):
                both = best[i + 1][k + 1] + weights[i][k] if weights[i][k] else 0
                best[i][k] = max(both, best[i + 1][k], best[i][k + 1])
        found, i, k = [], 0, 0
        while i < len(names) and k < len(theirs):
            if weights[i][k] and best[i][k] == best[i + 1][k + 1] + weights[i][k]:
                found.append((i, k))
                i, k = i + 1, k + 1
            elif best[i][k] == best[i + 1][k]:
                i += 1
            else:
                k += 1
        return found

    def _weight(self, fx: str, k: int) -> int:
        """0 if they cannot be a pair."""
        word = word_of(self._groups[fx][0].origin.op)
        if self._words[k] != word or not self._outputs(fx, k):
            return 0
        return _MOVES if word in MOVES else _COMPUTES

    def _outputs(self, fx: str, k: int) -> list[Kept]:
        """The tensors of an execution that are the results of an operator of the file; [] if one is missing."""
        waiting, found = list(self._call.ran[k].outputs), []
        for result in self._groups[fx]:
            wanted = self._shapes[result.name]
            while waiting:
                kept = waiting.pop(0)
                if kept is not None and (kept.shape, kind_of(kept.flat)) == wanted:
                    found.append(kept)
                    break
            else:
                return []
        return found

    # ---- by the flow of data ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        taken = set(self._found.values())
        checked: dict[str, int] = {}
        self._found, aligned = checked, self._found
        for fx in self._groups:
            k = aligned.get(fx)
            if k is not None and self._agrees(fx, k) is not False:
                checked[fx] = k
                continue
            if k is not None:
                taken.discard(k)
            other = self._by_flow(fx, taken)
            if other is not None:
                checked[fx] = other
                taken.add(other)

    def _by_flow(self, fx: str, taken: set[int]) -> int | None:
        """The first execution that has read the values that the operator of the file reads."""
        path = self._groups[fx][0].origin.module_path
        for k in self._by_module.get(path, []):
            if k not in taken and self._weight(fx, k) and self._agrees(fx, k):
                return k
        return None

    def _agrees(self, fx: str, k: int) -> bool | None:
        """Whether the execution has read the counterparts of the operator's arguments; None if none is known."""
        ran, arguments = self._call.ran[k], self._groups[fx][0].origin.arguments
        keys = [key for key in map(self._key, arguments) if key is not None]
        if keys:
            return ran.inputs.issuperset(keys)
        named = [each for each in arguments if each.startswith(("p_", "b_"))]
        ours = {self._call.path_inside(each).replace(".", "_") for each in ran.parameters}
        return any(each[2:] in ours for each in named) if named and ours else None

    def _key(self, name: str) -> Key | None:
        """The contents of the counterpart of an FX node's result; None if it is not known."""
        if name in self._feeds:
            return self._feeds[name].key
        fx = self._owner.get(name, name)
        k = self._found.get(fx)
        if k is None:
            return None
        members = [each.name for each in self._groups[fx]]
        return self._outputs(fx, k)[members.index(name) if name in members else 0].key


def kind_of(array: Array) -> str:
    """ "f", "i" or "b": an exporter may change the width."""
    kind = array.dtype.kind if array.dtype.kind != "V" else "f"  # ml_dtypes' own
    return _KINDS.get(kind, kind)
