"""Rule: the base of all rules. Step, Load and Pass: a step of an optimizer, a call of `load_state_dict`, and the begin of
an iteration over a `DataLoader`, as rules see them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from amanda import OpContext
from amanda.toolkit import Arrays, Place, own_work
from amanda.toolkit.frames import program_line

from .gradients import Used, sampled
from .report import Report

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Differentiated

T = TypeVar("T")


class Step:
    """A call of an optimizer's `step`."""

    def __init__(self, optimizer: Any, number: int, has_closure: bool, backward_passes: int) -> None:
        self.optimizer = optimizer
        self.number = number  #: of this optimizer's steps, from 0 on
        self.has_closure = has_closure  #: the forward and backward pass run inside the step
        self.backward_passes = backward_passes  #: calls of `backward()` since the last step of any optimizer
        self.passes_inside = 0  #: those of the closure, once the step ends; a library's closure may have none

    @functools.cached_property
    def parameters(self) -> list[Any]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    @functools.cached_property
    def used(self) -> list[Used]:
        """The gradients of two parameters, after the step."""
        return sampled(self.parameters)

    @functools.cached_property
    def place(self) -> Place:
        """ "SGD.step", and the line that calls it. To be asked for before the step ends."""
        return Place(None, f"{type(self.optimizer).__name__}.step", "", program_line(sys._getframe(1)))

    @functools.cached_property
    def models(self) -> list[Any]:
        """The outermost modules that have some of its parameters. Looks at all objects of Python: to be asked for once."""
        from amanda.toolkit.torch import outermost_modules

        own = set(map(id, self.parameters))
        return [one for one in outermost_modules() if any(id(each) in own for each in one.parameters())]


class Load(NamedTuple):
    """A call of `load_state_dict` that has returned."""

    module: Any
    state: Mapping[str, Any]
    unexpected: frozenset[str]  #: the names in it that the module does not have
    place: Place
    assigns: bool = False  #: with ``assign=True``: the module has the state's tensors since


class Pass(NamedTuple):
    """A `DataLoader` whose iteration begins."""

    loader: Any
    iterator: Any
    place: Place
    by_program: bool = True  #: not by a library that the program calls


class Rule:
    """Base of rules: a class in a file of `rules/`. Its docstring is its documentation.

    `look` is called once for each operator that `ops` names, as an analysis routine of a tool is. `before_step` and
    `after_step` are called at each step of any optimizer, `before_backward` at each call of `backward()`, `after_load`
    after each `load_state_dict`, and `at_end` when the scope is left. `on_pass` is called when the iteration of a
    `DataLoader` begins.
    """

    name: ClassVar[str]  #: "loss-broadcast"
    sentence: ClassVar[str]  #: what is wrong where it finds something
    fix: ClassVar[str]
    bad: ClassVar[str]  #: a program in which it finds one place
    good: ClassVar[str]  #: the same without the mistake
    library: ClassVar[str] = ""  #: the programs import it, too
    is_of_tensorflow: ClassVar[bool] = False  #: it knows no other framework; its programs import keras, and numpy as np
    processes: ClassVar[int] = 1  #: in which `bad` and `good` run, as ranks of one group
    is_advice: ClassVar[bool] = False  #: right programs may have reasons for what it finds
    ops: ClassVar[Sequence[str]] = ()  #: the operators that it looks at, of "aten" if they name no namespace
    backward_ops: ClassVar[Sequence[str]] = ()  #: operators; it looks at their backward operators
    group: ClassVar[str] = ""  #: rules of a group share a tool: no operator of one runs inside those of another
    with_outputs: ClassVar[bool] = False  #: it looks at operators after they have run
    only_first_steps: ClassVar[bool] = False  #: `before_step` and `after_step` are called in each optimizer's first one
    counts_backward: ClassVar[bool] = False  #: it uses `before_backward` or `Step.backward_passes`

    def __init__(self, report: Report) -> None:
        self._report = report
        self.begin()

    def begin(self) -> None:
        """Sets what it remembers to nothing; also called by `reset` of the tool."""

    def look(self, context: OpContext) -> None:
        """Looks at an operator, once."""

    def look_backward(self, context: OpContext) -> None:
        """Looks at a backward operator of those that `backward_ops` names, once."""

    @classmethod
    def knows(cls, framework: str) -> bool:
        """ "tensorflow": it looks at operators of this framework; "pytorch": also at steps of its optimizers."""
        if cls.is_of_tensorflow:
            return framework == "tensorflow"
        prefixes = {name.partition("::")[0] if "::" in name else "pytorch" for name in cls.ops}
        knows_steps = (
            cls.after_keras_step is not Rule.after_keras_step or cls.after_gradients is not Rule.after_gradients
        )
        return framework in (prefixes or {"pytorch"}) or (framework == "tensorflow" and knows_steps)

    def call(self, method: Callable[..., None], *arguments: Any) -> None:
        """Calls one of its methods that PyTorch or Keras calls: a rule is no reason to end a program."""
        try:
            method(*arguments)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Counts an exception that one of its methods has raised."""
        self._report.skips.add("failed", f"{self.name}: {type(error).__name__}: {error}")

    def before_backward(self) -> None:
        """Called when the program calls `backward()`."""

    def before_step(self, step: Step) -> None:
        """Called before an optimizer's step."""

    def after_step(self, step: Step) -> None:
        """Called after it."""

    def after_load(self, load: Load) -> None:
        """Called after `load_state_dict` of a module."""

    def on_pass(self, begun: Pass) -> None:
        """Called when the iteration of a `torch.utils.data.DataLoader` has begun."""

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        """Called after a step of an optimizer of Keras, which has made `steps` steps; of a function that steps several
        times, once when it is over."""

    def after_gradients(self, call: Differentiated, eager_uses: Mapping[object, Mapping[str, Place]]) -> None:
        """Called when a program of TensorFlow has asked for gradients; in a graph, when one of them runs first.
        `eager_uses`: the types of operators that get the values of variables in eager code, by the keys of these."""

    def at_end(self, ended_well: bool) -> None:
        """Called when the scope is left. `ended_well`: not by an exception."""

    def found(self, place: Place, evidence: str, *, count: int = 1, key: str = "") -> None:
        """Reports a place. Reports with the same place and key are one finding, whose counts add up."""
        self._report.add(self, place, evidence, count, key)

    def read(self, tensor: Any, function: Callable[[Any], T]) -> T | None:
        """Calls the function on a tensor with elements; one without elements is counted, and gives None."""
        return self._report.skips.read(tensor, lambda plain, _: function(plain))

    def read_quietly(self, tensor: Any, function: Callable[[Any], T]) -> T | None:
        """`read` in a hook of the program, where tools would see the operators."""
        with own_work():
            return self.read(tensor.detach(), function)

    def read_with(self, array: Any, function: Callable[[Any, Arrays], T]) -> T | None:
        """The same for arrays of any framework; the function also gets the `Arrays` to compute with."""
        return self._report.skips.read(array, function)

    def found_in(self, context: OpContext, evidence: str) -> None:
        """Reports each run of the operator that `look` was given."""
        context.insert_after_op(self.found, outputs=[], place=Place.of(context), evidence=evidence)


def operands(context: OpContext) -> dict[str, Any]:
    """The inputs of an operator, by the names of its schema."""
    return dict(zip(context.op.input_names, context.inputs, strict=False))
