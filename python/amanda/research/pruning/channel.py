"""ChannelPruning: each input decides which channels of a convolution it needs."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from amanda import Error, OpContext, Tool, apply
from amanda import ops as amanda_ops
from amanda.research.pruning.passes import UNSEEN, Passes
from amanda.toolkit import Column, Results, Skips, TellsSkips, Where, eager_only, locks, number_column, preserved
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.places import GroupBy, Place, PlaceRow, counted_groupings, grouped
from amanda.toolkit.torch import StorageWeakRef


@dataclasses.dataclass(frozen=True)
class ChannelRow(PlaceRow):
    """The number of channels that one convolution has kept, or those of a type, a module or a line; sums over all
    samples."""

    samples: int
    channels: int
    kept: int  # those that were not multiplied by 0

    @property
    def density(self) -> float:
        """The fraction of channels that were kept, 0 to 1."""
        return self.kept / self.channels if self.channels else 0.0


class ChannelPruning(TellsSkips, Results[ChannelRow, GroupBy], Tool):
    """Dynamic channel pruning, feature boosting and suppression: each sample computes with the channels that it needs::

        pruning = ChannelPruning(density=0.5)
        pruning.prepare(model, x)  # makes the gates
        optimizer = torch.optim.SGD([*model.parameters(), *pruning.parameters()], lr=0.01)
        with amanda.apply(pruning):
            loss = F.cross_entropy(model(x), y) + 1e-8 * pruning.penalty()

    X. Gao, Y. Zhao, L. Dudziak, R. Mullins, C. Xu: Dynamic Channel Pruning: Feature Boosting and Suppression, ICLR 2019
    (arXiv:1810.05331). A convolution of c channels gets a gate, which predicts from its input how much each of them
    matters: ``g = relu(s @ W.T + b)``, where ``s`` is the mean of ``|input|`` over space. The ``ceil(density * c)`` largest
    of ``g`` stay, the others are set to 0, and the convolution's output is multiplied by the result, channel by channel
    and sample by sample. If the very output goes into batch normalization (`batch_norm`), the output of that is multiplied
    instead. The paper's normalization has no gain; here it is the model's own.

    Gates are trained with the model: they are `torch.nn.Linear` modules, W drawn as by Kaiming He et al., b = 1. They are
    made when a convolution first runs, or by `prepare`, and belong to the convolution's weight: convolutions with the same
    weight share a gate. A tool gates one model, and names gates after its parameters. Under
    autocast gates compute as linear layers do. Pruned channels are computed: the program runs its own operators.

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", in the order in
    which they first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`. Recomputations do not count.

    Arguments:
        density: the share of channels that stays, in (0, 1].
        where: called as ``where(context)`` once per convolution; False leaves it as it is. If it is never True, leaving the
            scope warns (`UnmatchedFilterWarning`).

    Attributes:
        gates: the gates, a `torch.nn.Module`. Move it with the model, or make it a submodule of the model: then it moves,
            and is saved, optimized and synchronized with it.

    Raises:
        TypeError: `where` is not callable.
        ValueError: `density` is not in (0, 1].
        amanda.Error: when a convolution runs that needs a new gate after `parameters` was called, or whose gate is for
            other numbers of channels.
    """

    needs_eager = UNSEEN
    _speaker = "pruning"
    _groupings = counted_groupings(
        ChannelRow,
        [
            number_column("samples", "samples"),
            number_column("channels", "channels"),
            number_column("kept", "kept"),
            Column("density", lambda row: f"{row.density:.1%}", field="density"),
        ],
        density="float64",
    )

    def __init__(self, density: float = 0.5, *, where: Callable[[OpContext], object] = lambda context: True) -> None:
        super().__init__()
        if not isinstance(density, (int, float)) or not 0 < density <= 1:
            raise ValueError(
                f"[pruning] density is the share of channels that stays, above 0 and up to 1; got {density!r}"
            )
        self.density = density
        self.gates = torch.nn.ModuleDict()
        self._where = Where(self._speaker, where)
        self._complete = False  # the gates were handed out
        self._passes: Passes[list[torch.Tensor]] = Passes(list)  # the saliencies of a pass
        self._thread = _Thread()
        self._skips = Skips(self._speaker)
        self._sums: dict[Place, list[torch.Tensor | int]] = {}
        self._lock = locks.lock()  # guards gates and sums
        self.add_inst_for_op(self._analyze, ops=amanda_ops.convolution)
        self.add_inst_for_op(self._analyze_norm, ops="batch_norm", optional=True)

    def prepare(self, program: Callable[..., object], /, *inputs: Any, **keywords: Any) -> None:
        """Runs ``program(*inputs, **keywords)`` once, to make the gates of all its convolutions.

        Random states and the buffers of a model are put back afterwards, as by `amanda.points`. The run does not count in
        the results.
        """
        sums = dict(self._sums)
        with preserved(program), torch.no_grad(), apply(self):
            program(*inputs, **keywords)
        self._sums = sums

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of the gates, for an optimizer. No gate is made from now on.

        Raises:
            amanda.Error: there are no gates yet.
        """
        if not self.gates:
            raise Error("[pruning] there are no gates yet; make them by prepare(model, x)")
        self._complete = True
        return iter(list(self.gates.parameters()))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Weights and biases of the gates, by names such as ``"layer1/conv1.weight"``."""
        return self.gates.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads what `state_dict` returned, and makes the gates that are not there yet."""
        for name, weight in state.items():
            gate, _, kind = name.rpartition(".")
            if kind == "weight" and gate not in self.gates:
                self._add_gate(gate, weight.shape[1], weight.shape[0], weight)
        self.gates.load_state_dict(state)

    def penalty(self) -> torch.Tensor:
        """The sum of ``g`` over the convolutions of this thread's last pass and their channels; the mean over samples.

        A pass is one call of the outermost module. The paper adds 1e-8 times this to the loss, so that channels get
        unimportant. The last pass's graph is kept until the next one begins.

        Raises:
            amanda.Error: nothing was gated in it.
        """
        saliencies = self._passes.last
        if not saliencies:
            raise Error("[pruning] penalty() is of the last pass, and no gated convolution ran in it on this thread")
        return torch.stack([saliency.sum(-1).mean() for saliency in saliencies]).sum()

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._sums.clear()
        self._skips.reset()

    def on_enter(self) -> None:
        self._passes.open()

    def on_exit(self, error: BaseException | None) -> None:
        self._passes.close()
        self._thread.gated.clear()
        if error is None:
            self._where.tell(self)

    def _rows(self, by: GroupBy) -> list[ChannelRow]:
        with self._lock:
            return grouped(ChannelRow, [ChannelRow(*place, *map(int, sums)) for place, sums in self._sums.items()], by)

    def _analyze(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        x, weight = context.inputs[:2]
        if not self._where(context) or self._skips.unreadable(x):
            return
        gate = self._gate_of(context, x.shape[1 - weight.dim()], weight)
        spatial = tuple(range(2 - weight.dim(), 0))
        place = Place.of(context)
        context.insert_before_op(
            self._predict, ["input"], with_run=True, differentiable=True, gate=gate, spatial=spatial, place=place
        )
        context.insert_after_op(self._multiply, with_run=True, differentiable=True)

    def _analyze_norm(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        context.insert_before_op(self._take_back, inputs=["input"], with_run=True, differentiable=True)
        context.insert_after_op(self._multiply_again, with_run=True, differentiable=True)

    def _gate_of(self, context: OpContext, channels: int, weight: torch.Tensor) -> torch.nn.Linear:
        name = context.parameter_names[1]
        if not isinstance(name, str):  # it is computed
            name = f"{context.module_path}.weight" if context.module_path else f"{context.op_id:016x}.weight"
        # Without the name that DistributedDataParallel gives a model.
        name = name.removeprefix("module.").removesuffix(".weight").replace(".", "/")
        with self._lock:
            if name not in self.gates:
                if self._complete:
                    raise Error(
                        f"[pruning] {context.op.name} with {name!r} has no gate, and parameters() has handed out the "
                        "gates; before that, call prepare with inputs that reach all convolutions"
                    )
                self._add_gate(name, channels, weight.shape[0], weight)
            gate = self.gates[name]
            assert isinstance(gate, torch.nn.Linear)
        if gate.weight.shape != (weight.shape[0], channels):
            raise Error(
                f"[pruning] gate {name!r} is for {gate.in_features} channels to {gate.out_features}, and {context.op.name} "
                f"has {channels} to {weight.shape[0]}; use a tool for each model"
            )
        return gate

    def _add_gate(self, name: str, inputs: int, outputs: int, like: torch.Tensor) -> None:
        with of_torch.lasting():
            gate = torch.nn.Linear(inputs, outputs, device=like.device, dtype=like.dtype)
            torch.nn.init.kaiming_normal_(gate.weight)
            gate.bias.fill_(1)
        self.gates._modules[name] = gate  # not as an item: it may be named as a method of ModuleDict, "values"

    def _predict(
        self, x: torch.Tensor, run: dict[str, Any], gate: torch.nn.Linear, spatial: tuple[int, ...], place: Place
    ) -> None:
        saliency = torch.relu(gate(x.abs().mean(spatial)))
        winners = saliency.topk(math.ceil(self.density * gate.out_features), dim=-1).indices
        factors = saliency * torch.zeros_like(saliency).scatter(-1, winners, 1)
        saliencies, recomputed = self._passes.now()
        if not recomputed:
            saliencies.append(saliency)
            self._add(place, factors.detach())
        run["factors"] = factors[(..., *[None] * len(spatial))]

    def _multiply(self, output: torch.Tensor, run: dict[str, Any]) -> torch.Tensor:
        factors = run["factors"].to(output.dtype)
        gated = output * factors
        self._thread.remember(_Gated(StorageWeakRef(_storage(gated)), _version(gated), output, factors))
        return gated

    def _take_back(self, x: torch.Tensor, run: dict[str, Any]) -> torch.Tensor | None:
        gated = self._thread.find(x)
        if gated is None:
            return None
        run["factors"] = gated.factors
        return gated.output

    def _multiply_again(self, output: torch.Tensor, run: dict[str, Any]) -> torch.Tensor | None:
        return output * run["factors"] if "factors" in run else None

    def _add(self, place: Place, factors: torch.Tensor) -> None:
        factors = of_torch.plain(factors)
        with self._lock, of_torch.untransformed():
            more = factors.shape[:-1].numel(), factors.numel(), factors.count_nonzero()
            sums = self._sums.get(place, [0] * 3)
            self._sums[place] = [sum + one for sum, one in zip(sums, more, strict=True)]


class _Gated(NamedTuple):
    """The output of a convolution that was multiplied, as long as it lives."""

    storage: Any
    version: int
    output: torch.Tensor  # before
    factors: torch.Tensor


class _Thread(threading.local):
    """The tensors that this thread has gated."""

    def __init__(self) -> None:
        self.gated: list[_Gated] = []

    def remember(self, gated: _Gated) -> None:
        self.gated = [each for each in self.gated if not each.storage.expired()]
        self.gated.append(gated)

    def find(self, x: torch.Tensor) -> _Gated | None:
        """The gated tensor that `x` is; None if it is none of them, or has changed in place."""
        for each in self.gated:
            if each.storage.cdata == _storage(x)._cdata and each.version == _version(x):
                return each if each.output.shape == x.shape else None
        return None


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return torch.func.debug_unwrap(tensor).untyped_storage()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
