"""Notes on exceptions of the program that may come from a tool's edit, added when they leave a scope."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from amanda import _core
from amanda.driver.identity import cells

_MOST_NAMED = 3
_OF_SHAPES = re.compile(r"\b(shapes?|sizes?|dimensions?)\b")
_NO_GRADIENT = "does not require grad and does not have a grad_fn"  # PyTorch's
_OF_ARGUMENTS = re.compile(
    r"(\S+)\(\) (takes .* positional arguments? but|missing \d+ required positional)"
)  # Python's
_SCHEDULED = re.compile(r"\[amanda\] in tool '.*': (?P<routine>\S+) (?P<when>before|after) ")
_IN_TOOL = "[amanda] in tool '"  # begins the note of the core on what a tool's code raised


def add(error: BaseException, scope: _core.Scope) -> None:
    """Adds what the tools of the scope may have to do with the error. Most errors get no note."""
    _name_cells(getattr(error, "__notes__", None))
    if not isinstance(error, RuntimeError | ValueError | TypeError):
        return
    text, notes = str(error), getattr(error, "__notes__", [])
    is_tools = any(note.startswith(_IN_TOOL) for note in notes)
    if is_tools and _NO_GRADIENT in text:
        note = (
            "[amanda] routines run without gradients; compute them inside `with torch.enable_grad():`, from "
            "x.detach().requires_grad_(), or schedule the routine with differentiable=True"
        )
    elif is_tools and isinstance(error, TypeError) and (option := _selecting(error)):
        note = f"[amanda] the routine gets all {option}; select with {option}=, as {option}=[0], or take *{option}"
    elif not is_tools and _OF_SHAPES.search(text) and (replaced := list(_replaced(scope.describe()))):
        note = f"[amanda] if the shape is not the model's: in this scope, {_listed(replaced)}"
    else:
        return
    if note not in notes:
        error.add_note(note)


def _selecting(error: TypeError) -> str:
    """The option that selects what the routine gets, if it takes another number of arguments than it was given."""
    found = _OF_ARGUMENTS.match(str(error))
    scheduled = next(filter(None, map(_SCHEDULED.match, error.__notes__)), None)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    name = found and found[1].rpartition(".")[2]
    if scheduled is None or name != scheduled["routine"] or at is None or at.tb_frame.f_code.co_name == name:
        return ""  # a function that the routine calls, or something else
    backward = "(backward of" in scheduled.string
    return {
        ("before", False): "inputs",
        ("after", False): "outputs",
        ("before", True): "grad_outputs",
        ("after", True): "grad_inputs",
    }[scheduled["when"], backward]


def _name_cells(notes: object) -> None:
    """Names cells in Amanda's notes: the core knows their files only."""
    if isinstance(notes, list):
        notes[:] = [
            cells.in_text(note) if isinstance(note, str) and note.startswith("[amanda]") else note for note in notes
        ]


def _replaced(actions: Iterable[_core.ActionDescription]) -> dict[str, None]:
    return dict.fromkeys(
        f"{one.routine} of tool '{one.tool}' replaces {one.operator}{f' in {one.module_path}' if one.module_path else ''} "
        f"({cells.line_in_cell(one.source)})"
        for one in actions
        if one.when == "replace" and not one.removed
    )


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
