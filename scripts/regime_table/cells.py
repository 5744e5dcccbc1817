"""Cells: a tool runs in a program of a regime, and its own evidence says what it looked at."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amanda

from regime_table.program import Program, Regime
from regime_table.regimes import REGIMES
from regime_table.tools import TOOLS, Dependent, make

YES, NOTHING, REFUSES, OF_PYTORCH = "yes", "nothing", "refuses", "PyTorch only"
_REFUSAL = re.compile(r"\[\w+\] .{40,}", re.DOTALL)  # who speaks, and what was found and would work


def cell(tool: str, regime: str) -> str:
    """The reasons for which something was not looked at, or one of the words above.

    Raises:
        Exception: the program fails with the tool, other than by an error of the tool's that says so.
    """
    made, where = TOOLS[tool], REGIMES[regime]
    with tempfile.TemporaryDirectory() as folder, _quiet():
        record = Path(folder) / "record"
        try:
            if tool == "CausalDiff":
                with where.program(made.network) as program:
                    _run("Recorder", make("Recorder", program, record), where, program)
            with where.program(made.network) as program:
                instance = make(tool, program, record)
                _run(tool, instance, where, program)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            return OF_PYTORCH
        except (amanda.Error, TypeError) as error:
            if not _REFUSAL.match(str(error)):
                raise
            return REFUSES
        return text_of(instance.evidence())


def text_of(evidence: amanda.Evidence) -> str:
    if evidence.unseen:
        return ", ".join(dict.fromkeys(one.reason for one in evidence.unseen))
    return YES if evidence.operators or evidence.backward_operators else NOTHING


def _run(tool: str, instance: Any, where: Regime, program: Program) -> None:
    with contextlib.ExitStack() as closed:
        if tool == "Recorder":
            closed.enter_context(instance)
        applied = Dependent(instance) if tool == "MappingTool" else instance
        if not isinstance(instance, amanda.StepTool):
            closed.enter_context(amanda.apply(applied, **where.options))
            TOOLS[tool].run(instance, program)
            return
        steps = closed.enter_context(amanda.scheduled(applied, **where.options))
        TOOLS[tool].run(instance, program)
        steps.step()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("amanda")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
