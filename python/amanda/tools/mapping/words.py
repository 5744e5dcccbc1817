"""The vocabulary of all drivers: which operators one word stands for, and what their inputs are."""

from __future__ import annotations

from collections.abc import Mapping

from amanda.toolkit.operators import WEIGHTED, Roles, complaint, vocabularies

Word = Mapping[str, Mapping[str, Roles]]
"""By framework, such as "PyTorch": the full names of the operators that the word stands for, with the roles of their
inputs."""


def words() -> dict[str, Word]:
    """All words, in PyTorch's spelling, by which drivers name their operators."""
    columns = vocabularies()
    ordered = dict.fromkeys(word for _, column in columns for word in column.words)
    return {word: {framework: column.words.get(word, {}) for framework, column in columns} for word in ordered}


def roles() -> frozenset[str]:
    """All roles that inputs have."""
    operators = (operators for _, column in vocabularies() for operators in column.words.values())
    named = (role for each in operators for roles in each.values() for role in roles)
    return frozenset({"weight", "input", *named})  # of a product, a factor


def names_of(*asked: str) -> list[str]:
    """The operators that words stand for, by their full names: for `Tool.add_inst_for_op`, in any framework.

    >>> names_of("conv2d", "relu")[:3]
    ['aten::conv2d', 'tensorflow::Conv2D', 'onnx::Conv']

    Raises:
        ValueError: there is no such word.
    """
    known = words()
    for word in asked:
        if word not in known:
            raise ValueError(f"[mapping] there is no word {word!r}; there are {', '.join(known)}")
    names = (name for word in asked for operators in known[word].values() for name in operators)
    return list(dict.fromkeys(names))


def weighted_operators(*of_torch: str) -> list[str]:
    """Operators that multiply by a weight, for `ops=`, as far as they can run here.

    These of PyTorch, and those of other frameworks for which there is a word in `amanda.toolkit.operators.WEIGHTED`.
    """
    others = [name for name in names_of(*WEIGHTED) if not name.startswith("aten::")]
    return [name for name in (*of_torch, *others) if complaint(name) is None]
