"""Hooks around the steps of optimizers, of all frameworks that the program imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from amanda.driver import registry

Hook = Callable[[Any], object]


class Handle(NamedTuple):
    """A hook that was registered."""

    remove: Callable[[], None]


def register_optimizer_step_pre_hook(hook: Hook) -> Handle:
    """Calls `hook(optimizer)` before each step; of a function that steps, when it is traced. As torch.optim's of that
    name."""
    return Handle(registry.listen_to_optimizers(hook, _nothing))


def register_optimizer_step_post_hook(hook: Hook) -> Handle:
    """Calls `hook(optimizer)` after each step; of a function that steps, when it is over. As torch.optim's of that name."""
    return Handle(registry.listen_to_optimizers(_nothing, hook))


def post_hook_of(optimizer: Any) -> Callable[[Hook], Handle]:
    """The same for one optimizer, of a framework that has no such hooks itself."""

    def register(hook: Hook) -> Handle:
        return register_optimizer_step_post_hook(lambda other: hook(other) if other is optimizer else None)

    return register


def _nothing(optimizer: object) -> None:
    pass
