"""Patch: puts captured values, or functions of them, in the place of results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from amanda import Error, OpContext, Tool
from amanda.toolkit import frameworks
from amanda.toolkit.arrays import REASONS, arrays_of, known
from amanda.toolkit.operators import access_to
from amanda.toolkit.schemas import Sides

from .attention_weights import WEIGHTS
from .capture import warn_of_unmatched
from .names import Naming, Numbering, Pattern, ResultName, ops_of

Transform: TypeAlias = Callable[[Any, Any], Any]


class Patch(Tool):
    """Replaces results of operators by other values::

        with amanda.apply(Patch(clean, "transformer.h.3:add[1]", positions=(slice(None), -1))):  # activation patching
            model(corrupted)
        with amanda.apply(Patch({"transformer.h.3:add[1]": direction}, transform=torch.add)):  # steering
            model(x)
        with amanda.apply(Patch({"transformer.h.*.attn:softmax": 0.0}, positions=(slice(None), 2))):  # ablation
            model(x)

    Gradients are those of a forward hook with ``y = y.clone(); y[positions] = transform(y[positions], value); return y``:
    zero where a value has taken the place of the result, and passed on elsewhere. A value that requires a gradient gets
    one. The result of an in-place operator is changed in place, for all its users. A result that is a view is replaced
    by a tensor of its own, as by a hook. A compiled function runs eagerly if it has such a result to replace.

    In graphs of other frameworks results are arrays of numpy, whose functions nothing differentiates. A value that is no
    function, without `transform`, has the gradient as above; a backward pass through the others is an error.

    Arguments:
        values: by name, as for `Capture`: the values that replace the results. A value is a tensor or array, a number, or a
            function that is called with the result (with ``positions=``, that part of it). A tensor is converted to the
            result's dtype and device. A `Capture` is such a mapping: its latest runs.
        where: the names to take from `values`. By default, all.
        transform: called as ``transform(result, value)``; its result is the new value. By default, the value itself is
            used. Leave it out with a value that is a function.
        positions: an index into the result; only these elements are replaced. A value with the shape of the whole
            result is indexed, too. By default, all elements are replaced.
        runs: the executions of each operator that are changed, counted from 0 on in each scope. By default, all. A
            recomputation by a checkpoint is an execution.
        naming: other names, as for `Capture`.

    Raises:
        KeyError: `where` names a value that is not there.
        TypeError: `values` is not a mapping, or a value, `transform` or `runs` is of a wrong type; or, when it is to be
            patched: a result is not one tensor.
        ValueError: there is nothing to patch; the path of a module stands for several results, or a value does not have the
            shape of the result, when that runs.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str | Iterable[str] | None = None,
        transform: Transform | None = None,
        positions: Any = None,
        *,
        runs: int | Iterable[int] | None = None,
        naming: Naming | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(values, Mapping):
            raise TypeError(
                f"[patch] values are a mapping of names, as {{'h.0:add': 0.0}} or a Capture; got {values!r}"
            )
        if transform is not None and not callable(transform):
            raise TypeError(f"[patch] transform= is called with a result and a value, got {transform!r}")
        if where is None:  # attention weights are no results
            where = [name for name in values if not (isinstance(name, str) and WEIGHTS in name.rpartition(":")[2])]
        names = [where] if isinstance(where, str) else list(where)
        if not names:
            raise ValueError("[patch] nothing to patch: there are no names")
        self._values = [(Pattern(name, naming, "patch"), _checked(name, values[name], transform)) for name in names]
        self._transform, self._positions = transform, positions
        self._runs = None if runs is None else frozenset([runs] if isinstance(runs, int) else runs)
        self._numbering = Numbering()
        self._first: dict[str, ResultName] = {}  # what a module's path stands for
        self._executions: dict[ResultName, itertools.count[int]] = {}
        self.add_inst_for_op(self._analyze, ops=ops_of([pattern for pattern, _ in self._values]))

    def on_enter(self) -> None:
        self._executions.clear()

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            warn_of_unmatched(self, [pattern for pattern, _ in self._values], self._numbering)

    def _analyze(self, context: OpContext) -> None:
        of_torch = frameworks.is_torch(context)
        name = self._numbering.name_of(context)
        for pattern, value in self._values:
            if not pattern.matches(name):
                continue
            first = self._first.setdefault(pattern.text, name)
            if pattern.is_one_module and first != name:
                raise ValueError(
                    f"[patch] {pattern.text!r} stands for several results, such as '{first}' and '{name}'; name one of them"
                )
            if frameworks.shows_after_run(context):
                raise frameworks.only_looks(context, "patch", "patch")
            if of_torch and context.is_symbolic and Sides.of(context).may_be_view:
                raise Error(
                    f"[patch] the result of '{name}' can't be replaced in a compiled function: it may be a view, which "
                    'shares memory with others; apply it with compiled="eager"'
                )
            context.insert_after_op(self._patched, differentiable=of_torch, allow_view=of_torch, name=name, value=value)
            if not of_torch and access_to(context.namespace, context.op.__name__).has_backward:
                context.insert_before_backward_op(self._cut, name=name, value=value)

    def _cut(self, gradient: Any, *others: Any, name: ResultName, value: Any) -> Any:
        """The gradient of a result in a graph: zero where a value has taken its place."""
        if gradient is None:
            return None
        if self._transform is not None or callable(value) or self._runs is not None:
            raise Error(
                f"[patch] the gradient of '{name}' is not known: a function in numpy has changed the result, or some runs "
                "only; patch it with values, in all runs"
            )
        left = gradient.copy()
        left[... if self._positions is None else self._positions] = 0
        return (left, *others) if others else left

    def _patched(self, *outputs: Any, name: ResultName, value: Any) -> Any:
        if self._runs is not None and next(self._executions.setdefault(name, itertools.count())) not in self._runs:
            return None
        if len(outputs) != 1 or arrays_of(outputs[0]) is None:
            raise TypeError(
                f"[patch] the result of '{name}' is {'a list' if len(outputs) == 1 else f'{len(outputs)} values'}, not one "
                "tensor; patch the results of the operators that take it"
            )
        result = outputs[0]
        index = ... if self._positions is None else self._positions
        part = result[index]
        new = self._new(part, result, value)
        if arrays_of(new) is not None:
            new = _matching(new, result)
            _check_shape(name, new, part)
        # Not `new` itself, also where it is the whole result: a value that is not recorded would pass gradients on.
        patched = known(result).copy(result)
        try:
            patched[index] = new
        except (NotImplementedError, RuntimeError) as error:
            raise _unfit(name, result) or error from None
        return patched

    def _new(self, part: Any, result: Any, value: Any) -> Any:
        if callable(value) and arrays_of(value) is None:
            return value(part)
        if arrays_of(value) is not None:
            value = _matching(value, result)
            if self._positions is not None and value.shape == result.shape:
                value = value[self._positions]
        return value if self._transform is None else self._transform(part, value)


def _matching(value: Any, result: Any) -> Any:
    """The value in the result's framework, dtype and device: it may be captured in another framework."""
    arrays = known(result)
    if arrays_of(value) is not arrays:
        value = arrays.xp.asarray(known(value).detached(value))
    return arrays.matching(value, result)


def _checked(name: str, value: Any, transform: object) -> Any:
    if callable(value) and arrays_of(value) is None:
        if transform is not None:
            raise TypeError(f"[patch] the value of {name!r} is a function; transform= works with tensors and numbers")
        return value
    if arrays_of(value) is None and not isinstance(value, int | float):
        raise TypeError(
            f"[patch] the value of {name!r} is a tensor, a number or a function, got {type(value).__name__}"
        )
    return value


def _unfit(name: ResultName, result: Any) -> Error | None:
    """The error for a result whose elements cannot be set; None if they can be set."""
    reason = known(result).why_unreadable(result)
    if reason is None:
        return None
    return Error(
        f"[patch] the result of '{name}' is {REASONS[reason]}, whose elements can't be replaced; patch a result that is a "
        "plain tensor, or give a value that is such a tensor itself"
    )


def _check_shape(name: ResultName, new: Any, part: Any) -> None:
    try:
        fits = np.broadcast_shapes(tuple(new.shape), tuple(part.shape)) == tuple(part.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"[patch] a value of shape {list(new.shape)} can't take the place of the result of '{name}', {list(part.shape)}"
        )
