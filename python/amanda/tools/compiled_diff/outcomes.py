"""The outcome of a graph for some inputs: its results, what it writes to, and the gradients of its inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .copies import copies

_SEED = 2026


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Values by name, such as "output 0", "input 1 after it" and "gradient of input 1"."""

    forward: dict[str, Any]
    backward: dict[str, Any]
    is_random: bool  # it has drawn random numbers

    @property
    def is_finite(self) -> bool:
        values = [value for value in (*self.forward.values(), *self.backward.values()) if value is not None]
        return all(bool(value.isfinite().all()) for value in values)


def outcome(
    run: Callable[..., Any], inputs: Sequence[Any], *, names: Sequence[str] = (), backward: bool = True
) -> Outcome:
    """Runs it on copies of the inputs. The random state is afterwards what it was before.

    The gradients are those for random numbers in the place of the gradients of its results, and always for the same ones.
    `names`: of the inputs.
    """
    with forked():
        state = _random_states()
        given = copies(inputs)
        results = list(_tensors(run(*given)))
        called = [names[i] if i < len(names) else f"input {i}" for i in range(len(given))]
        forward = {f"output {i}": result.detach() for i, result in enumerate(results)}
        for name, value, before in zip(called, given, inputs, strict=True):
            if isinstance(value, torch.Tensor) and not torch.equal(value, before):  # it may change no version
                forward[f"{name} after it"] = value.detach()
        is_random = not all(map(torch.equal, state, _random_states()))
        gradients = _gradients(results, given, called) if backward else {}
    return Outcome(forward, gradients, is_random)


def forked() -> contextlib.AbstractContextManager[None]:
    """A context at whose end the random state is what it was before."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    found: contextlib.AbstractContextManager[None] = torch.random.fork_rng(devices)
    return found


def _random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def _gradients(results: Sequence[Any], given: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    ends = [result for result in results if result.requires_grad and result.grad_fn is not None]
    leaves = {
        name: value
        for name, value in zip(names, given, strict=True)
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }
    if not ends or not leaves:
        return {}
    cotangents = [_cotangent(result, i) for i, result in enumerate(ends)]
    found = torch.autograd.grad(ends, list(leaves.values()), cotangents, allow_unused=True)
    return {f"gradient of {name}": value for name, value in zip(leaves, found, strict=True)}


def _cotangent(result: torch.Tensor, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED + number)
    # In one dtype: the numbers of another one would be others.
    drawn = torch.randn(
        result.shape, generator=generator, dtype=torch.complex64 if result.is_complex() else torch.float32
    )
    return drawn.to(result.device, result.dtype)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _tensors(member)
