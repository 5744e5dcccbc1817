"""parameter-not-in-optimizer."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..gradients import few
from ..modes import running
from ..rule import Rule, Step

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Differentiated, VariableValue

LOOKED_AT = 6  # steps
LEAST = 2  # steps after which a layer is gone that no module has
SAMPLE = 64  # elements of each variable of TensorFlow


@dataclasses.dataclass
class _Trained:
    parameter: weakref.ref[Any]
    place: Place
    name: str
    version: int
    steps: int = 0  # at which it had this version
    is_written: bool = False

    def see(self) -> None:
        """A parameter may be gone at the end of the program."""
        parameter = self.parameter()
        if parameter is not None:
            self.steps += 1
            self.is_written = self.is_written or parameter._version != self.version


@dataclasses.dataclass
class _NotAsked:
    """A variable of TensorFlow that a tape has watched."""

    value: VariableValue
    place: Place | None  # that uses it; eager code in a loop is looked at for the first variable only
    first: Any  # elements


@dataclasses.dataclass
class _Made:
    """Parameters at one place of layers that the model does not have, as those that are made in `forward`."""

    name: str  # of the layer's class
    new: list[weakref.ref[Any]] = dataclasses.field(default_factory=list)  # since the last step
    # A loss may keep the graph of the step before.
    old: list[weakref.ref[Any]] = dataclasses.field(default_factory=list)
    steps: int = 0  # after which they were gone
    is_kept: bool = False

    def see(self) -> None:
        """An optimizer steps."""
        self.is_kept = self.is_kept or any(one() is not None for one in self.old)
        self.steps += bool(self.old)
        self.old, self.new = self.new, []


class ParameterNotInOptimizer(Rule):
    """A parameter gets gradients, no optimizer that steps has it, and nothing else writes to it, so that it keeps its first
    value. Examples are a layer that replaces another one after the optimizer was made, and layers in a list of Python,
    which `parameters()` does not have. So are layers that are made in `forward`: they are new in each step, with other
    random weights.

    Freeze what is not to be trained: `requires_grad_(False)` also saves the time for its gradient.

    In TensorFlow it looks at each `tf.Variable` that a layer of Keras has as an attribute, itself or in a list, tuple or
    dictionary. Keras tracks the variables of `add_weight` and `keras.Variable`, and no others: `trainable_variables` does
    not have it. It is found if a tape has watched it, its path leads to the loss, no gradient of it was asked for, and
    nothing has changed it. The program must have asked for all `trainable_variables` of the layer, or of a model that has
    it: a head that is trained alone is right. In eager code it also finds layers that are made in `call`: tapes of one
    model have watched new variables in three calls or more. `tf.Variable(..., trainable=False)` is for values that are not
    to be trained.
    """

    name = "parameter-not-in-optimizer"
    sentence = "no optimizer has a parameter that the loss depends on"
    fix = (
        "make the optimizer after the model is complete, make layers in __init__, keep them in nn.ModuleList, not in a "
        "list, or freeze the parameter: requires_grad_(False); in Keras, make variables by self.add_weight"
    )
    ops = (*ops.linear_like, *ops.convolution, *ops.transposed_convolution, "*norm*", "embedding*", "mul", "add", "prelu",
           "lstm", "gru", "rnn_*", "bilinear")  # fmt: skip
    bad = """
        model[0] = nn.Linear(4, 8)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """
    good = """
        model[0] = nn.Linear(4, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._used: dict[int, tuple[weakref.ref[Any], Place, str]] = {}  # parameters of operators, by id
        self._with_gradient: dict[int, _Trained] = {}
        self._in_optimizers: set[int] = set()
        self._made: dict[tuple[str, str], tuple[Place, _Made]] = {}  # by operator and line
        self._not_asked: dict[object, _NotAsked] = {}  # variables of TensorFlow
        self._asked: set[object] = set()
        # A new variable of each call in TensorFlow, by the first variable that the call asked for.
        self._made_in_calls: dict[object, list[tuple[Place | None, str]]] = {}

    def look(self, context: OpContext) -> None:
        for name, operand in zip(context.parameter_names, context.inputs, strict=False):
            if isinstance(name, str) and getattr(operand, "is_leaf", False) and operand.requires_grad:
                known = self._used.get(id(operand))
                if known is None or known[0]() is not operand:
                    self._used[id(operand)] = weakref.ref(operand), Place.of(context), name
                    if "." not in name:
                        self._look_at_owner(context, operand)

    def _look_at_owner(self, context: OpContext, parameter: Any) -> None:
        """A parameter that is named in its layer alone: the model that runs may not have the layer."""
        modules = running()
        if len(modules) < 2 or any(one is modules[0] for one in modules[-1].modules()):
            return
        if any(getattr(one, "grad_fn", None) is not None for one in context.inputs):  # of what is trained
            place = Place.of(context)
            made = self._made.setdefault((place.name, place.source), (place, _Made(type(modules[0]).__name__)))[1]
            made.new.append(weakref.ref(parameter))

    def before_step(self, step: Step) -> None:
        for _, made in self._made.values():
            made.see()
        if not step.has_closure:
            self._look_at_gradients(step)

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._look_at_gradients(step)

    def after_gradients(self, call: Differentiated, eager_uses: Mapping[object, Mapping[str, Place]]) -> None:
        from amanda.toolkit.tensorflow import differentiated_in, elements_of, paths_of, uses_of

        self._asked.update(one.value.key for one in call.variables)
        is_eager = not differentiated_in(call.targets[0])
        new = next((one for one in call.others if one.key not in self._asked | self._not_asked.keys()), None)
        if new is not None and call.variables:
            used = next(iter(eager_uses.get(new.key, {}).values()), None)
            self._made_in_calls.setdefault(call.variables[0].value.key, []).append((used, new.name))
        for one in call.others:
            if one.key in self._asked or one.key in self._not_asked:
                continue
            place = next(iter(eager_uses.get(one.key, {}).values()), None)
            if not is_eager:
                paths = paths_of(call.targets, one.key, has_tape=call.has_tape, is_watched=True)
                uses = uses_of(call.targets, one.key).operators if paths.leads and not paths.ends else {}
                found = next(iter(uses.items()), None)
                place = None if found is None else _place(*found)
            if place is not None or is_eager:
                self._not_asked[one.key] = _NotAsked(one, place, elements_of(one, SAMPLE))

    def _at_end_of_calls(self) -> None:
        """Layers of Keras that are made in `call`, where nothing is a graph."""
        for made in self._made_in_calls.values():
            place = next((place for place, _ in made if place is not None), None)
            if len(made) > LEAST and place is not None:
                what = f"a layer is made anew in each step, with other weights, at last {made[-1][1]}"
                self.found(place, what, count=len(made))
        self._made_in_calls.clear()

    def _at_end_of_tensorflow(self) -> None:
        from amanda.toolkit.tensorflow import elements_of, untracked

        waiting = {key: one for key, one in self._not_asked.items() if key not in self._asked}
        by_layer: dict[str, dict[str, Place | None]] = {}
        for found in untracked() if waiting else ():
            one = waiting.get(found.key)
            now = None if one is None else elements_of(one.value, SAMPLE)
            is_kept = one is not None and now is not None and one.first is not None and (now == one.first).all()
            if one is not None and is_kept and any(keys and keys <= self._asked for keys in found.trained):
                by_layer.setdefault(found.layer, {})[f"{found.layer}.{found.attribute}"] = one.place
        for kept in by_layer.values():
            names, place = list(kept), next(filter(None, kept.values()), None)
            if place is None:
                continue
            are = "is a tf.Variable that Keras does" if len(names) == 1 else "are tf.Variables that Keras does"
            self.found(
                place, f"{few(names)} {are} not track: no gradient was asked for, and the first values were kept"
            )

    def _look_at_gradients(self, step: Step) -> None:
        for known in self._with_gradient.values():
            known.see()
        if step.number >= LOOKED_AT:
            return
        self._in_optimizers.update(map(id, step.parameters))
        for key, (reference, place, name) in self._used.items():
            parameter = reference()
            if parameter is None or key in self._in_optimizers or parameter.grad is None:
                continue
            trained = self._with_gradient.get(key)
            if trained is None or trained.parameter() is not parameter:
                self._with_gradient[key] = _Trained(reference, place, name, parameter._version)

    def at_end(self, ended_well: bool) -> None:
        self._at_end_of_calls()
        if self._not_asked:
            self._at_end_of_tensorflow()
        found: dict[tuple[str, str], list[_Trained]] = {}  # by operator and line: one for all layers of a kind
        for key, one in self._with_gradient.items():
            one.see()
            if one.steps and not one.is_written and key not in self._in_optimizers:
                found.setdefault((one.place.name, one.place.source), []).append(one)
        for line, (place, made) in self._made.items():
            if made.steps >= LEAST and not made.is_kept:
                found.pop(line, None)
                self.found(place, f"{made.name} is made anew in each step, with other weights", count=made.steps)
        for trained in found.values():
            names = few([one.name for one in trained])
            self.found(trained[0].place, f"{names} got gradients, and kept their first values")
        self._with_gradient.clear()
        self._made.clear()
        self._not_asked.clear()


def _place(operator: str, place: Any) -> Place:
    return Place(place.id, f"tensorflow::{operator}", place.module_path, place.source)
