"""Learning-rate schedulers of an optimizer: objects that name it. Imports torch."""

from __future__ import annotations

import gc
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


def schedulers_of(optimizer: Any) -> list[Any]:
    """Those that are alive. An optimizer without one is known by its groups, and costs nothing."""
    if not any("initial_lr" in group for group in optimizer.param_groups):
        return []
    holders = [one for one in gc.get_referrers(optimizer) if isinstance(one, (dict, LRScheduler))]
    found = [one for one in holders if isinstance(one, LRScheduler)]
    for holder in holders:
        if isinstance(holder, dict) and holder.get("optimizer") is optimizer and "_step_count" in holder:
            found += [one for one in gc.get_referrers(holder) if isinstance(one, LRScheduler)]
    return [one for one in {id(one): one for one in found}.values() if one.optimizer is optimizer]
