"""Deferred results: tensors with a size and a dtype whose elements are computed only if somebody reads them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from amanda import Error
from amanda.toolkit.torch import (
    differentiates_forward,
    disabled_torch_function,
    functorch_level,
    make_wrapper,
    saved_tensor_hooks,
    tree_map_only,
)

if TYPE_CHECKING:
    from .match import Match

# ---- operands and results --------------------------------------------------------------------------------------------


class Modes(NamedTuple):
    """Modes of the program on which a result depends."""

    grad: bool
    device: str
    autocast: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, device: str) -> Modes:
        autocast, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return cls(torch.is_grad_enabled(), device, autocast, dtype)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        autocast = torch.autocast(self.device, self.dtype, enabled=self.autocast)
        with torch.set_grad_enabled(self.grad), autocast:
            yield


class Key(NamedTuple):
    """The facts on which the size and dtype of an operator's result depend."""

    modes: Modes
    operands: tuple[Any, ...]

    @classmethod
    def of(cls, inputs: Iterable[Any]) -> Key | None:
        """The key of these operands. None if they cannot be deferred."""
        tensors = _tensors(inputs)
        transformed = functorch_level() is not None or differentiates_forward()
        if transformed or not tensors or not all(map(_is_plain, tensors)):
            return None
        key = cls(Modes.now(tensors[0].device.type), tuple(map(_kind, _leaves(inputs))))
        try:
            hash(key)
        except TypeError:  # an operand of a custom operator
            return None
        return key


@dataclasses.dataclass(eq=False)
class Result:
    """The result of an operator for operands of one kind, when it ran as the program wrote it."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    pure: bool  # it returned a plain tensor, and wrote to no operand
    shares: set[int]  # positions of the inputs with which it shares memory
    rewrites: bool = False
    waiting: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)

    @classmethod
    def of(cls, result: torch.Tensor, inputs: tuple[Any, ...], wrote: bool) -> Result:
        pure = _is_plain(result) and not wrote
        own = storages_of([result]) if pure else set()
        shares = {position for position, value in enumerate(inputs) if own & storages_of([value])}
        strides = result.stride() if pure else ()
        return cls(result.shape, strides, result.dtype, result.device, result.requires_grad, pure, shares)

    def is_like(self, tensor: torch.Tensor) -> bool:
        return (self.shape, self.dtype, self.device) == (tensor.shape, tensor.dtype, tensor.device)

    def settle(self, rewrites: bool) -> bool:
        """Decides whether this execution is rewritten.

        A checkpoint must recompute what it ran: while a checkpointed region waits for that, the decision stays.
        """
        if not self.waiting:
            self.rewrites = rewrites
        hooks = saved_tensor_hooks(False)
        if hooks and hooks[1].__module__ == "torch.utils.checkpoint":
            self.waiting.add(hooks[1])  # it lives as long as the region's graph
        return self.rewrites


def storages_of(values: Iterable[Any]) -> set[int]:
    tensors = _tensors(values)
    read = [tensor.pending.value() for tensor in tensors if type(tensor) is Deferred and tensor.pending.is_computed]
    return {tensor.untyped_storage()._cdata for tensor in [*tensors, *read]}


def versions_of(values: Iterable[Any]) -> list[int]:
    return [tensor._version for tensor in _tensors(values) if not tensor.is_inference()]


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in _leaves(values) if isinstance(leaf, torch.Tensor)]


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield len(value)
            yield from value
        else:
            yield value


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    if kind is not Deferred and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)


def _kind(operand: Any) -> tuple[Any, ...]:
    if isinstance(operand, torch.Tensor):
        return operand.shape, operand.stride(), operand.dtype, operand.device, operand.requires_grad
    return type(operand), operand  # 1, 1.0 and True are equal


# ---- deferred results ------------------------------------------------------------------------------------------------


class Pending:
    """An operator of a match that was called and has not run: what computes a `Deferred`.

    Arguments:
        number: which one of the match it is.
        parts: the pending operators whose results are among `inputs`, and theirs, by number.
    """

    def __init__(
        self,
        match: Match,
        number: int,
        inputs: tuple[Any, ...],
        modes: Modes,
        result: Result,
        parts: dict[int, Pending],
    ) -> None:
        self.match, self.number, self.inputs, self.parts = match, number, inputs, parts
        self.op = match.sites[number].op
        self._modes, self._result = modes, result
        self._sources = [
            tensor for tensor in _tensors(inputs) if modes.grad and tensor.requires_grad and not self._is_part(tensor)
        ]
        self._versions = versions_of(inputs)
        self._aliases: list[torch.Tensor] = []
        self._value: torch.Tensor | None = None

    @property
    def is_computed(self) -> bool:
        return self._value is not None

    def deferred(self) -> Deferred:
        if self._result.requires_grad:
            sources = itertools.chain(*(each._sources for each in self._all()))
            made: Deferred = _Defer.apply(self, *sources)
            return made
        return self.placeholder()

    def placeholder(self) -> Deferred:
        like = self._result
        made: Deferred = make_wrapper(Deferred, like.shape, strides=like.strides, dtype=like.dtype, device=like.device)
        made.pending = self
        return made

    def check(self) -> None:
        """Raises an error if an input is no longer what it was when the operator was called."""
        if versions_of(self.inputs) != self._versions:
            raise Error(
                f"[rewriting] an input of {self.op.name} was written to after the operator was called and before its "
                "result was needed; copy the input first"
            )

    def read(self, reader: str) -> torch.Tensor:
        """The value, for something outside the match. If it needs to be computed, that is not rewritten any more."""
        if self._value is None:
            self.match.stop(f"the result of {self.op.name} is read by {reader}")
        return self.value()

    def value(self) -> torch.Tensor:
        """The result of the operator. Its gradient ends at `_aliases`."""
        if self._value is None:
            self.check()
            with self._modes.restored():
                result = self.op(*tree_map_only(torch.Tensor, self._input, list(self.inputs)))
            if not self._result.is_like(result):
                raise Error(f"[rewriting] the size of {self.op.name}'s result depends on values")
            self._value = result
        return self._value

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients of the sources, those of the parts included."""
        value, again = self.value(), torch.is_grad_enabled()
        aliases = [alias for each in self._all() for alias in each._aliases]
        options = {"retain_graph": True, "create_graph": again, "allow_unused": True}
        return list(torch.autograd.grad(value, aliases, gradient, **options))

    def _all(self) -> list[Pending]:
        return [*self.parts.values(), self]

    def _is_part(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is Deferred and tensor.pending in self.parts.values()

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_part(tensor):
            return tensor.pending.value()
        if not any(tensor is source for source in self._sources):
            return tensor
        self._aliases.append(tensor.view_as(tensor))  # one source may be computed from another: a gradient ends here
        return self._aliases[-1]


class Deferred(torch.Tensor):  # type: ignore[misc]
    """The result of a pending operator. Whatever reads its elements has them computed."""

    pending: Pending

    __torch_function__ = disabled_torch_function  # call paths stay the same

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def read(tensor: Deferred) -> torch.Tensor:
            with torch.overrides.enable_reentrant_dispatch():
                return tensor.pending.read(func.name()).detach()

        args, kwargs = tree_map_only(Deferred, read, (args, kwargs or {}))
        return func(*args, **kwargs)


def _of_plain(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)
    return functools.wraps(method)(lambda self, *args, **kwargs: method(self.view_as(self), *args, **kwargs))


for _name in ("numpy", "tolist", "data_ptr", "__repr__", "__reduce_ex__", "__deepcopy__", "__dlpack__"):
    setattr(Deferred, _name, _of_plain(_name))  # these read the elements, and never reach the dispatcher


class _Defer(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, pending: Pending, *sources: torch.Tensor) -> Deferred:
        ctx.pending = pending
        return pending.placeholder()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, *ctx.pending.gradients(*gradients))


def computed(value: Any) -> Any:
    """The same value, which is not pending any more."""
    if type(value) is Deferred:
        value.pending.value()
    return value
