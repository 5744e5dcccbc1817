"""What tools do not see of TensorFlow: it runs as without a scope, after one warning."""

from __future__ import annotations

import functools
from typing import Any

from amanda import switches, unmatched
from amanda.drivers.tensorflow import port

_told: dict[str, str] = {}  # what ran, and what would be seen


def ran(what: str, instead: str) -> None:
    """Warns, once in a process, at the program's line. `what`: "a partial run". `instead`: what would be seen."""
    if what in _told:
        return
    _told[what] = instead
    unmatched.warn_here(
        f"[tensorflow] {what} runs uninstrumented, and tools do not see its operators; {instead}", UserWarning
    )


def remarks() -> list[str]:
    """For `amanda doctor`."""
    return ["ran uninstrumented, so that tools saw nothing of it:", *(f"  {what}" for what in _told)] if _told else []


def patch() -> None:
    port.partial_run.replace(_partial_run)
    port.run_replicas.replace(_run_replicas)


def unpatch() -> None:
    port.partial_run.restore()
    port.run_replicas.restore()


def is_remote(session: Any) -> bool:
    """Does a session run its graph in another process? Says so if it does."""
    if not session.sess_str:
        return False
    ran(f"a Session with the target {session.sess_str!r}", "use a Session without a target, in this process")
    return True


@functools.wraps(port.partial_run.original)
def _partial_run(session: Any, *args: Any, **kwargs: Any) -> Any:
    if switches.is_enabled():
        ran("Session.partial_run", "use Session.run")
    with switches.disabled():
        return port.partial_run.original(session, *args, **kwargs)


@functools.wraps(port.run_replicas.original)
def _run_replicas(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Of the default strategy it is a call of the function."""
    if port.is_default_strategy(strategy):
        return port.run_replicas.original(strategy, *args, **kwargs)
    if switches.is_enabled():
        ran(f"{type(strategy).__name__}.run", "run the model without a distribution strategy")
    with switches.disabled():
        return port.run_replicas.original(strategy, *args, **kwargs)
