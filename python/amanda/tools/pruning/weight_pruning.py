"""WeightPruning: operators run, and train, with some of their weights held at zero. A subclass selects the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch

from amanda import _core, _fork
from amanda import ops as amanda_ops
from amanda.op_context import OpContext
from amanda.reports.columns import name_column, number_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import PLACE_FIELDS, GroupBy, Place
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column
from amanda.tool import Tool
from amanda.tools import _fused_layers, _reading

OPS = amanda_ops.linear + amanda_ops.convolution + amanda_ops.transposed_convolution + amanda_ops.matmul


@dataclasses.dataclass(frozen=True)
class Row:
    """The newest mask of one operator; or those of all operators of a type, a module or a line."""

    op_id: int | None  # by "id"; else None
    name: str  # "aten::linear"; by "module" or "line" that module's path, or that line
    module_path: str  # by "id" and "module"; else ""
    source: str  # file:line of the call, by "id" and "line"; else ""
    weights: int
    pruned: int  # those held at zero

    @property
    def sparsity(self) -> float:
        """The fraction of weights that are pruned, 0 to 1."""
        return self.pruned / self.weights if self.weights else 0.0


class WeightPruning(Results[Row, GroupBy], Tool):
    """Base class of tools that prune weights. A subclass selects the weights in `get_mask`.

    An operator's mask is created once, when the operator is analyzed, and kept in ``context["mask"]``: 1 for a weight
    that stays and 0 for one that is pruned, in the shape and dtype of the weight. From then on the operator receives
    ``weight * mask``. Autograd records the product (``differentiable=True``), so the weight receives its gradient times
    the mask::

        pruned = amanda.apply(MagnitudePruning(sparsity=0.9))
        with pruned:
            fine_tune(model)  # from here on with masks of the weights as they were at the first step
        with pruned:  # the same scope object: the same masks
            evaluate(model)

    A new `apply` creates new masks. The parameter itself is not changed: what an optimizer does to a pruned weight
    (weight decay, earlier momentum) has no effect in the scope, and `model.state_dict()` is dense.

    The weight is the argument named `weight`. In a matrix product it is the factor that is an `nn.Parameter` or a view
    of one (``x @ weight.t()``); if both are, the right one. Products of activations, weights with fewer than two
    dimensions and integer weights are not pruned. Neither are weights whose elements cannot be read, such as
    distributed ones; these count in `skipped`. A weight that several operators use has one mask per operator. Weights
    inside other operators, such as recurrent layers, are not pruned. (An encoder layer that PyTorch runs as one
    operator in evaluation is an error, unless `ops` is given, because it would not be pruned as in training.)

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", in the order in
    which they first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`. After `reset`, also inside a scope,
    each operator gets a new mask when it runs next; ``context["mask"]`` stays the first one.

    Arguments:
        ops: the operators to prune, as in `Tool.add_inst_for_op`. Matrix products, or operators with a `weight`.
        where: called as ``where(context)`` once per operator; False leaves the operator dense.

    Raises:
        TypeError: `where` is not callable.
        amanda.Error: when an operator of `ops` runs whose weight is not known.

    The gradient could also be masked at a backward operator: for conv2d at ``grad_inputs[1]`` of ConvolutionBackward0,
    as in Guan et al. do (Amanda: Unified Instrumentation Framework for Deep Neural Networks, ASPLOS 2024, listing 1).
    But the node and position that lead to the weight differ for each operator and rank, and at AccumulateGrad the
    gradients of all users of a weight are already summed. The product avoids both problems, and also works for second
    derivatives and recomputed regions.
    """

    _speaker = "pruning"
    _counts = (
        number_column("weights", "weights"),
        number_column("pruned", "pruned"),
        Column("sparsity", lambda row: f"{row.sparsity:.1%}", field="sparsity"),
    )
    _fields = fields_of(Row, without=PLACE_FIELDS, sparsity="float64")
    _groupings = {
        "id": Grouping([name_column("id"), *_counts], fields_of(Row, sparsity="float64"), lambda rows: _sum(rows)),
        "op": Grouping([name_column("op"), *_counts], _fields, lambda rows: _sum(rows)),
        "module": Grouping([name_column("module"), *_counts], _fields, lambda rows: _sum(rows)),
        "line": Grouping([name_column("line"), *_counts], _fields, lambda rows: _sum(rows)),
    }

    def __init__(
        self, *, ops: str | Iterable[str] = OPS, where: Callable[[OpContext], object] = lambda context: True
    ) -> None:
        super().__init__()
        if not callable(where):
            raise TypeError(f"[pruning] where= takes a function of an operator's context, got {where!r}")
        self._where = where
        self._skips = _reading.Skips("pruning")
        self._resets = 0
        self._masked: dict[int | None, Row] = {}
        self._lock = _fork.lock()  # guards the two above
        self.add_inst_for_op(self._analyze, ops=ops)
        if ops is OPS:
            _fused_layers.refuse_in(self)

    @property
    def skipped(self) -> dict[str, int]:
        """How many operators were left dense because their weight cannot be read, by reason."""
        return self._skips.counts()

    def reset(self) -> None:
        with self._lock:
            self._resets += 1
            self._masked.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[Place, list[Row]] = {}
        with self._lock:
            for row in self._masked.values():
                place = Place(row.op_id, row.name, row.module_path, row.source)
                groups.setdefault(place.group(by), []).append(row)
        return [_sum(rows, place) for place, rows in groups.items()]

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption()]

    def get_mask(self, weight: torch.Tensor, dim: int) -> torch.Tensor:
        """Returns the mask of `weight`, in its shape: 1 for weights that stay, 0 for pruned ones.

        Arguments:
            weight: the operator's weight.
            dim: the dimension over which the operator sums, the input channels.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"[pruning] {type(self).__name__} has no get_mask")

    def _analyze(self, context: OpContext) -> None:
        found = _find_weight(context)
        if found is None or not self._where(context):
            return
        position, dim = found
        weight = context.inputs[position]
        if self._skips.unreadable(weight):
            return
        masked = _Masked(Place.of(context), dim)
        context["mask"] = self._renew(masked, weight)
        context.insert_before_op(self._mask_weight, inputs=[position], differentiable=True, masked=masked)

    def _renew(self, masked: _Masked, weight: torch.Tensor) -> torch.Tensor:
        """Gives an operator the mask of its weight as it is now."""
        resets = self._resets
        with torch.inference_mode(False), torch.no_grad():  # the mask must serve training, too
            mask = torch.func.debug_unwrap(torch.empty_like(weight).copy_(self.get_mask(weight, masked.dim)))
        if mask.shape != weight.shape:
            raise _core.Error(f"[pruning] {masked.place.name} runs on several weights at once, under torch.vmap")
        row = Row(*masked.place, weights=mask.numel(), pruned=mask.numel() - int(mask.count_nonzero()))
        with self._lock:
            masked.mask, masked.resets = mask, resets
            if resets == self._resets:
                self._masked[row.op_id] = row
        return mask

    def _mask_weight(self, weight: torch.Tensor, masked: _Masked) -> torch.Tensor:
        mask = masked.mask
        if mask is None or masked.resets != self._resets:
            mask = self._renew(masked, weight)
        return weight * mask.to(weight)


@dataclasses.dataclass(eq=False)
class _Masked:
    """An operator with a mask, in one scope."""

    place: Place
    dim: int  # over which it sums
    mask: torch.Tensor | None = None
    resets: int = 0  # of the tool, when the mask was made


_ALL = Place(None, "", "", "")


def _sum(rows: Iterable[Row], place: Place = _ALL) -> Row:
    rows = list(rows)
    return Row(*place, weights=sum(row.weights for row in rows), pruned=sum(row.pruned for row in rows))


def _find_weight(context: OpContext) -> tuple[int, int] | None:
    """The position of an operator's weight, and the weight's dimension of input channels; None if it has no weight."""
    op, inputs = context.op, context.inputs
    if "weight" in op.input_names:
        found = op.input_names.index("weight"), 0 if "transpose" in op.__name__ else 1
    elif op.__name__ in amanda_ops.factors:
        left, right = map(op.input_names.index, amanda_ops.factors[op.__name__])
        found = (right, -2) if _is_parameter(inputs[right]) else (left, -1)
        if not _is_parameter(inputs[found[0]]):
            return None
    else:
        raise _core.Error(f"[pruning] which input of {op.name} is its weight is not known")
    weight = inputs[found[0]]
    prunable = isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.dim() >= 2
    return found if prunable else None


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
