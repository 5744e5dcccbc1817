"""The warning about filters of tools, `ops=` and `modules=`, that matched nothing while a scope was entered."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amanda import _core, ops
from amanda.core import near_names
from amanda.core.asked_names import AskedNames
from amanda.driver.identity import cells

MOST_LISTED = 5


Counts = Callable[[], tuple[Sequence[tuple[str, int]], str]]
"""The operators that ran as (name, number of runs), most frequent first, and the meaning of the numbers."""


class UnmatchedFilterWarning(UserWarning):
    """The filter of a tool's analysis routine, `ops=` or `modules=`, or a name in it, matched nothing that ran in a scope.

    Or a tool looks at backward operators only, and none ran. Or no operator ran on the thread that entered a scope, while
    another thread ran some.
    """


Tell = Callable[[Sequence[_core.Unmatched], Counts, Callable[[], list[str]]], object]
"""A function like `warn`."""


def warn(unmatched: Sequence[_core.Unmatched], counts: Counts, partly: Callable[[], list[str]]) -> None:
    """Warns of each, at the `with` statement, or the call of a decorated function, that is running.

    `partly` returns the texts about single names of filters: `partly`.
    """
    for text in texts(unmatched, counts) + partly():
        warn_here(text)


def texts(unmatched: Sequence[_core.Unmatched], counts: Counts) -> list[str]:
    """The texts that report them, none for none. Routines of one tool whose operators did not run are one text."""
    absent: dict[str, list[_core.Unmatched]] = {}
    for one in unmatched:
        if not one.ops_matched:
            absent.setdefault(one.tool, []).append(one)
    elsewhere = [_elsewhere(one) for one in unmatched if one.ops_matched]
    return elsewhere + [_absent(tool, of_tool, counts) for tool, of_tool in absent.items()]


def warn_here(text: str, category: type[Warning] = UnmatchedFilterWarning) -> None:
    """Warns at the line of the program that is running, the innermost one that is not Amanda's."""
    package = f"{Path(__file__).parents[1]}{os.sep}"
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    path, names = frame.f_code.co_filename, frame.f_globals
    if (file := cells.readable_file(path)) == path:
        warnings.warn(text, category, stacklevel=level)
        return
    once = _once.setdefault(file, {})  # cells have the same globals, and so one register of warnings
    warnings.warn_explicit(text, category, file, frame.f_lineno, names.get("__name__", "__main__"), once)


_once: dict[str, dict[Any, Any]] = {}  # by cell: the warnings that filters show once


# ---- none ran on this thread -------------------------------------------------------------------------------------------


def elsewhere(op: str) -> str:
    """The text about a thread in no scope that ran `op`, the first one, while the thread of a scope ran none."""
    return (
        f"[scope] no operator ran on this thread while the scope was entered, and {op} ran on another thread; a scope "
        "covers the thread that enters it: enter it in the function that the other thread runs"
    )


# ---- no such operator ran ----------------------------------------------------------------------------------------------


def _absent(tool: str, unmatched: Sequence[_core.Unmatched], counts: Counts) -> str:
    patterns = list(dict.fromkeys(pattern for one in unmatched for pattern in one.ops))
    filters = [f"ops={listed(patterns)}"] if patterns else []
    modules = list(dict.fromkeys(pattern for one in unmatched for pattern in one.modules))
    filters += [f"modules={listed(modules)}"] if modules else []
    sentences = [f"[scope] {', '.join(filters)} of tool '{tool}' matched nothing that ran", _what_ran(counts)]
    sentences += _instead(patterns)
    return "; ".join(filter(None, sentences))


def _what_ran(counts: Counts) -> str:
    ran, words = counts()
    if not ran:
        return "to list what runs: amanda ls script.py, or amanda.points(model, *inputs)"
    names = [(name.removeprefix("aten::").removeprefix("tensorflow::"), count) for name, count in ran]
    names.sort(key=lambda one: not ops.kind_of(one[0]))  # before what they are made of
    listed = ", ".join(f"{name} {count}" for name, count in names[:MOST_LISTED])
    more = f" and {len(ran) - MOST_LISTED} more" if len(ran) > MOST_LISTED else ""
    return f"{words}: {listed}{more}"


_INSTEAD = {
    "linear": "GPT-2's Conv1D is addmm, x @ weight is matmul, and nn.TransformerEncoderLayer in evaluation mode is "
    "_transformer_encoder_layer_fwd: ops=amanda.ops.linear_like asks for all of them",
    "scaled_dot_product_attention": "attention may be written with matmul and softmax, or be a part of "
    "_transformer_encoder_layer_fwd or _native_multi_head_attention in evaluation mode",
    "layer_norm": "normalization may be rms_norm, or be written with pow, mean and rsqrt",
    "softmax": "attention may be scaled_dot_product_attention, which has its softmax inside",
    "FusedBatchNormV3": "Keras 3 may write batch normalization with Mean, Rsqrt and Mul",
}
"""Hints, by operator, at other operators that a program may run in its place."""


_BACKWARD_NAME = re.compile(r"[A-Z]\w*(Grad(V\d+|WithArgmax|Grad)?|Backprop\w*)")  # of TensorFlow's operators
_BACKWARD_HINT = "{} is a backward operator: ask for it by its forward operator's name, with backward=True"


def _instead(patterns: Sequence[str]) -> list[str]:
    names = [pattern.rpartition("::")[2].partition(".")[0] for pattern in patterns]
    asks_for_all = set(ops.linear_like) <= set(names)
    hints = [hint for name, hint in _INSTEAD.items() if name in names and not (name == "linear" and asks_for_all)]
    hints += [_BACKWARD_HINT.format(name) for name in names if _BACKWARD_NAME.fullmatch(name)]
    in_place = [f"{name}_" for name in names if f"{name}_" in set(ops.activation).difference(names)]
    return hints + ([f"in place it is {in_place[0]}"] if len(names) == 1 and in_place else [])


# ---- one name of several ----------------------------------------------------------------------------------------------


def partly(tool: str, asked: Sequence[AskedNames], ran: Callable[[], Sequence[str]]) -> list[str]:
    """The texts about names of the tool's filters that nothing met, while others of the same filter were met.

    Each filter is looked at once, when the first scope is left in which something met it. `ran`: the operators that are
    known to have run.
    """
    texts = []
    for one in asked:
        if one.waiting and one.met and (dead := one.take_dead(ran())):
            texts.append(_partly_ops(tool, one, dead) if one.option == "ops" else _partly_modules(tool, one, dead))
    return list(dict.fromkeys(texts))


def _advice(one: AskedNames) -> list[str]:
    return ["if a program may be without it, register the routine with optional=True"] if one.may_be_optional else []


def _partly_ops(tool: str, one: AskedNames, dead: Sequence[str]) -> str:
    where = f" in {one.where}" if one.where else " that ran"
    sentences = [
        f"[scope] ops={listed(dead)} of tool '{tool}' matched nothing{where}; of the same list, {_met(one)} did"
    ]
    return "; ".join([*sentences, *_instead(dead), *_advice(one)])


def _partly_modules(tool: str, one: AskedNames, dead: Sequence[str]) -> str:
    around = sorted({".".join(path.split(".")[:depth]) for path in one.met for depth in range(1, path.count(".") + 2)})
    plain = [re.sub(r"[*?\[\]]", "", pattern) for pattern in dead]
    similar = list(dict.fromkeys(path for name in plain for path in near_names.near(name, around, most=3, cutoff=0.75)))
    near_it = [f"near it: {', '.join(map(repr, similar[:3]))}"] if similar else []
    text = f"[scope] modules={listed(dead)} of tool '{tool}' matched nothing: the routine saw operators in {_met(one)} only"
    return "; ".join([text, *near_it, *_advice(one)])


def _met(one: AskedNames) -> str:
    return f"{', '.join(map(repr, list(one.met)[:MOST_LISTED]))}{_more(len(one.met))}"


def _more(count: int) -> str:
    return f" and {count - MOST_LISTED} more" if count > MOST_LISTED else ""


# ---- it ran in other modules -------------------------------------------------------------------------------------------


def _elsewhere(one: _core.Unmatched) -> str:
    what = f"the operators of ops={listed(one.ops)}" if one.ops else "operators"
    return f"[scope] modules={listed(one.modules)} of tool '{one.tool}' matched nothing: {what} ran {_places(one)}"


def _places(one: _core.Unmatched) -> str:
    paths = [path for path in one.elsewhere if path]
    if not paths:
        return "outside modules only"
    around = sorted({".".join(path.split(".")[:depth]) for path in paths for depth in range(1, path.count(".") + 2)})
    plain = [re.sub(r"[*?\[\]]", "", pattern) for pattern in one.modules]
    similar = dict.fromkeys(path for pattern in plain for path in near_names.near(pattern, around, most=3))
    shown = list(similar)[:3]
    if shown:
        return f"in {len(paths)} other modules; near it: {', '.join(map(repr, shown))}"
    listed = ", ".join(map(repr, paths[:MOST_LISTED]))
    return f"in {listed}" + (f" and {len(paths) - MOST_LISTED} more" if len(paths) > MOST_LISTED else "")


def listed(patterns: Sequence[str]) -> str:
    """Names as messages show them: one alone, of many the first."""
    if len(patterns) == 1:
        return repr(patterns[0])
    more = len(patterns) - MOST_LISTED
    return f"[{', '.join(map(repr, patterns[:MOST_LISTED]))}{f', and {more} more' if more > 0 else ''}]"
