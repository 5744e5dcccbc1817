"""The calls that an operator of a compiled graph makes, on tensors without memory.

Tools see the outermost operators of such a graph alone. `InnerCall.calls_inside` runs one again on fake tensors of the
same device, which decides what is called: a fused attention, or its products. `InnerCall.run` runs such a call on the meta
device, where tools can look at it: no tool sees fake tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import fakes


class UnknownOperandError(Exception):
    """A size is known only when the program runs, or an operand is no tensor that can be stood for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without its values."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def made(self, device: str | None, is_leaf: bool) -> torch.Tensor:
        made = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=device or self.device)
        made.requires_grad_(self.requires_grad)
        return made if is_leaf else made.clone()


def shapes_of(value: Any, recorded: bool, hints: bool = False) -> Any:
    """The operand, with shapes instead of tensors. It can be hashed, except for what is no tensor and no number.

    Arguments:
        recorded: False if autograd does not record the operator.
        hints: with sizes of the inputs with which the program was compiled, where they may change.

    Raises:
        UnknownOperandError: see there.
    """
    if isinstance(value, torch.Tensor):
        if not fakes.is_plain(value):
            raise UnknownOperandError
        sizes, strides = shapes_of(tuple(value.shape), False, hints), shapes_of(value.stride(), False, hints)
        return Shape(sizes, strides, value.dtype, value.device, recorded and value.requires_grad)
    if isinstance(value, torch.SymInt):
        number = value.node.maybe_as_int()
        number = value.node.hint if number is None and hints else number
        if number is None:
            raise UnknownOperandError
        return int(number)
    if isinstance(value, torch.SymFloat | torch.SymBool):
        raise UnknownOperandError
    return tuple(shapes_of(member, recorded, hints) for member in value) if isinstance(value, tuple | list) else value


def with_gradients(value: Any, gradients: Any) -> Any:
    """The operand, after `shapes_of`, of an operator that has computed these gradients: what has one requires it."""
    if isinstance(value, tuple):
        members = gradients if isinstance(gradients, tuple | list) else (None,) * len(value)
        return tuple(map(with_gradients, value, members))
    if not isinstance(value, Shape):
        return value
    return dataclasses.replace(value, requires_grad=gradients is not None)


def as_shown(value: Any, shown: Any) -> Any:
    """The operand of a run, after `shapes_of`. Where it has the sizes with which it was `shown` to an analysis, it is that
    one: compilers may choose other strides, and in compiled code no tensor requires a gradient."""
    if isinstance(value, tuple) and isinstance(shown, tuple) and len(value) == len(shown):
        return tuple(map(as_shown, value, shown))
    if not (isinstance(value, Shape) and isinstance(shown, Shape)):
        return value
    if value.sizes == shown.sizes:
        return shown
    return dataclasses.replace(value, requires_grad=shown.requires_grad)


@dataclasses.dataclass(frozen=True, slots=True)
class InnerCall:
    """A call: its operator, and its operands by position and by name, as by `shapes_of`."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As "aten::addmm"."""
        return str(self.op._schema.name)

    @property
    def depends_on_data(self) -> bool:
        """True if it has no result, or none whose sizes are known, without values."""
        return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(self.op.tags))

    def run(self) -> Any:
        """Runs it on the meta device, on new tensors."""
        args, kwargs = self._made("meta")
        return self.op(*args, **kwargs)

    def calls_inside(self) -> list[InnerCall]:
        """The calls that autograd and devices know, of which a composite operator consists. The operator itself if it does
        not run on fake tensors."""
        recorder = _Recorder()
        try:
            with port.FakeTensorMode():
                args, kwargs = self._made(None)
                with recorder:
                    self.op(*args, **kwargs)
        except Exception:  # an operator may raise what it likes
            return [self]
        return recorder.found

    def _made(self, device: str | None) -> Any:
        is_leaf = not any(argument.alias_info is not None for argument in self.op._schema.arguments)
        return _made((self.args, dict(self.kwargs)), device, is_leaf)


def call_of(name: str, overload: str, operands: Sequence[Any]) -> InnerCall:
    """The call of an operator, with operands by schema position."""
    namespace, _, short = name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
    given = list(zip(op._schema.arguments, operands, strict=True))
    args = tuple(value for argument, value in given if not argument.kwarg_only)
    return InnerCall(op, args, {argument.name: value for argument, value in given if argument.kwarg_only})


def differentiate(result: Any) -> str:
    """Runs the backward pass of a result. Returns the name of its autograd node if PyTorch can't run it without values;
    else ""."""
    results = [each for each in port.tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    if results:
        try:
            torch.autograd.backward(results, [torch.empty_like(each) for each in results])
        except (RuntimeError, NotImplementedError):
            return str(results[0].grad_fn.name())
    return ""


class _Recorder(port.TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.found: list[InnerCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":
            named = {name: shapes_of(value, True) for name, value in (kwargs or {}).items()}
            self.found.append(InnerCall(func, shapes_of(tuple(args), True), named))
        return func(*args, **(kwargs or {}))


def _made(value: Any, device: str | None, is_leaf: bool) -> Any:
    if isinstance(value, Shape):
        return value.made(device, is_leaf)
    if isinstance(value, dict):
        return {name: _made(member, device, is_leaf) for name, member in value.items()}
    if isinstance(value, torch.device) and device is not None:
        return torch.device(device)
    return [_made(member, device, is_leaf) for member in value] if isinstance(value, tuple) else value
