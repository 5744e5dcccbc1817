"""sorted-by-class."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place
from amanda.toolkit.frameworks import is_tensorflow

from ..rule import Rule, operands
from ..shared_operators import OF_LOSSES

LEAST = 8  # batches of training
EXAMPLES = 8  # in each; and four times as many that are evaluated
MOSTLY = 0.9  # of batches
MOST = 256  # losses that are looked at, at one place
EACH = 20  # labels of training for each class: none of them is rare by chance


_LOSSES = ("cross_entropy_loss", "nll_loss_nd", "SparseSoftmaxCrossEntropyWithLogits")
_Batch = tuple[list[float], int] | None  # classes, and the number of labels


class SortedByClass(Rule):
    """The data are sorted by class. In TensorFlow, batches of training have one class each, because nothing shuffled the
    examples before they were put together: the model learns one class after the other, and forgets. Or an evaluation has
    only classes that training never had, as with ``validation_split`` of Keras, which takes the last examples.

    It reads the labels of losses over classes, on the CPU, in the first 256 runs of each. It reports eight batches of eight
    examples or more, of which nine of ten have one class. With two classes, the class must stay the same for several
    batches: a discriminator gets real and generated examples in turns. For training in PyTorch, see "classes-in-order".
    """

    name = "sorted-by-class"
    sentence = "the data are sorted by class"
    fix = "shuffle examples before they are put into batches, with a buffer as large as the data, and before they are split"
    ops = OF_LOSSES
    bad = """
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
        with torch.no_grad():
            for _ in range(4):
                F.cross_entropy(model(torch.randn(8, 4)), torch.full((8,), 2))
    """
    good = """
        for i in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
            loss.backward()
            optimizer.step()
        for label in range(3):
            with torch.no_grad():
                F.cross_entropy(model(torch.randn(8, 4)), torch.full((8,), label))
    """

    def begin(self) -> None:
        self._losses: dict[tuple[Place, bool], _Labels] = {}  # by whether it trains
        self._waiting: dict[Place, list[tuple[int, _Batch]]] = {}  # of TensorFlow, since the last step
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def look(self, context: OpContext) -> None:
        if context.op.__name__ not in _LOSSES:
            return
        place = Place.of(context)
        if is_tensorflow(context):  # of `fit`, operators of training and of evaluation have the same id
            classes = context.inputs[0].shape[-1]
            if classes:
                context.insert_before_op(self._on_run_of_tensorflow, inputs=[1], place=place, classes=classes)
            return
        given = operands(context)
        if given["target"].device.type == "cpu" and not given["target"].is_floating_point():
            classes = given["self"].shape[1 if given["self"].dim() > 1 else 0]
            key = place, bool(given["self"].requires_grad)
            context.insert_before_op(self._on_run, inputs=["target"], key=key, classes=classes)

    def _on_run(self, labels: Any, key: tuple[Place, bool], classes: int) -> None:
        known = self._losses.setdefault(key, _Labels(classes))
        if known.batches < MOST:
            known.add(self.read_with(labels, _classes))

    def _on_run_of_tensorflow(self, labels: Any, place: Place, classes: int) -> None:
        waiting = self._waiting.setdefault(place, [])
        if len(waiting) < MOST:
            waiting.append((classes, self.read_with(labels, _classes)))

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        """The last losses have led to the steps, and those before were of an evaluation."""
        trained = steps - self._steps.get(optimizer, steps - 1)
        self._steps[optimizer] = steps
        self._sort(trained)

    def _sort(self, trained: int) -> None:
        for where, waiting in self._waiting.items():
            for number, (classes, batch) in enumerate(waiting):
                key = where, number >= len(waiting) - trained
                known = self._losses.setdefault(key, _Labels(classes))
                if known.batches < MOST:
                    known.add(batch)
        self._waiting.clear()

    def at_end(self, ended_well: bool) -> None:
        self._sort(0)
        seen: dict[int, set[float]] = {}  # in training, by the number of classes of the model
        batches: collections.Counter[int] = collections.Counter()
        examples: collections.Counter[int] = collections.Counter()
        for (place, trains), one in self._losses.items():
            if not trains or not one.classes:
                continue
            seen.setdefault(one.classes, set()).update(one.seen)
            batches[one.classes] += one.batches
            examples[one.classes] += one.examples
            if place.name.startswith("tensorflow::") and one.are_sorted():
                what = f"{one.of_one_class} of {one.batches} batches have one class each"
                self.found(place, what, count=one.of_one_class)
        for (place, trains), one in self._losses.items():
            if trains or not one.classes or one.examples < 4 * EXAMPLES or batches[one.classes] < LEAST:
                continue
            known = seen[one.classes]
            if not one.seen & known and examples[one.classes] >= EACH * one.classes:
                evaluated, of_training = (", ".join(f"{each:g}" for each in sorted(each)) for each in (one.seen, known))
                what = f"classes {evaluated} are evaluated, and training has had {of_training} only"
                self.found(place, what, count=one.batches)
        self.begin()


@dataclasses.dataclass
class _Labels:
    classes: int  # of the model; 0 if the labels are not known
    batches: int = 0
    examples: int = 0
    of_one_class: int = 0
    seen: set[float] = dataclasses.field(default_factory=set)
    runs: list[float] = dataclasses.field(default_factory=list)  # the classes of batches with one

    def add(self, batch: _Batch) -> None:
        self.batches += 1
        if batch is None:
            self.classes = 0
            return
        found, examples = batch
        self.examples += examples
        self.seen.update(found)
        if len(found) == 1 and examples >= EXAMPLES:
            self.of_one_class += 1
            self.runs.append(found[0])

    def are_sorted(self) -> bool:
        if self.batches < LEAST or self.of_one_class < MOSTLY * self.batches:
            return False
        classes = len(set(self.runs))
        changes = sum(a != b for a, b in itertools.pairwise(self.runs))
        return classes > 2 or (classes == 2 and 3 * changes <= len(self.runs))


def _classes(labels: Any, arrays: Arrays) -> _Batch:
    """The classes of a batch, and the number of its labels. None for labels of positions, as of texts and images."""
    if len(labels.shape) != 1 or 0 in labels.shape:
        return None
    return arrays.xp.unique(labels).tolist(), labels.shape[0]
