"""WeightPruning: operators run, and train, with some of their weights held at zero. A subclass selects the weights."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Never

from amanda import OpContext, Tool
from amanda import ops as amanda_ops
from amanda.toolkit import Column, Results, Skips, TellsSkips, Where, frameworks, fused_layers, locks, number_column
from amanda.toolkit.arguments import refuse_option
from amanda.toolkit.arrays import known
from amanda.toolkit.operators import access_to
from amanda.toolkit.parameters import ParameterUse, TellsParameters, in_parametrization
from amanda.toolkit.places import GroupBy, Place, counted_groupings, grouped
from amanda.toolkit.programs import own_work
from amanda.tools.mapping import weighted_operators

from . import graph_weights
from .graph_weights import GraphWeight
from .masked import Masked, Row, Use, Version
from .sparsity_schedule import SparsitySchedule, checked, now

OPS = amanda_ops.linear + amanda_ops.convolution + amanda_ops.transposed_convolution + amanda_ops.matmul + ("einsum",)
"""PyTorch's; in other frameworks, the operators that the words `amanda.toolkit.operators.WEIGHTED` stand for."""


class WeightPruning(TellsParameters, TellsSkips, Results[Row, GroupBy], Tool):
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

    A new `apply` creates new masks. If a subclass has a `sparsity`, a number or a `SparsitySchedule`, and it changes, masks
    are made anew, of the weights as they are then. The parameter itself is not changed until `apply_to`: changes of a
    pruned weight by an optimizer (weight decay, earlier momentum) have no effect in the scope, and `model.state_dict()`
    is dense.

    The weight is the argument named `weight`. In a matrix product it is the factor that is an `nn.Parameter` or a view
    of one (``x @ weight.t()``); if both are, the right one. So it is in `torch.einsum`, of operands over whose last common
    dimension it sums. The weights of experts, three-dimensional factors of `F.grouped_mm` or `torch.bmm`, are one weight.
    Products of activations, weights with fewer than two dimensions and integer weights are not pruned. Neither are weights
    whose elements cannot be read, such as distributed ones; these count in `skipped`. A weight that several operators use
    has one mask per operator. A parametrization's own products are not pruned, but the weight that it computes. Weights
    inside other operators, such as recurrent layers, are not pruned. (An encoder layer that PyTorch runs as one operator
    in evaluation is an error, unless `ops` is given, because it would not be pruned as in training.)

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", in the order in
    which they first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`. After `reset`, also inside a scope,
    each operator gets a new mask when it runs next; ``context["mask"]`` stays the first one. `unhandled` has the
    parameters that operators compute with and that are not pruned, and `covered` the share that is; both are below tables.
    So the tool looks at every operator once, and if it has pruned nothing, leaving the scope warns.

    Arguments:
        ops: the operators to prune, as in `Tool.add_inst_for_op`. Matrix products, or operators with a `weight`.
        where: called as ``where(context)`` once per operator; False leaves the operator dense. If it is never True, leaving
            the scope warns (`UnmatchedFilterWarning`).

    Raises:
        TypeError: `where` is not callable.
        amanda.Error: when an operator of `ops` runs whose weight is not known.

    The gradient could also be masked at a backward operator: for conv2d at ``grad_inputs[1]`` of ConvolutionBackward0,
    as in Guan et al. do (Amanda: Unified Instrumentation Framework for Deep Neural Networks, ASPLOS 2024, listing 1).
    But the node and position that lead to the weight differ for each operator and rank, and at AccumulateGrad the
    gradients of all users of a weight are already summed. The product avoids both problems, and also works for second
    derivatives and recomputed regions.

    In functions that are compiled with taps (``compiled="graph"``), products with the masks are part of the compiled
    code. An operator that was pruned before, in eager mode or in a function that is compiled again, keeps its mask. After
    `reset`, and when the sparsity is set, new masks are made at once, of the weights as they are then, and written into
    the old ones, ``context["mask"]`` included; nothing is compiled again. So it is in each step of a `SparsitySchedule`
    that is set later, if the step changes the sparsity. With a `SparsitySchedule` from the start, and for
    weights that are computed in the function, the mask is applied by a call in each run.

    In graphs of other frameworks, routines compute in numpy, which is not differentiated. The gradient is masked where a
    backward operator computes it. An analysis sees symbols, so the mask is made when the operator first runs, and
    `context` has none. The mask belongs to the tool and to the variable. Operators that use the variable in the same
    layout share the mask, such as those of the functions that train and evaluate a model. `reset` makes new masks. The
    weight is the filter of a convolution, or the factor of a product that is a variable's value, perhaps cast, reshaped or
    transposed. In a session of ONNX Runtime it is a constant of the optimized graph, whose file `apply_to` cannot write.
    """

    _speaker = "pruning"
    _groupings = counted_groupings(
        Row,
        [
            number_column("weights", "weights"),
            number_column("pruned", "pruned"),
            Column("sparsity", lambda row: f"{row.sparsity:.1%}", field="sparsity"),
        ],
        sparsity="float64",
    )
    _sparsity: float | SparsitySchedule | None = None

    def __init__(
        self,
        *,
        ops: str | Iterable[str] = OPS,
        where: Callable[[OpContext], object] = lambda context: True,
        **unknown: Never,
    ) -> None:
        for name in unknown:
            refuse_option(f"[pruning] {type(self).__name__}", name, type(self).__init__, WeightPruning.__init__)
        super().__init__()
        self._where = Where("pruning", where)
        self._parameters = ParameterUse(self, "pruning")
        self._skips = Skips("pruning")
        self._resets = 0
        self._compiled: weakref.WeakSet[Masked] = weakref.WeakSet()  # whose masks compiled code reads
        self._masked: dict[object, Masked] = {}  # by Masked.id
        self._dense: dict[int | None, Use] = {}  # what `where` refused
        self._of_variables: dict[object, Masked] = {}  # in graphs: the first operator that uses the weight
        self._lock = locks.lock()  # guards the four above
        if ops is OPS:
            self.add_inst_for_op(self._analyze, ops=weighted_operators(*OPS))
            fused_layers.refuse_in(self)
        else:
            self.add_inst_for_op(self._analyze, ops=ops)

    @property
    def sparsity(self) -> float | SparsitySchedule | None:
        """The sparsity, in subclasses that take one."""
        return self._sparsity

    @sparsity.setter
    def sparsity(self, value: float | SparsitySchedule) -> None:
        if isinstance(value, SparsitySchedule) and value is not self._sparsity:
            value.when_changed(_follower(self))
        self._sparsity = value
        self._renew_compiled()

    def apply_to(self, model: Any) -> None:
        """Makes the pruning permanent: writes the masks into the model's parameters or variables, in place.

        From then on the model needs neither the tool nor Amanda: outside of scopes it computes what it computes in them,
        on PyTorch bit for bit, and `state_dict()` is sparse. An optimizer may change the zeros again. The masks are those
        that the operators would get if they ran now. Weights that are views of parameters are written through the view.

        Nothing is written if there is an error.

        Arguments:
            model: the model that ran in the scope, or a module around it; several in a `torch.nn.ModuleList`. In
                TensorFlow: a model or module with `variables`, or a list of variables.

        Raises:
            TypeError: `model` is not a module.
            amanda.Error: nothing has been pruned; a weight is computed, or no parameter of the model, or has several
                masks; or an unpruned operator or module uses it.
        """
        with self._lock:
            in_graphs = any(isinstance(masked.weight, GraphWeight) for masked in self._masked.values())
        kind = "variable_masks" if in_graphs or "torch" not in sys.modules else "permanent"
        masks = importlib.import_module(f".{kind}", __package__)
        masks.check(model)
        self._renew_outdated()
        with self._lock:
            uses = [Use(masked.place, masked.weight, masked.mask) for masked in self._masked.values()]
            uses += self._dense.values()
        masks.write(model, uses)

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)
            if not self._where.refuses_all:
                self._parameters.tell(self)

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._resets += 1
            self._masked.clear()
        self._skips.reset()
        self._renew_compiled()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            return grouped(Row, [masked.row() for masked in self._masked.values()], by)

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption(), self._parameters.caption()]

    def get_mask(self, weight: Any, dim: int) -> Any:
        """Returns the mask of `weight`, in its shape: 1 for weights that stay, 0 for pruned ones.

        Arguments:
            weight: the operator's weight, a tensor of PyTorch; an array of numpy in graphs of other frameworks.
            dim: the dimension over which the operator sums, the input channels.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"[pruning] {type(self).__name__} has no get_mask")

    def _take(self, sparsity: float | SparsitySchedule) -> None:
        """Checks a subclass's argument `sparsity`."""
        self.sparsity = checked(sparsity)
        if isinstance(sparsity, SparsitySchedule):
            self.depends_on(sparsity)

    def _analyze(self, context: OpContext) -> None:
        if frameworks.leaves_out(context, self._skips):
            return
        if not frameworks.is_torch(context):
            if not frameworks.shows_after_run(context):
                self._analyze_graph(context)
            elif self._where(context):
                raise frameworks.only_looks(context, self._speaker, "prune")
            return
        from amanda.toolkit.arrays import of_torch

        from . import torch_weights

        self._parameters.asked(context)
        if in_parametrization(context.module_path):
            return  # it computes the weight that is pruned
        found = torch_weights.find(context)
        if found is None:
            return
        weight, place, view = found.value, Place.of(context), found.view
        if not self._where(context):
            with self._lock:
                self._dense[place.op_id] = Use(place, view, None)
            return
        is_symbol = context.is_symbolic and of_torch.is_symbolic(weight)  # computed in a compiled function
        if not is_symbol and self._skips.unreadable(weight):
            return
        self._parameters.handled(context, (found.position, found.element))
        names = context.op.input_names
        masked = Masked(place, found.dim, context.inputs[names.index("groups")] if "groups" in names else 1, view)
        if context.is_symbolic:
            masked = self._masked_before(masked)
        if not is_symbol and (mask := self._mask_of(masked, weight)) is not None:
            context["mask"] = mask
        if is_symbol or not context.is_symbolic or not self._is_fixed:
            routine = found.routine(self._mask_weight)
            context.insert_before_op(routine, inputs=[found.position], differentiable=True, masked=masked)
            return
        with self._lock:
            self._compiled.add(masked)
        routine = found.routine(self._multiply)
        context.insert_before_op(routine, inputs=[found.position], differentiable=True, traceable=True, masked=masked)

    @property
    def _is_fixed(self) -> bool:
        """True if masks stay until `reset`, or until the sparsity is set."""
        return not isinstance(self.sparsity, SparsitySchedule)

    def _masked_before(self, masked: Masked) -> Masked:
        """The same operator, if it has a mask already: a function is compiled several times, or has run eagerly."""
        with self._lock:
            known = self._masked.get(masked.id)
        return known if known is not None and known.key is not None and known.key == masked.key else masked

    def _multiply(self, weight: Any, masked: Masked) -> Any:
        return weight * known(weight).matching(masked.mask, weight)

    def _analyze_graph(self, context: OpContext) -> None:
        self._parameters.asked(context)
        found = graph_weights.find(context)
        if found is None:
            return
        place = Place.of(context)
        if not self._where(context):
            with self._lock:
                self._dense[place.op_id] = Use(place, found, None)
            return
        self._parameters.handled(context, found.position)
        masked = Masked(place, found.dim, 1, found)
        if masked.key is not None:
            with self._lock:
                masked.like = self._of_variables.setdefault(masked.key, masked)
        context.insert_before_op(self._mask_weight, inputs=[found.position], masked=masked)
        if not access_to(context.namespace, context.op.__name__).has_backward:
            return
        # Among the backward operators, only the one that computes this gradient has it.
        context.insert_after_backward_op(self._mask_gradient, grad_inputs=[found.position], masked=masked)

    def _mask_weight(self, weight: Any, masked: Masked) -> Any:
        arrays, masked = known(weight), masked.with_part(weight)
        if not arrays.is_floating(weight):
            return None
        mask = self._mask_of(masked, weight)
        if mask is None:
            self._skips.add("transformed")
            return None
        return weight * arrays.matching(mask, weight)

    def _mask_gradient(self, gradient: Any, masked: Masked) -> Any:
        return None if gradient is None or masked.mask is None else gradient * masked.mask

    def _mask_of(self, masked: Masked, weight: Any) -> Any:
        """The mask of an operator: a new one of its weight as it is now, if it has none yet, or an outdated one. None
        if it has none, and has several weights at once, under `torch.vmap`."""
        version = self._version()
        mask = masked.mask
        if mask is None or masked.version != version:
            arrays = known(weight)
            plain = arrays.plain(weight)
            if plain.shape != weight.shape:
                return None
            with arrays.lasting():
                mask = self._keep(masked, plain, self._made(masked, plain), version)
        return mask

    def _made(self, masked: Masked, weight: Any) -> Any:
        if masked.like is not None and masked.like is not masked:
            return self._mask_of(masked.like, weight)
        if isinstance(masked.weight, GraphWeight):
            return masked.weight.mask(self.get_mask, weight)
        return self.get_mask(weight, masked.dim)

    def _version(self) -> Version:
        return self._resets, now(self.sparsity)

    def _keep(self, masked: Masked, weight: Any, mask: Any, version: Version) -> Any:
        arrays = known(weight)
        with arrays.lasting():
            mask = arrays.filled_like(weight, mask)
        with self._lock:
            if masked in self._compiled:  # the code has this tensor
                with arrays.lasting():
                    mask = masked.mask.copy_(mask)
            masked.mask, masked.version = mask, version
            if version[0] == self._resets:
                self._masked[masked.id] = masked
        return mask

    def _renew_outdated(self) -> None:
        with self._lock:
            masks = list(self._masked.values())
        self._renew(masks)

    def _renew_compiled(self) -> None:
        """Compiled code does not ask for masks: it reads them."""
        with self._lock:
            masks = list(self._compiled)
        with own_work():
            self._renew(masks)

    def _renew(self, masks: Iterable[Masked]) -> None:
        for masked in masks:
            weight = masked.current_weight()
            if weight is not None:
                self._mask_of(masked, weight)


def _follower(tool: WeightPruning) -> Callable[[], None]:
    """The function that a schedule calls; it does not keep the tool alive."""
    known = weakref.ref(tool)

    def follow() -> None:
        found = known()
        if found is not None:
            found._renew_compiled()

    return follow
