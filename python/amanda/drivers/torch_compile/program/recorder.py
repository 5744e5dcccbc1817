"""Runs a node of Dynamo's graph on fake tensors, and notes the operators that it calls."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from amanda import _torch
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import fakes

# Operators that Dynamo adds for sizes that it does not know: no operators of the program.
_COMPILERS_OWN = ("sym_", "_assert_scalar", "_assert_tensor_metadata")

Frames = tuple[tuple[CodeType, int], ...]


@dataclasses.dataclass(eq=False, slots=True)
class Seen:
    """An operator that was called: its operands are as they were before it."""

    op: Any
    args: tuple[Any, ...]  # as they were passed
    inputs: tuple[Any, ...]  # as `args`; what the operator writes to as it was before
    frames: Frames
    in_transform: bool  # of torch.func
    outputs: tuple[Any, ...] = ()
    is_view: bool = False


def run(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seen: list[Seen]) -> Any:
    """Calls it, and adds the operators to `seen`, in order: those that no other operator calls."""

    def see(
        namespace: str, name: str, overload: str, inputs: tuple[Any, ...]
    ) -> Callable[[tuple[Any, ...], bool], None] | None:
        if namespace == "aten" and name.startswith(_COMPILERS_OWN):
            return None
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        one = Seen(op, inputs, _before(op, inputs), _frames(sys._getframe(1)), port.functorch_level() is not None)
        seen.append(one)

        def after(outputs: tuple[Any, ...], is_view: bool) -> None:
            one.outputs, one.is_view = _held(one, outputs), is_view

        return after

    value = _torch.record_calls(see, function, tuple(args), dict(kwargs))
    for one in seen:
        one.outputs = tuple(output() if isinstance(output, _Weak) else output for output in one.outputs)
    return value


class _Weak:
    """A result that must not be held now; later the same tensor, if it is alive, or else one like it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._like = weakref.ref(tensor), fakes.fresh(tensor)

    def __call__(self) -> torch.Tensor:
        tensor = self._tensor()
        return self._like if tensor is None else tensor


def _held(one: Seen, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """PyTorch makes another tensor of the result of torch.ones() and the like, if anyone else holds it."""
    if not any(argument.name == "pin_memory" for argument in one.op._schema.arguments):
        return outputs
    return tuple(_Weak(output) if isinstance(output, torch.Tensor) else output for output in outputs)


def _frames(frame: FrameType | None) -> Frames:
    found = []
    while frame is not None and frame.f_code is not run.__code__:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _before(op: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    written = [a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments]
    if not any(written):
        return inputs
    return tuple(fakes.fresh(value) if writes else value for value, writes in zip(inputs, written, strict=True))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for member in value:
            yield from tensors_in(member)


def is_fake(value: Any) -> bool:
    return isinstance(value, port.FakeTensor)
