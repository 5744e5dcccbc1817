"""Names of results: the module, the operator type, and which operator of that type it is in the module."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from amanda import OpContext
from amanda.toolkit import locks
from amanda.toolkit.operators import vocabularies
from amanda.tools.mapping import MappingTool

from .attention_weights import ATTENTION, WEIGHTS

MOST_LISTED = 8


class ResultName(NamedTuple):
    """ "encoder.layer.0:add[1]": the result of the second `add` that the module "encoder.layer.0" calls itself.

    Operators are counted from 0 on, each type alone, in the order in which they first ran; "[0]" is left out.
    """

    module: str
    op: str
    number: int

    def __str__(self) -> str:
        return f"{self.module}:{self.op}" + (f"[{self.number}]" if self.number else "")

    @classmethod
    def parse(cls, text: str) -> ResultName:
        """
        Raises:
            ValueError: it is not "MODULE:OPERATOR" or "MODULE:OPERATOR[INDEX]".
        """
        match = re.fullmatch(r"([^:]*):(\w+)(?:\[(\d+)\])?", text)
        if match is None:
            raise ValueError(
                f"[capture] a result's name is 'module:operator' or 'module:operator[1]', as 'h.0:add[1]'; got {text!r}"
            )
        return cls(match[1], match[2], int(match[3] or 0))


class Naming:
    """Other names for results, by rules::

        Naming([("blocks.{}.hook_resid_mid", "h.{}:add"), ("blocks.{}.hook_resid_pre", "h.{-1}:add[1]")])

    ``{}`` stands for a number that both sides share, ``{-1}`` for that number minus one. The module is the end of a path:
    "h.{}" also means "transformer.h.{}".

    Arguments:
        rules: pairs of the other name and the result's, as in `ResultName`.

    Raises:
        ValueError: a rule's second part is not such a name.
    """

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = []
        for template, result in rules:
            shift = 1 if "{-1}" in result else 0
            name = ResultName.parse(result)
            module = re.escape(name.module.replace("{-1}", "{}")).replace(r"\{\}", r"(\d+)")
            self._rules.append((template, re.compile(rf"(?:.*\.)?{module}"), name.op, name.number, shift))

    @property
    def ops(self) -> tuple[str, ...]:
        """The operator types that have names."""
        return tuple(sorted({op for _, _, op, _, _ in self._rules}))

    def names_of(self, name: ResultName) -> list[str]:
        """The other names of a result, in the order of the rules."""
        found = []
        for template, module, op, index, shift in self._rules:
            if (op, index) == name[1:] and (match := module.fullmatch(name.module)):
                number = str(int(match[1]) + shift) if match.groups() else ""
                found.append(template.replace("{}", number))
        return found


def result_names(naming: Naming | None = None) -> MappingTool:
    """A mapping tool: contexts get the names that `Capture` and `Patch` know, for the tools that depend on it::

        class Entropy(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.depends_on(result_names(TRANSFORMER_LENS_GPT2))
                self.add_inst_for_op(self.analyze, ops="softmax")

            def analyze(self, context):
                print(context["result_name"], context["result_names"])  # h.0.attn:softmax ['blocks.0.attn.hook_pattern']

    ``context["result_name"]`` is a `ResultName`, ``context["result_names"]`` a list of the names that `naming` gives to
    it. Operators of one type are counted in a module from the first that a dependent asks for. In backward contexts they
    are those of the forward operator's result.
    """
    numbering = Numbering()

    def rule(context: OpContext) -> None:
        if context.is_forward():
            name = numbering.name_of(context)
            context["result_name"], context["result_names"] = name, naming.names_of(name) if naming is not None else []

    return MappingTool([(known.namespace, rule) for _, known in vocabularies()])


class Pattern:
    """Selects results: by "module:operator[index]", by a module's path alone, or by a name of a `Naming`.

    ``*`` stands for any characters and ``?`` for one. A path alone selects what the module itself calls. With a naming,
    what has no colon is one of its names.
    """

    def __init__(self, text: object, naming: Naming | None, speaker: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"[{speaker}] names are strings, such as 'encoder.0:add[1]', got {text!r}")
        self.text, self._naming, self._has_op = text, naming, ":" in text
        expression = re.escape(text.removesuffix("[0]")).replace(r"\*", ".*").replace(r"\?", ".")
        self._expression = re.compile(expression)

    @property
    def is_one_module(self) -> bool:
        return not self._has_op and self._naming is None and not set("*?") & set(self.text)

    def ops(self) -> list[str] | None:
        """The operators to ask for; None means all."""
        if self._has_op:
            op = self.text.rpartition(":")[2].partition("[")[0] or "*"
            return [ATTENTION if op == WEIGHTS else op]
        return None if self._naming is None else list(self._naming.ops)

    def matches(self, name: ResultName) -> bool:
        if name.op == WEIGHTS and not self._has_op and self._naming is None:  # no result of the module's
            return False
        if self._has_op:
            return self._expression.fullmatch(str(name)) is not None
        others = [name.module] if self._naming is None else self._naming.names_of(name)
        return any(self._expression.fullmatch(other) for other in others)


class Numbering:
    """Gives each operator of a program its name."""

    def __init__(self) -> None:
        self._names: dict[int, ResultName] = {}  # by op_id
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._lock = locks.lock()  # guards the fields above

    def name_of(self, context: OpContext) -> ResultName:
        with self._lock:
            name = self._names.get(context.op_id)
            if name is None:
                key = context.module_path, context.op.__name__
                name = self._names[context.op_id] = ResultName(*key, self._counts[key])
                self._counts[key] += 1
            return name

    def names(self) -> list[ResultName]:
        with self._lock:
            return list(self._names.values())


def ops_of(patterns: Sequence[Pattern]) -> list[str] | None:
    """The operators that a tool with these patterns asks for; None means all."""
    asked: dict[str, None] = {}
    for pattern in patterns:
        ops = pattern.ops()
        if ops is None:
            return None
        asked.update(dict.fromkeys(ops))
    return list(asked)


def listed(names: Iterable[object]) -> str:
    texts = [repr(str(name)) for name in names]
    more = f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else ""
    return ", ".join(texts[:MOST_LISTED]) + more
