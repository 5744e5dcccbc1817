"""Compiled functions in a checkpointed region run again as they ran first, in whatever scope a backward pass recomputes it.

PyTorch compares the tensors that both runs save for the backward pass. Compiled code saves other tensors than the
function that it was compiled from, code with taps other tensors than code without, and each draws its own random numbers.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from amanda import _torch
from amanda.core import fork
from amanda.drivers.torch import port


@dataclasses.dataclass(eq=False, slots=True)
class FirstRun:
    """The first run of a region in scopes whose compiled functions do not run as they are."""

    policy: str
    key_role: int  # of this thread: Dynamo's guards compare dispatch keys
    graphs: dict[Any, Any] = dataclasses.field(default_factory=dict)


_lock = fork.rlock()  # reentrant: garbage collection may forget a region at any time
_first_runs: dict[int, tuple[weakref.ref[Any], FirstRun]] = {}  # by id() of the region
_on_change: list[Callable[[], None]] = []


def when_changed(then: Callable[[], None]) -> None:
    """Registers what is called when is_pending() may have become False."""
    _on_change.append(then)


def is_pending() -> bool:
    """True if a region exists that ran in a scope, and that a backward pass may recompute."""
    return bool(_first_runs)


def policy_for(asked: str | None) -> str | None:
    """The policy for the compiled function that is about to run on this thread. `asked`: that of the thread's scopes.

    In a recomputation it is that of the first run. Elsewhere it is `asked`, which is kept for recomputations.
    """
    if not _may_be_checkpointed():
        return asked
    first_runs, again = _regions_here()
    if again is not None:
        known = _known(again)
        asked = known.policy if known else "opaque" if asked else None
    if asked in ("eager", "graph"):
        for region in first_runs:
            _remember(region, FirstRun(asked, _torch.key_role()))
    return asked


def repeated() -> FirstRun | None:
    """The first run of the region that this thread recomputes. None if nothing is recomputed, or if the region ran as it
    is."""
    if not _first_runs or not _may_be_checkpointed():
        return None
    _, again = _regions_here()
    return None if again is None else _known(again)


def keep_graph(key: Any, graph: Any) -> None:
    """Notes the graph that runs for `key`, for recomputations of the regions that this thread runs for the first
    time."""
    if _first_runs and _may_be_checkpointed():
        for region in _regions_here()[0]:
            if known := _known(region):
                known.graphs[key] = graph


def run_eagerly() -> None:
    """The regions that this thread runs for the first time run eagerly, after all."""
    if _first_runs and _may_be_checkpointed():
        for region in _regions_here()[0]:
            if known := _known(region):
                known.policy = "eager"


def may_recompute() -> bool:
    """False if this thread recomputes no region."""
    return port.graph_task_id() != -1 or port.saved_tensor_hooks(True) is not None


def _may_be_checkpointed() -> bool:
    # A region runs under hooks on saved tensors. A reentrant one runs without gradients first, and then in a node.
    return may_recompute() or not torch.is_grad_enabled()


def _regions_here() -> tuple[list[object], object | None]:
    """The regions that this thread runs for the first time, inside the innermost one that it recomputes, and that
    one."""
    first_runs: list[object] = []
    for region, backward_pass in reversed(port.checkpointed_regions()):
        if backward_pass is not None:
            return first_runs, region
        first_runs.append(region)
    return first_runs, None


def _known(region: object) -> FirstRun | None:
    found = _first_runs.get(id(region))
    return found[1] if found and found[0]() is region else None


def _remember(region: object, run: FirstRun) -> None:
    if _known(region) is not None:
        return
    key = id(region)
    with _lock:
        _first_runs[key] = (weakref.ref(region, lambda dead: _forget(key, dead)), run)


def _forget(key: int, dead: weakref.ref[Any]) -> None:
    with _lock:
        if key in _first_runs and _first_runs[key][0] is dead:
            del _first_runs[key]
    if not _first_runs:
        for then in _on_change:
            then()
