"""The names of a filter, `ops=` or `modules=`, that nothing has met, while other names of the same list were met."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from amanda import ops
from amanda.driver import registry
from amanda.driver.vocabulary import WEIGHTED

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext

_GLOB = re.compile(r"[*?\[]")
_MOST_MET = 64  # module paths that are kept for the text
_VARIANT = re.compile(r"^_+|_+$|\d+d$|V\d+$")  # "max_pool2d" of "max_pool1d", "relu_" of "relu", "FusedBatchNormV3"


class AskedNames:
    """One list of names, and what the analyses that it filters have met so far. On any thread.

    In a list of operators, only names are looked at, as a glob is a net. Lists with one name are left to the core, which
    warns of them.
    """

    __slots__ = ("families", "frameworks", "may_be_optional", "met", "option", "patterns", "waiting", "where")

    def __init__(
        self, option: Literal["ops", "modules"], patterns: Sequence[str], where: str, may_be_optional: bool
    ) -> None:
        self.option = option
        self.patterns = list(dict.fromkeys(patterns))
        self.where = where  # the other filter, as text
        self.may_be_optional = may_be_optional  # it is of a routine, and not of `narrow`
        names = [name for name in self.patterns if option == "modules" or not _GLOB.search(name)]
        self.waiting = set(names if len(self.patterns) > 1 else [])  # changed in place: set methods are atomic
        self.met: dict[str, None] = {}  # names of operators, or module paths
        self.families: set[str] = set()  # of these operators
        self.frameworks: set[str] = set()

    def meet(self, context: OpContext) -> None:
        """An analysis of this filter looks at an operator."""
        if self.option == "ops":
            op = context._handle.op()
            forms, text = _spellings(op.name, op.overload), op.__name__
            matched = [name for name in tuple(self.waiting) if name in forms]
            self.families.add(_family(op.name))
            self.frameworks.add(_framework(op.name))
        else:
            text = context._handle.module_path()
            matched = [name for name in tuple(self.waiting) if is_inside(text, name)]
        self.waiting.difference_update(matched)
        if len(self.met) < _MOST_MET:
            self.met[text] = None

    def take_dead(self, ran: Iterable[str]) -> list[str]:
        """The names that nothing has met, each time once. `ran`: the operators that are known to have run.

        None if nothing of the list was met, of which the core warns; and none that another name of the list stands for,
        or that is of another framework than those that were met: a tool for any framework asks for all.
        """
        if not self.waiting or not self.met:
            return []
        dead = [name for name in self.patterns if name in self.waiting]
        self.waiting.clear()
        if self.option == "modules":
            return dead
        ran_bases = {_base(name) for name in ran}
        whole = _of_whole_groups(self.patterns)
        return [
            name
            for name in dead
            if _base(name) not in ran_bases and _family(name) not in self.families and _base(name) not in whole
            if _framework(name) in ("", *self.frameworks)
        ]


def is_inside(path: str, pattern: str) -> bool:
    """True if a pattern of `modules=` matches the module, or one around it."""
    parts = path.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def _spellings(name: str, overload: str) -> set[str]:
    base = name.rpartition("::")[2]
    return {name, base, f"{name}.{overload}", f"{base}.{overload}"}


def _base(name: str) -> str:
    """The name without namespace and overload."""
    return name.rpartition("::")[2].partition(".")[0]


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
_WITH_WEIGHTS = frozenset((*ops.factors, *ops.fused_layers, *_RECURRENT, "bilinear", "einsum", "embedding"))
_ATTENTION = frozenset((*ops.attention, "softmax", "_softmax", "_safe_softmax"))
_WITH_WEIGHTS_IN_TENSORFLOW = re.compile(
    r"(Batch)?MatMul\w*|(Depthwise)?Conv\dD\w*|DepthwiseConv2d\w*|_Fused\w+|Einsum"
)


def _framework(name: str) -> str:
    """That of an operator's full name; empty if there are no words for operators of its namespace."""
    prefix = name.partition("::")[0] if "::" in name else ""
    return next((known.namespace for _, known in registry.vocabularies() if prefix in known.prefixes), "")


def _family(name: str) -> str:
    """Operators that a program runs in each other's place have the same one: a tool for any model asks for all."""
    words = [word for _, known in registry.vocabularies() for word in known.words_for(name)]
    base = words[0] if words else _base(name)
    if base in _WITH_WEIGHTS or base in WEIGHTED or _WITH_WEIGHTS_IN_TENSORFLOW.fullmatch(base):
        return "with weights"
    if base in _ATTENTION:
        return "attention"
    return ops.kind_of(base) or _VARIANT.sub("", base)


def _of_whole_groups(names: Sequence[str]) -> set[str]:
    """The names of the groups of `amanda.ops` that are in the list as a whole: whoever adds a group means any model."""
    given = {_base(name) for name in names}
    return {name for group in ops.groups.values() if len(group) > 1 and given.issuperset(group) for name in group}
