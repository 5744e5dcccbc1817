"""Computed: which operators computed the inputs of an operator of TensorFlow. In PyTorch, autograd knows: see graph.py."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from amanda import OpContext, Tool
from amanda.toolkit import frameworks
from amanda.toolkit.operators import WEIGHTED, origins_of, vocabulary_of

KEY = "check.inputs"
_BOUNDED = ("Minimum", "Maximum", "ClipByValue")  # of them, the numbers are kept


@dataclasses.dataclass(eq=False)
class Computed:
    """A result of an operator, or a variable."""

    kind: str  #: a word that stands for the operator, else its name; "variable"
    module_path: str = ""
    shape: tuple[int | None, ...] | None = None  #: None if the number of axes is not known
    dtype: str = ""
    input_shapes: tuple[tuple[int | None, ...] | None, ...] = ()
    inputs: tuple[Computed | None, ...] = ()  #: None for data, and if it is not known
    members: tuple[Computed | None, ...] = ()  #: of an input that is a list, as what `ConcatV2` gets
    numbers: tuple[float | None, ...] = ()  #: the inputs of a clip that are numbers
    axis: int | None = (
        None  #: the only one that is reversed, or of which a slice takes one index, and all of the others
    )
    index: int = 0  #: that it takes
    is_trained: bool = False  #: a variable is behind it, or a product with a weight
    used_by: set[str] = dataclasses.field(default_factory=set)  #: kinds of operators


class ComputedInputs(Tool):
    """Writes `KEY` into the context of each operator of TensorFlow: for each input a `Computed`, or None.

    In a graph it asks for the origins of symbols. In eager code it remembers the results of the operators that are
    analyzed, which is each one's first run: a result of a later run is not known.
    """

    def __init__(self) -> None:
        super().__init__("check: computed inputs")
        self._of_operators: dict[int | None, Computed] = {}  # of graphs
        self._of_tensors: dict[int, tuple[weakref.ref[Any], Computed]] = {}  # of eager code
        self.add_inst_for_op(self._before, ops="tensorflow::*", optional=True)
        self.add_inst_for_op(self._after, False, True, ops="tensorflow::*", optional=True)

    def _before(self, context: OpContext) -> None:
        context[KEY] = tuple(map(self._behind, context.inputs))

    def _after(self, context: OpContext) -> None:
        outputs = [one for one in context.outputs if hasattr(one, "shape")]
        if not outputs:
            return
        kind, inputs = kind_of(context), tuple(context[KEY])
        given = [one for operand in context.inputs for one in _members(operand)]
        found = Computed(
            kind,
            context.module_path,
            shape_of(outputs[0]),
            outputs[0].dtype.name,
            tuple(map(shape_of, context.inputs)),
            inputs,
            tuple(map(self._behind, given)) if len(given) > len(inputs) else (),
            tuple(map(_number, context.inputs)) if kind in _BOUNDED else (),
            *_axis_and_index(context),
            kind in WEIGHTED or any(one.is_trained for one in map(self._behind, given) if one is not None),
        )
        for one in inputs:
            if one is not None:
                one.used_by.add(kind)
        if not frameworks.shows_after_run(context):
            self._of_operators[context.op_id] = found
            return
        for one in outputs:
            self._of_tensors[id(one)] = weakref.ref(one, functools.partial(self._forget, id(one))), found

    def _forget(self, key: int, _: object) -> None:
        self._of_tensors.pop(key, None)

    def _behind(self, operand: Any) -> Computed | None:
        if operand is None or isinstance(operand, list | tuple):
            return None
        origins = origins_of(operand)
        if origins is None:
            reference, found = self._of_tensors.get(id(operand), (None, None))
            return found if reference is not None and reference() is operand else None
        if len(origins) != 1:
            return None
        if origins[0].op_id is not None:
            return self._of_operators.get(origins[0].op_id)
        return Computed("variable", shape=shape_of(operand), is_trained=True) if origins[0].is_parameter else None


def kind_of(context: OpContext) -> str:
    """The word that stands for an operator; else its name."""
    vocabulary = vocabulary_of(context.namespace)
    words = vocabulary.words_for(context.op.name) if vocabulary is not None else ()
    return words[0] if words else context.op.__name__


def shape_of(value: Any) -> tuple[int | None, ...] | None:
    """Sizes that are not known are None; None if their number is not known, as of a nested tensor."""
    try:
        return tuple(value.shape)
    except (AttributeError, RuntimeError, ValueError):
        return None


def _axis_and_index(context: OpContext) -> tuple[int | None, int]:
    """See `Computed`."""
    if context.op.__name__ not in ("ReverseV2", "StridedSlice"):
        return None, 0
    from amanda.toolkit.tensorflow import numbers_of

    given = [numbers_of(one) for one in context.inputs[1:]]
    shape = shape_of(context.inputs[0])
    if shape is None or any(one is None for one in given):
        return None, 0
    if context.op.__name__ == "ReverseV2":
        (axes,) = given
        return (axes[0] % len(shape), 0) if axes is not None and len(axes) == 1 else (None, 0)
    begin, _, strides = (one or [] for one in given)
    bits = {name: int(context.attribute(name)) for name in ("begin_mask", "end_mask", "shrink_axis_mask")}
    others = int(context.attribute("ellipsis_mask")) | int(context.attribute("new_axis_mask"))
    taken = [at for at in range(len(begin)) if bits["shrink_axis_mask"] >> at & 1]
    whole = bits["begin_mask"] & bits["end_mask"]
    is_whole = all(whole >> at & 1 and strides[at] == 1 for at in range(len(begin)) if at not in taken)
    return (taken[0], begin[taken[0]]) if len(taken) == 1 and is_whole and not others else (None, 0)


def _members(operand: Any) -> Iterator[Any]:
    yield from operand if isinstance(operand, list | tuple) else (operand,)


def _number(operand: Any) -> float | None:
    from amanda.toolkit.tensorflow import number_of

    return number_of(operand)
