"""What tests on any framework share: a tool that records, a tool that schedules one routine, and a fresh interpreter."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import amanda
import pytest


class Recorder(amanda.Tool):
    """Looks at every operator it asks for, in all ways there are, and changes nothing.

    `analysed` and `ran` hold operator names; `trace` what happened in order: "relu?" analysed, "relu<" before it ran,
    "relu>" after, each prefixed by the tool's name if it was given one.
    """

    def __init__(
        self, name: str | None = None, *, ops: Any = None, nested: bool = False, trace: list[str] | None = None
    ) -> None:
        super().__init__(name)
        self.prefix = f"{name}:" if name else ""
        self.trace: list[str] = [] if trace is None else trace
        self.analysed: list[str] = []
        self.ran: list[str] = []
        self.contexts: list[amanda.OpContext] = []
        self.inputs: list[tuple[Any, ...]] = []
        self.add_inst_for_op(self.analyse, ops=ops, nested=nested)

    def analyse(self, context: amanda.OpContext) -> None:
        name = context.op.__name__
        self.analysed.append(name)
        self.contexts.append(context)
        self.trace.append(f"{self.prefix}{name}?")
        context.insert_before_op(self.before, name=name)
        context.insert_after_op(self.after, name=name)

    def before(self, *inputs: Any, name: str) -> None:
        self.ran.append(name)
        self.inputs.append(inputs)
        self.trace.append(f"{self.prefix}{name}<")

    def after(self, *outputs: Any, name: str) -> None:
        self.trace.append(f"{self.prefix}{name}>")


class Inserted(amanda.Tool):
    """Schedules one routine on each operator of `ops`: "before", "after" or "replace"."""

    def __init__(
        self, point: str, ops: Any, routine: Callable[..., Any], positions: Any, options: dict[str, Any]
    ) -> None:
        super().__init__(options.pop("name", "tool"))
        self.point, self.routine, self.positions, self.options = point, routine, positions, options
        self.actions: list[amanda.Action] = []
        self.add_inst_for_op(self.analyse, ops=ops)

    def analyse(self, context: amanda.OpContext) -> None:
        schedule = {
            "before": context.insert_before_op,
            "after": context.insert_after_op,
            "replace": context.replace_op,
        }[self.point]
        self.actions.append(schedule(self.routine, self.positions, **self.options))


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def before() -> Callable[..., Inserted]:
    """before(ops, routine, positions=None, **options): a tool with one routine before these operators."""
    return lambda ops, routine, positions=None, **options: Inserted("before", ops, routine, positions, options)


@pytest.fixture
def after() -> Callable[..., Inserted]:
    return lambda ops, routine, positions=None, **options: Inserted("after", ops, routine, positions, options)


@pytest.fixture
def replace() -> Callable[..., Inserted]:
    return lambda ops, routine, positions=None, **options: Inserted("replace", ops, routine, positions, options)


def _placeless(text: str) -> str:
    """Without the module and the line that messages give: " in encoder.0 (forward, model.py:12)"."""
    return re.sub(r"( in [\w.]+)? \((forward, |backward of )[^()]*:\d+\)", "", text)


@pytest.fixture
def placeless() -> Callable[[str], str]:
    return _placeless


@pytest.fixture
def says() -> Callable[..., Any]:
    """with says(ValueError, "text"): the body raises exactly this type with exactly this text, places left out."""

    @contextlib.contextmanager
    def says(kind: type[BaseException], text: str) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert (type(caught.value), _placeless(str(caught.value))) == (kind, text)

    return says


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that amanda logged so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "amanda"]


@pytest.fixture
def fresh_python() -> Callable[[str], str]:
    """Runs code in an interpreter of its own and returns what it printed; it must succeed, and warn of nothing."""

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
