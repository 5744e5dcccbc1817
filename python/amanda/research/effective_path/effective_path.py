"""EffectivePath: the neurons, synapses and weights that made a network predict a class, found in a backward pass."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import torch
from torch import Tensor

from amanda import Error, OpContext, Operator, Run, Tool, apply
from amanda.research.effective_path import masks, rules
from amanda.research.effective_path.extraction import Execution, Extraction
from amanda.research.effective_path.path import Part, Path
from amanda.toolkit import Column, GroupBy, Place, PlaceRow, Results, eager_only, locks, number_column, place_groupings


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """How much of an operator was on the paths, over all samples. By "op", "module" and "line", of several operators."""

    paths: int  # executions of the operator, each of one sample
    synapses: int  # of these executions
    active_synapses: int  # those on the path
    neurons: int
    active_neurons: int
    weights: int
    active_weights: int

    @property
    def neuron_density(self) -> float:
        """The fraction of neurons that is on the path, 0 to 1."""
        return self.active_neurons / max(1, self.neurons)

    @property
    def synapse_density(self) -> float:
        """The fraction of synapses that is on the path, 0 to 1."""
        return self.active_synapses / max(1, self.synapses)

    @property
    def weight_density(self) -> float | None:
        """The fraction of weights that is on the path, 0 to 1; None if there are none."""
        return self.active_weights / self.weights if self.weights else None


def _share_column(heading: str, field: str) -> Column:
    def cell(row: Row) -> str:
        share = getattr(row, field)
        return "" if share is None else f"{share:.2%}"

    return Column(heading, cell, field=field)


class EffectivePath(Results[Row, GroupBy], Tool):
    """Extracts the effective path of samples: the neurons, synapses and weights that made a network predict their class::

        tool = EffectivePath(theta=0.5)
        one, *others = tool.extract(model, images)
        print(one.density(), one.similarity(others[0]))
        print(tool.table("module"))

    Y. Qiu, J. Leng, C. Guo, Q. Chen, C. Li, M. Guo, Y. Zhu: Adversarial Defense Through Network Profiling Based Path
    Extraction, CVPR 2019. The predicted class's score is on the path. For each neuron on the path, the smallest set of
    synapses whose contributions sum up to theta of the neuron's value is on it, too. A contribution is input times
    weight. The inputs of these synapses, which are neurons of the layer before, are also on the path. The union of the
    paths of a class's samples is the path of the class.

    The tool runs the model's own backward pass with other backward operators: gradients there are masks of the neurons on
    the path. So it works for any model that consists of these operators, called as modules or as functions:

    - linear layers, products with a weight, convolutions, average pooling, means and sums: as above;
    - sums of two tensors (skip connections): a neuron has two synapses;
    - max pooling: the element that PyTorch takes;
    - activations and batch normalization: neurons map to neurons. An activation that is zero ends the path;
    - views, permutations, concatenation, padding, indexing: the mask moves with the elements.

    A neuron's value is taken without its bias, and with its sign: the negative contributions of a negative neuron are
    critical. A batch normalization with a negative weight turns that around. If bias or normalization gave a neuron a
    sign that its contributions do not sum up to, the critical ones reach theta of those that have that sign.

    In a scope of its own the tool does nothing until `extract` is called; inside such a scope, `extract` analyzes each
    operator once for all calls. Rows have the parts of each operator that were on the paths of all samples, by "id"
    (the default), "op", "module" or "line". See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        theta: the share of a neuron's value that its critical synapses must reach, above 0 and up to 1.

    Raises:
        ValueError: `theta` is not in that range.
    """

    needs_eager = "it replaces autograd nodes one by one"
    _speaker = "effective_path"
    _densities = tuple(_share_column(name, f"{name[:-1]}_density") for name in ("neurons", "synapses", "weights"))
    _properties: dict[str, Any] = dict.fromkeys(("neuron_density", "synapse_density", "weight_density"), "float64")
    _groupings = place_groupings(Row, (number_column("paths", "paths"), *_densities), **_properties)

    def __init__(self, theta: float = 0.5) -> None:
        super().__init__()
        if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta <= 1:
            raise ValueError(
                f"[effective_path] theta is the share of a neuron's value to explain, above 0 and up to 1; got {theta!r}"
            )
        self.theta = theta
        self._here = threading.local()  # .extraction: the one in progress on this thread
        self._totals: dict[Place, tuple[int, ...]] = {}  # what rows have after the place
        self._lock = locks.lock()  # guards the totals
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    def extract(self, model: Callable[[Tensor], Any], x: Tensor, classes: int | Tensor | None = None) -> list[Path]:
        """Returns the path of each sample of `x`.

        The parameters' gradients and the state of the model stay as they are.

        Arguments:
            model: returns the scores of the classes, (samples, classes), or an object that has them in `logits`. It must
                be in evaluation mode if it has batch normalization or dropout.
            x: samples, (samples, ...), of a floating-point type.
            classes: the classes whose paths to extract, one for all samples or one for each. By default, the class with
                the highest score.

        Raises:
            TypeError, ValueError: `x`, `classes` or the model's result is not as above.
            amanda.Error: the path leads through an operator for which there is no rule, or that runs as in training. The
                message names it, its module and line.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0 or len(x) == 0:
            found = f"{x.dtype} of {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"[effective_path] x is a floating-point tensor of samples, (samples, ...); got {found}. Of a model of "
                "tokens, extract the part that follows its embeddings"
            )
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone().requires_grad_().clone()  # no leaf: that would count as a parameter
            extraction = Extraction(x, self.theta)
            with apply(self), self._extracting(extraction):
                scores = _scores_of(model(x), len(x))
                if not extraction.is_on_the_way(scores.grad_fn):
                    raise ValueError(
                        "[effective_path] the scores do not depend on x: the model detaches it, or runs under no_grad"
                    )
                start = masks.start(scores, _chosen(scores, classes))
                (mask,) = torch.autograd.grad(scores, x, start)
            paths = extraction.paths(masks.checked(mask, "x"))
        self._count(paths)
        return paths

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._totals.clear()

    def _count(self, paths: list[Path]) -> None:
        with self._lock:
            for layer in (layer for path in paths for layer in path.layers.values()):
                total = self._totals.setdefault(layer.place, _NOTHING)
                counts = [count for part in get_args(Part) for count in (layer.size(part), layer.active(part))]
                self._totals[layer.place] = _sum([total, (1, *counts)])

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[Place, list[tuple[int, ...]]] = {}
        with self._lock:
            for place, total in self._totals.items():
                groups.setdefault(place.group(by), []).append(total)
        return [Row(*place, *_sum(totals)) for place, totals in groups.items()]

    # ---- forward: what the path needs to know ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _extracting(self, extraction: Extraction) -> Iterator[None]:
        outer = self._extraction
        self._here.extraction = extraction
        try:
            yield
        finally:
            self._here.extraction = outer

    @property
    def _extraction(self) -> Extraction | None:
        return getattr(self._here, "extraction", None)

    def _analyze(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        names, place = context.op.input_names, _place_of(context)
        context.insert_before_op(self._begin, inputs=[], with_run=True, place=place)
        if rules.base(context.op.__name__) in rules.known:
            in_place = context.op.__name__.endswith("_")
            context.insert_before_op(self._keep, with_run=True, names=names, in_place=in_place)
            context.insert_after_op(self._keep_sign, outputs=[0], with_run=True)
        elif {"p", "train"} <= {*names}:
            context.insert_before_op(self._refuse_dropout, inputs=["p", "train"], where=str(place))

    def _begin(self, run: Run, place: Place) -> None:
        if self._extraction is not None:
            run["execution"] = Execution(self._extraction, place)

    def _keep(self, *inputs: Any, run: Run, names: list[str], in_place: bool) -> None:
        if "execution" in run:
            execution, named = run["execution"], dict(zip(names, inputs, strict=True))
            if named.get("training"):
                raise Error(
                    f"[effective_path] {execution.place} normalizes by statistics of the batch, which mix "
                    "samples; call model.eval() first"
                )
            execution.keep(named, in_place)

    def _keep_sign(self, output: Tensor, run: Run) -> None:
        if "execution" in run:
            run["execution"].sign = output.sign().to(torch.int8)

    def _refuse_dropout(self, p: float, train: bool, where: str) -> None:
        if train and p > 0 and self._extraction is not None:
            raise Error(f"[effective_path] {where} drops elements at random; call model.eval() first")

    # ---- backward: gradients are masks -------------------------------------------------------------------------------

    def _analyze_backward(self, context: OpContext) -> None:
        node, place = context.backward_op, _place_of(context)
        if not rules.moves(node.__name__):
            context.replace_backward_op(self._carry, with_run=True, node=node, place=place)

    def _carry(self, *gradients: Tensor | None, run: Run, node: Operator, place: Place) -> Any:
        """The masks of an operator's inputs, given that of its output; or gradients, if this is no extraction."""
        if "execution" in run:
            return rules.carry(gradients[0], node.__name__, run["execution"])
        if self._extraction is not None and place.name.startswith("autograd::"):
            raise rules.unknown(place, "it is an autograd.Function")
        return node(*gradients)


def _place_of(context: OpContext) -> Place:
    """The operator's place, without a line if that is `extract`'s, as in a model that consists of PyTorch's modules
    only."""
    place = Place.of(context)
    return place._replace(source="") if place.source.rpartition(":")[0] == __file__ else place


_NOTHING = (0,) * 7


def _sum(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


def _scores_of(found: Any, samples: int) -> Tensor:
    scores = getattr(found, "logits", found)
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != samples or not scores.is_floating_point():
        what = f"{scores.dtype} of {list(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"[effective_path] a model returns the scores of classes, ({samples}, classes), or has them in .logits; got "
            f"{what}. Wrap it: extract(lambda x: scores_of(model(x)), x)"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError("[effective_path] scores are not finite: their paths are not defined")
    return scores


def _chosen(scores: Tensor, classes: int | Tensor | None) -> Tensor:
    if classes is None:
        return scores.argmax(1)
    chosen = torch.as_tensor(classes, device=scores.device)
    count = scores.shape[1]
    if (
        chosen.is_floating_point()
        or chosen.shape not in ((), (len(scores),))
        or not bool(((chosen >= 0) & (chosen < count)).all())
    ):
        raise ValueError(
            f"[effective_path] classes= is a number from 0 to {count - 1}, or a tensor of {len(scores)} of them; got "
            f"{classes!r}"
        )
    return chosen.long().expand(len(scores))
