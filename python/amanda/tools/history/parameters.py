"""Parameters: norms of weights and updates, and which gradient belongs to which parameter."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Arrays, Place, Skips
from amanda.tools.gradients import Row

from .parameter_histograms import Counted, Histogram, counted, histograms_of
from .series import Point, norm_of, of_parameter, scalar

if TYPE_CHECKING:
    from amanda.toolkit.operators import VariableValue

Named = Iterable[tuple[str, Any]]


class Watched:
    """The parameters of modules and optimizers, each once, under a name of its own: where another one has its name
    already, as in a second model of the same class, a number is added, "0.weight #2"."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Named]] = []
        self._named: dict[str, Any] = {}  # in this step
        self._others: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # that are not watched
        self._variables: dict[object, str] = {}  # the same of TensorFlow's, by key

    def add(self, model: Any) -> None:
        """Adds a module or an optimizer. Raises TypeError: it is neither."""
        self._sources.append(parameters_of(model))

    def named(self) -> dict[str, Any]:
        """Their parameters now, without lazy parameters that have no values yet."""
        named: dict[str, Any] = {}
        known: set[object] = set()
        for source in self._sources:
            for name, parameter in source():
                identity = getattr(parameter, "key", id(parameter))  # of TensorFlow, variables have keys
                if identity not in known and not _is_lazy(parameter):
                    known.add(identity)
                    named[_free(name, named)] = parameter
        self._named = named
        return named

    def name_of(self, parameter: Any) -> str:
        """The name of a parameter; one that is not watched is named after its model. "" if it has no name."""
        for named in (self._named, self.named()):
            for name, other in named.items():
                if other is parameter:
                    return name
        from amanda.toolkit.torch import parameter_name

        plain = parameter_name(parameter)
        if not plain:
            return ""
        others = {name for name, other in self._others.items() if other is not parameter}
        name = _free(plain, self._named.keys() | others)
        self._others[name] = parameter
        return name

    def name_of_variable(self, variable: VariableValue) -> str:
        """The same for a variable of TensorFlow, which has a name always."""
        for name, other in self._named.items():
            if getattr(other, "key", None) == variable.key:
                return name
        if variable.key not in self._variables:
            self._variables[variable.key] = _free(variable.name, {*self._named, *self._variables.values()})
        return self._variables[variable.key]

    def drop(self) -> None:
        """Keeps no parameter alive after a step."""
        self._named = {}


def _free(name: str, taken: Container[str]) -> str:
    return next(
        each for each in itertools.chain([name], (f"{name} #{i}" for i in itertools.count(2))) if each not in taken
    )


class Updates:
    """Copies parameters at the beginning of a step, and compares them at its end."""

    def __init__(self, watched: Watched, skips: Skips, has_histograms: bool = False) -> None:
        self._watched, self._skips, self._has_histograms = watched, skips, has_histograms
        self._counts: dict[str, Counted] = {}
        self._before: dict[str, tuple[Any, Any]] = {}  # by name: the parameter, and its copy

    def begin(self) -> None:
        self._before.clear()
        self._counts.clear()
        self.copy_new()

    def copy_new(self) -> None:
        """Copies the parameters that were not watched when the step began."""
        for name, parameter in self._watched.named().items():
            if name in self._before:
                continue
            value = _value(parameter)
            if value is None:
                continue
            copied = self._skips.read(value, lambda array, arrays: arrays.copy(arrays.detached(array)))
            if copied is not None:
                self._before[name] = parameter, copied

    def drop(self) -> None:
        self._before.clear()
        self._counts.clear()
        self._watched.drop()

    def end(self) -> Iterator[Point]:
        """Norms are Euclidean, accumulated in float64; that of the weight is the one before the step."""
        for name, (parameter, before) in self._before.items():
            value = _value(parameter)
            norms = None if value is None else self._skips.read(value, functools.partial(self._compare, name, before))
            if norms is None:
                continue
            weight, update = norms
            yield of_parameter(name, "norm"), weight
            yield of_parameter(name, "update_norm"), update
            if weight:
                yield of_parameter(name, "update_ratio"), update / weight
        self._before.clear()

    def histograms(self) -> list[Histogram]:
        """Those of the updates that `end` has compared."""
        return histograms_of(self._counts, "updates")

    def _compare(self, name: str, before: Any, array: Any, arrays: Arrays) -> tuple[float, float]:
        update = arrays.detached(array) - before
        if self._has_histograms:
            self._counts[name] = counted(update, arrays)
        return arrays.norm(before), arrays.norm(update)


class Gradient(NamedTuple):
    """The gradient of one parameter, in one step."""

    parameter: str
    place: Place  # of an operator that reads the parameter
    norm: float  # the mean over the step's backward passes
    elements: int
    dimensions: int

    def unscaled(self, loss_scale: float | None) -> Gradient:
        """The gradient as if the loss had not been multiplied. `loss_scale` is None if it was not."""
        return self if loss_scale is None else self._replace(norm=self.norm / loss_scale)


def norms_of(gradients: Sequence[Gradient], name: str) -> Iterator[Point]:
    """The norm of each parameter's gradient, and that of all gradients together."""
    for each in gradients:
        yield of_parameter(each.parameter, name), each.norm
    if gradients:
        yield scalar(name), math.hypot(*(each.norm for each in gradients))


class ParameterGradients:
    """The parameters of AccumulateGrad nodes."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._known: dict[int, tuple[str, int, int]] = {}  # by backward operator: name, elements, dimensions
        self._variables: dict[str, weakref.ref[Any]] = {}

    def analyze(self, context: OpContext) -> None:
        """An analysis routine of autograd's nodes."""
        if context.backward_op.__name__ != "AccumulateGrad":
            return
        from amanda.toolkit.torch import running_leaf

        variable = running_leaf()
        if variable is None:
            return
        name = self._watched.name_of(variable)
        if name:
            self._known[context.backward_op_id] = name, variable.numel(), variable.dim()
            self._variables[name] = weakref.ref(variable)

    def variables(self) -> Iterator[tuple[str, Any]]:
        """The parameters that had gradients, with their names."""
        for name, known in self._variables.items():
            variable = known()
            if variable is not None:
                yield name, variable

    def of(self, rows_by_id: Sequence[Row]) -> list[Gradient]:
        """The gradients, in the order in which the backward pass reached them."""
        found: dict[str, list[Any]] = collections.defaultdict(list)
        for row in rows_by_id:
            if row.side == "grad_output" and row.backward_op_id in self._known:
                norm = norm_of(row)
                if norm is not None:
                    found[self._known[row.backward_op_id][0]].append((row, norm))
        gradients = []
        for name, rows in found.items():
            row, _ = rows[0]
            calls = [each.calls - each.undefined - each.skipped for each, _ in rows]
            norm = sum(norm * count for (_, norm), count in zip(rows, calls, strict=True)) / sum(calls)
            _, elements, dimensions = self._known[row.backward_op_id]
            gradients.append(Gradient(name, row.place, norm, elements, dimensions))
        return gradients


def _is_lazy(parameter: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.parameter.is_lazy(parameter)


def _value(parameter: Any) -> Any:
    """The array of a parameter; of a variable of TensorFlow, its value now, None if its session is gone."""
    return parameter.value() if hasattr(parameter, "key") else parameter


def parameters_of(model: Any) -> Callable[[], Named]:
    """A function that returns the parameters that a module or an optimizer has, with their names.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(model, "named_parameters"):
        return lambda: [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if hasattr(model, "param_groups"):
        return lambda: list(_of_optimizer(model))
    if "amanda.drivers.tensorflow.port" in sys.modules:
        from amanda.toolkit.tensorflow import trained_by

        if trained_by(model) is not None:
            return lambda: [(each.name, each) for each in trained_by(model) or ()]
    raise TypeError(f"[history] expected a module or an optimizer, got {model!r}")


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    from amanda.toolkit.torch import parameter_name

    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(every):
        yield parameter_name(parameter) or f"parameter {number}", parameter
