"""The answer: which parameters are not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amanda.toolkit.evidence import counted

from .cut import named
from .rows import findings_of, rows_of

if TYPE_CHECKING:
    from amanda import Evidence

    from .program import Program
    from .variables import Variables

MOST = 8  # findings
_FOR_INFERENCE = (
    "peft has loaded the adapters for inference: PeftModel.from_pretrained(..., is_trainable=True) trains them"
)


def answer_of(program: Program | None, evidence: Evidence, *, ended_well: bool) -> str:
    unseen = "" if evidence.is_complete else f"\nnot looked at: {evidence.not_looked_at}"
    until = "" if ended_well else " until the program failed"
    passes = 0 if program is None else sum(program.passes.values())
    if program is None or not (passes or program.partly):
        failed = program is not None and program.failed
        why = f"; {counted(program.failed, 'pass')} raised an error" if program is not None and failed else ""
        told = [*([] if program is None else _not_used(program))]
        return "\n".join([f"no backward pass was seen{until}{why}, in {evidence.looked_at}", *told]) + unseen
    return "\n".join(_lines(program, passes, until, evidence.looked_at)) + unseen


def answer_of_variables(variables: Variables, evidence: Evidence, *, ended_well: bool) -> str:
    """The same of TensorFlow's variables; "" if no gradient was asked for."""
    rows, found = variables.rows(), variables.findings()
    if not rows:
        return ""
    unseen = "" if evidence.is_complete else f"\nnot looked at: {evidence.not_looked_at}"
    until = "" if ended_well else " until the program failed"
    calls = f"{counted(variables.passes, 'call')} of tape.gradient or tf.gradients{until}"
    bad = sum(row.is_finding for row in rows)
    tensors = sum(row.reason == "no variable" for row in rows)
    kind = "tensor" if tensors == len(rows) else "variable"
    what = f"{len(rows):,} variables and tensors" if 0 < tensors < len(rows) else counted(len(rows), kind)
    whose = f"{what} whose gradients were asked for"
    if bad:
        what = "none" if all(one.verdict == "none" for one in found) else "none, or zeros"
        lines = [f"{bad} of {whose} got {what}, in {calls}:", *(str(one) for one in found[:MOST])]
        lines += [f"and {len(found) - MOST} more reasons"] if len(found) > MOST else []
    else:
        lines = [f"all {whose} got one, in {calls}, {evidence.looked_at}"]
    partial = sum(row.verdict == "partial" for row in rows)
    lines += [f"{counted(partial, 'variable')} got one in some calls only"] if partial else []
    meant = sum(row.verdict == "zero" and not row.is_finding for row in rows)
    why = "got zeros, as a variable that they are multiplied by starts at zero"
    lines += [f"{counted(meant, 'variable')} {why}"] if meant else []
    unread = variables.unread()
    lines += [f"whether the gradients of {counted(unread, 'variable')} are zero was not seen"] if unread else []
    return "\n".join(lines) + unseen


def _lines(program: Program, passes: int, until: str, looked_at: str) -> list[str]:
    rows = rows_of(program.parameters)
    found = findings_of(program.parameters)
    bad = sum(row.is_finding for row in rows)
    seen = f"{_passes(passes)}{until}"
    if program.refused:
        seen += f", {program.refused} of them refused by PyTorch: no path led from the loss to a parameter"
    if not rows:
        frozen = program.parameters.frozen
        if frozen:
            whose = f"{counted(len(frozen), 'parameter')} of the modules that ran"
            lines = [f"none of the {whose} requires a gradient, in {seen}, {looked_at}: {named(frozen)}"]
            return [*lines, *[_FOR_INFERENCE] * program.parameters.are_for_inference(), *_remarks(program)]
        return [f"no parameter of a module or of an optimizer was seen, in {seen}, {looked_at}", *_remarks(program)]
    if bad:
        head = f"{bad} of {counted(len(rows), 'parameter')} that require a gradient are not trained, in {seen}:"
    else:
        head = f"all {counted(len(rows), 'parameter')} that require a gradient got one, in {seen}, {looked_at}"
        others = sum(row.verdict in ("none", "zero") for row in rows)
        if others:
            rest = len(rows) - others
            head = (
                f"{rest} of {counted(len(rows), 'parameter')} that require a gradient got one, in {seen}, {looked_at}"
            )
    lines = [head, *(str(one) for one in found[:MOST])]
    if len(found) > MOST:
        lines.append(f"and {len(found) - MOST} more reasons")
    if program.refusal is not None:
        lines.append(str(program.refusal))
    return [*lines, *_remarks(program)]


def _not_used(program: Program) -> list[str]:
    """Why PyTorch has refused to return gradients, and what would work."""
    if not program.not_used:
        return []
    return [
        *program.not_used,
        "compute the result from the tensor of which the gradient is asked, or ask for that which it uses",
    ]


def _remarks(program: Program) -> list[str]:
    rows = rows_of(program.parameters)
    partial = [row for row in rows if row.verdict == "partial"]
    meant = [row for row in rows if row.verdict in ("none", "zero") and not row.is_finding]
    zeros = [row for row in meant if row.reason == "starts at zero"]
    others = len(meant) - len(zeros)
    parts = [
        (len(partial), "got a gradient in some passes, or for some rows, only"),
        (len(zeros), "got zeros, as a parameter that they are multiplied by starts at zero"),
        (others, "got none, and no optimizer has them"),
        (len(program.parameters.frozen) if rows else 0, "require no gradient"),  # without rows, the answer says it
    ]
    texts = [f"{counted(count, 'parameter')} {what}" for count, what in parts if count]
    if program.failed:
        were = "was" if program.failed == 1 else "were"
        texts.append(f"{_passes(program.failed)} failed, and {were} not judged")
    return [
        *_not_used(program),
        *_not_in_optimizers(program),
        *_no_parameters(program),
        *(["; ".join(texts)] if texts else []),
    ]


def _not_in_optimizers(program: Program) -> list[str]:
    """Those of networks that are in no optimizer as a whole. They may be meant, so they are no findings."""
    every = program.parameters
    found = [one for one in every.all() if every.steps and not one.groups and one.requires_grad]
    found = [one for one in found if one.verdict in ("ok", "partial") and not every.not_updated(one)]
    if not found:
        return []
    more = f" and {len(found) - MOST:,} more" if len(found) > MOST else ""
    names = f"{', '.join(one.name for one in found[:MOST])}{more}"
    why = (
        "networks that are not to be trained, layers that parameters() does not list, as those of a list of Python, or "
        "layers that came after the optimizer was made"
    )
    count = counted(len(found), "parameter")
    return [f"{count} got a gradient, and no optimizer that took a step has them: {names}; {why}"]


def _no_parameters(program: Program) -> list[str]:
    """No findings: a program may use their gradients itself."""
    found = program.parameters.attributes()
    if not found:
        return []
    are = "tensor that requires a gradient is" if len(found) == 1 else "tensors that require a gradient are"
    more = f" and {len(found) - MOST:,} more" if len(found) > MOST else ""
    them = "it" if len(found) == 1 else "them"
    what = f"{len(found)} {are} in a module and no nn.Parameter: neither parameters() nor an optimizer has {them}"
    return [f"{what}: {', '.join(found[:MOST])}{more}"]


def _passes(count: int) -> str:
    return f"{count:,} backward pass{'es' * (count != 1)}"
