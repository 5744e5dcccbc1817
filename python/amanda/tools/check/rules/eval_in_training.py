"""eval-in-training."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import re
import sys
import weakref
from collections.abc import Container, Iterator, Sequence
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import PACKAGE, is_library, outwards, split_line
from amanda.toolkit.frameworks import is_tensorflow

from ..graph import inputs
from ..modes import called_at, running
from ..rule import Rule, Step, operands

_MEANT = re.compile(r"\btraining\b|\.(fit|train_on_batch)\(")
_PASSED_ON = re.compile(r"\btraining\s*=\s*training\b")
_DECIDED = re.compile(r"\btraining\s*=\s*(?!(training|True)\b)[^\s=]")
_LONGEST = 4  # lines of a call


class EvalInTraining(Rule):
    """An optimizer trains a model that is in evaluation mode: its dropout does nothing, its batch normalization learns no
    statistics. Models of `from_pretrained` begin in this mode.

    It looks at the model when `backward()` is called, and when the optimizer steps. It says nothing if only a part is in
    evaluation mode, as frozen batch normalization is. Nor if the optimizer trains nothing where the mode matters, as a head
    on a frozen model. Seen in two steps in a row.

    In TensorFlow it looks at batch normalization of Keras of which the scale gets a gradient, in loops with a
    `tf.GradientTape` and in the own `train_step` of a model. A model that is called without `training=True` takes the
    moving statistics. It says nothing if the line has the word `training`, as for fine-tuning. If the line only passes
    its own argument on, `training=training`, it says nothing if a call that leads there gives another value,
    `training=train_bn`. Dropout that is off has no operator.
    """

    name = "eval-in-training"
    sentence = "a model is trained in evaluation mode"
    fix = "call model.train() before the training loop, and after each evaluation; model(x, training=True) in Keras"
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "batch_norm", "tensorflow::Rsqrt")
    backward_ops = ("tensorflow::Mul",)
    counts_backward = True
    bad = """
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model.train()
            model[1].eval()  # frozen statistics
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            F.cross_entropy(model(x), labels)
    """

    def begin(self) -> None:
        self._models: dict[int, _Model] = {}  # by the outermost module's id
        self._lines: dict[int, str] = {}  # of calls of `backward()` while the model was in evaluation mode
        self._in_a_row: dict[int, int] = {}
        self._normalizations: set[str] = set()  # of TensorFlow, that were reported
        self._meant: set[str] = set()  # of which a call gives `training` a value of its own

    def look(self, context: OpContext) -> None:
        if is_tensorflow(context):
            if any(map(_DECIDED.search, _calls(context))):
                self._meant.add(context.module_path)
            return  # see `look_backward`
        given, modules = operands(context), running()
        has_mode = given.get("p", 1) and ("p" in given or given.get("running_mean") is not None)
        if has_mode and modules:
            model = self._models.get(id(modules[-1]))
            if model is None or model.module() is not modules[-1]:
                model = self._models[id(modules[-1])] = _Model(weakref.ref(modules[-1]))
            model.parts.append((weakref.ref(_with_parameters(modules)), Place.of(context)))

    def look_backward(self, context: OpContext) -> None:
        scaled = [one for one in inputs(context) if one is not None and one.kind == "Rsqrt"]
        added = scaled[0].inputs[0] if scaled else None
        if added is None or added.kind != "add" or added.shape is None or len(added.shape) != 1:
            return
        variance = added.inputs[0]
        is_moving, is_known = (
            variance is None or variance.kind == "variable",
            context.module_path in self._normalizations,
        )
        if is_moving and not is_known and not self._is_meant(context):
            self._normalizations.add(context.module_path)
            self.found(Place.of(context), "it takes the moving variance, and its scale gets a gradient")

    def _is_meant(self, context: OpContext) -> bool:
        line = _line(context.source)
        without = _PASSED_ON.sub("", line)
        return bool(_MEANT.search(without)) or (line != without and context.module_path in self._meant)

    def before_backward(self) -> None:
        models = ((key, one.module()) for key, one in self._models.items())
        self._lines = {key: called_at() for key, model in models if model is not None and not model.training}

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._judge(step)

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._judge(step)

    def _judge(self, step: Step) -> None:
        lines, self._lines = self._lines, {}
        if not lines and not self._in_a_row:
            return
        with_gradient = {id(one) for one in step.parameters if one.grad is not None}
        for key in self._models:
            model = self._models[key].module()
            place = self._models[key].trained_at(with_gradient) if key in lines else None
            if model is None or place is None or model.training:
                self._in_a_row.pop(key, None)
                continue
            count = self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
            if count > 1:
                what = f"{type(model).__name__}.training is False, from backward() to the step of the optimizer"
                self.found(place._replace(source=lines[key]), what, count=2 if count == 2 else 1)


@dataclasses.dataclass
class _Model:
    module: weakref.ref[Any]  # the outermost one
    parts: list[tuple[weakref.ref[Any], Place]] = dataclasses.field(default_factory=list)  # where the mode matters

    def trained_at(self, with_gradient: Container[int]) -> Place | None:
        """The first operator whose part of the model has one of these parameters."""
        living = ((part(), place) for part, place in self.parts)
        return next((place for part, place in living if part is not None and _has(part, with_gradient)), None)


def _has(module: Any, parameters: Container[int]) -> bool:
    return any(id(one) in parameters for one in module.parameters())


def _with_parameters(modules: Sequence[Any]) -> Any:
    """The innermost module that has parameters: a normalization itself, and what is around a dropout."""
    return next((one for one in modules if next(one.parameters(), None) is not None), modules[-1])


def _calls(context: OpContext) -> Iterator[str]:
    """The lines of the program that lead to an operator: in a graph to what made its input, in eager code to its run."""
    made = getattr(context.inputs[0], "op", None)
    places = (
        [(one.filename, one.lineno) for one in made.traceback or ()]  # an imported graph has none
        if made is not None
        else [(one.f_code.co_filename, one.f_lineno) for one in outwards(sys._getframe(1))]
    )
    for file, line in places:
        if not is_library(file) and not file.startswith(PACKAGE):
            yield _statement(linecache.getlines(file)[line - 1 : line - 1 + _LONGEST])


def _statement(lines: Sequence[str]) -> str:
    """The first of them, and those up to its last bracket."""
    is_open = itertools.accumulate(sum((one in "([{") - (one in ")]}") for one in line) for line in lines)
    following = itertools.takewhile(lambda each: each[0] > 0, zip(is_open, lines[1:], strict=False))
    return "".join([*lines[:1], *(line for _, line in following)])


def _line(source: str) -> str:
    """The text of a line, given as file:line."""
    place = split_line(source)
    return linecache.getline(*place) if place else ""
