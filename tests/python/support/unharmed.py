"""What the tests of regimes share: tools that must change nothing, a check that they don't, and a thread's state."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import amanda
import torch


class Look(amanda.Tool):
    """Looks at every operator of `ops`, forward and backward, in all ways there are.

    `ran` holds the forward operators in their order, `count` what ran: "relu", "ReluBackward0", "relu (recompute)". With
    `hand_back`, its routines return what they were given.
    """

    def __init__(self, ops: Any = None, *, nested: bool = False, hand_back: bool = False) -> None:
        super().__init__()
        self.hand_back = hand_back
        self.clear()
        for backward in (False, True):
            for require_outputs in (False, True):
                self.add_inst_for_op(
                    self.analyse, ops=ops, nested=nested, backward=backward, require_outputs=require_outputs
                )

    def clear(self) -> None:
        self.ran: list[str] = []
        self.ended: list[str] = []
        self.count: Counter[str] = Counter()
        self.analysed: Counter[str] = Counter()

    def analyse(self, context: amanda.OpContext) -> None:
        backward = context.is_backward()
        name = (context.backward_op if backward else context.op).__name__
        self.analysed[name] += 1
        _ = (context.inputs, context.module_path, context.source)
        _ = context.has_outputs() and context.outputs
        _ = backward and context.grad_outputs
        _ = context.has_grad_inputs() and context.grad_inputs
        if context.has_grad_inputs() if backward else context.has_outputs():
            return
        if backward:
            context.insert_before_backward_op(self.before, name=name, forward=False)
            context.insert_after_backward_op(self.after, name=name, forward=False)
        else:
            name += " (recompute)" if context.is_recompute else ""
            context.insert_before_op(self.before, name=name, forward=True)
            context.insert_after_op(self.after, name=name, forward=True)

    def before(self, *operands: Any, name: str, forward: bool) -> Any:
        self.count[name] += 1
        if forward:
            self.ran.append(name)
        return operands if self.hand_back else None

    def after(self, *operands: Any, name: str, forward: bool) -> Any:
        if forward:
            self.ended.append(name)
        return operands if self.hand_back else None


class Itself(amanda.Tool):
    """Replaces every operator of `ops` that can be by itself: forward operators, backward operators, or both.

    Of forward operators the outermost; with `inner` those that have kernels of their own, wherever they are called.
    `kept` has the names of those that cannot be.
    """

    def __init__(self, ops: Any = None, *, forward: bool = True, backward: bool = True, inner: bool = False) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.kept: set[str] = set()
        self.inner = inner
        if forward:
            self.add_inst_for_op(self.analyse, ops=ops, nested=inner)
        if backward:
            self.add_inst_for_op(self.analyse_backward, ops=ops, backward=True)

    def analyse(self, context: amanda.OpContext) -> None:
        if self.inner and is_composite(context.op):
            return
        try:
            context.replace_op(self.run, op=context.op, allow_view=True)
        except amanda.Error as error:
            if "no other value can replace its result" not in str(error):
                raise
            self.kept.add(context.op.__name__)

    def analyse_backward(self, context: amanda.OpContext) -> None:
        if context.backward_op.__name__ != "AccumulateGrad":
            context.replace_backward_op(self.run, op=context.backward_op)

    def run(self, *operands: Any, op: Any) -> Any:
        self.count[op.__name__] += 1
        return op(*operands)


def is_composite(op: Any) -> bool:
    """Is it made of other operators, which record its gradient?"""
    name = f"{op.name}.{op.overload}" if op.overload else op.name
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(
        name, "CompositeImplicitAutograd"
    )


TOOLS = {
    "look": Look,
    "look inside": lambda: Look(nested=True),
    "look at some": lambda: Look("*"),  # a pattern that fits all goes the way of names
    "hand back": lambda: Look(hand_back=True),
}


def bits(value: Any) -> Any:
    """What two runs must agree on: of a tensor its class, metadata and every bit; containers member by member."""
    if isinstance(value, torch.Tensor):
        return (type(value).__name__, *tensor_bits(value))
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return value


def tensor_bits(value: torch.Tensor) -> tuple[Any, ...]:
    known: tuple[Any, ...] = (value.dtype, value.device, value.layout, value.requires_grad, value.is_leaf)
    with torch.no_grad():
        value = value if value.is_quantized else value.detach()
        if value.is_quantized:
            return (*known, value.qscheme(), value.stride(), value.int_repr().tolist(), repr(value))
        if value.is_nested:
            return (*known, [tensor_bits(each) for each in value.unbind()])
        if value.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            compressed = value.layout in (torch.sparse_csr, torch.sparse_bsr)
            indices = (value.crow_indices(), value.col_indices()) if compressed else (
                value.ccol_indices(), value.row_indices())  # fmt: skip
            return (*known, value.shape, [tensor_bits(each) for each in (*indices, value.values())])
        if value.is_sparse:
            return (
                *known,
                value.shape,
                value.is_coalesced(),
                tensor_bits(value._indices()),
                tensor_bits(value._values()),
            )
        known += (value.shape, value.stride(), value.is_conj(), value.is_neg())
        if hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            return (*known, [bits(getattr(value, name)) for name in names])
        if value.is_meta:
            return known
        plain = value.as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous().cpu()
        return (*known, plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def reusable(model: torch.nn.Module) -> Callable[[], torch.nn.Module]:
    """Gives the model as it is now, each time: a new one would have to be found, by a search through all objects."""
    state = copy.deepcopy(model.state_dict())

    def as_new() -> torch.nn.Module:
        model.load_state_dict(state)
        for parameter in model.parameters():
            parameter.grad = None
        return model

    return as_new


def run(program: Any) -> Any:
    torch.manual_seed(0)
    return bits([program(), torch.get_rng_state(), torch.cuda.get_rng_state_all()])


def check_unharmed(
    tool: Look, program: Callable[[], Any], *, runs: int = 2, once: bool = False, all_end: bool = True
) -> Look:
    """The program has the same results, to the bit, under the tool, in its first and in later runs, and afterwards.

    Returns the tool, which knows what ran in the last of them. `once`: the program takes its time; run it twice in all.
    `all_end=False`: some operator is left by an exception, as where a checkpoint stops early.
    """
    expected = run(program)
    assert once or run(program) == expected, "the program has to give the same each time"
    state = thread_state()
    with amanda.apply(tool):
        for _ in range(1 if once else runs):
            tool.clear()
            assert run(program) == expected
    assert once or run(program) == expected
    assert thread_state() == state
    assert not all_end or sorted(tool.ended) == sorted(tool.ran)
    return tool


def thread_state() -> dict[str, Any]:
    """Whatever of a thread an exception could leave changed."""
    autocast = {}
    for device in ("cpu", "cuda"):
        autocast[device] = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return {
        "included": repr(torch._C._dispatch_tls_local_include_set()),
        "excluded": repr(torch._C._dispatch_tls_local_exclude_set()),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "forward grad": torch._C._is_fwd_grad_enabled(),
        "autocast": autocast,
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast nesting": autocast_nesting(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function state": torch._C._is_torch_function_enabled(),
        "functorch level": torch._C._functorch.maybe_current_level(),
        "anomaly": torch.is_anomaly_enabled(),
        "saved-tensor hooks": repr(torch._C._autograd._top_saved_tensors_default_hooks(True)),
        "amanda": (amanda.is_enabled(), amanda.is_cache_enabled()),
        "node": torch._C._current_autograd_node(),
        "graph task": torch._C._current_graph_task_id(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting
