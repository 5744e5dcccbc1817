"""The undocumented names of inductor that the driver uses. Its import takes seconds, so they are looked up when inductor is
to compile. Where one is missing, inductor compiles as it does by itself."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from amanda.drivers.torch.private_names import PrivateNames
from amanda.drivers.torch_compile import port

names = PrivateNames("compile", "")  # none is required
_MEMORY = "torch._inductor.memory"
_ORDER = "reorder_for_peak_memory"  # of it: orders the steps of a graph's code, after they are fused
#: A step of a graph's code: an operator that is called, or a fused loop.
Step = Any


def is_imported() -> bool:
    return _MEMORY in sys.modules


# ---- the order of steps -----------------------------------------------------------------------------------------------

Order = Callable[[Sequence[Step], Callable[[], Sequence[Step]], "Outputs"], list[Step]]
Outputs = frozenset[str]


@contextlib.contextmanager
def ordering(order: Order) -> Iterator[None]:
    """A context in which inductor takes the order of steps from `order`. That gets the steps, a function that returns
    them in inductor's own order, after which `Memory` may be asked, and the names of the graph's outputs. Enter it under
    compile_lock.
    """
    module: Any = names.find(_MEMORY, "__name__") and sys.modules[_MEMORY]
    own = getattr(module, _ORDER, None)
    if own is None:
        yield
        return

    def ordered(steps: list[Step], *args: Any, **kwargs: Any) -> list[Step]:
        def by_inductor() -> Any:
            return own(steps, *args, **kwargs)

        try:
            return order(steps, by_inductor, frozenset(args[-1]))
        except (AttributeError, IndexError, KeyError):  # the names of another version
            return list(by_inductor())

    setattr(module, _ORDER, ordered)
    try:
        yield
    finally:
        setattr(module, _ORDER, own)


def operator_of(step: Step) -> Any:
    """The operator that a step calls; None if it is not one of the dispatcher's."""
    return getattr(step.node, "op_overload", None)


def is_part(step: Step) -> bool:
    """True if it takes a member of an operator's results."""
    return type(step.node).__name__ == "MultiOutput"


def is_call(step: Step) -> bool:
    """True if it is not a loop that inductor writes: such loops, if they are neighbors, are compiled together for CPUs."""
    return bool(step.is_extern() or step.is_template() or step.is_foreach())


def is_nothing(step: Step) -> bool:
    return type(step).__name__ == "NopKernelSchedulerNode"


def is_on_cpu(step: Step) -> bool:
    device = step.get_device()
    return device is not None and device.type == "cpu"


def run_after(step: Step, before: Step) -> None:
    """Before inductor orders them."""
    from torch._inductor.dependencies import WeakDep

    step.add_fake_dep(WeakDep(before.get_outputs()[0].get_name(), step.get_name(), is_fake=True))


def predecessors(step: Step) -> Any:
    """After inductor has ordered them: the set of the steps that a step must follow."""
    return step.mpi_node.pred_nodes


class Memory:
    """How many bytes are in use while these steps run one after the other, as inductor estimates it."""

    def __init__(self, steps: Sequence[Step], outputs: Outputs) -> None:
        self._outputs = outputs
        made = {buffer.get_name() for step in steps for buffer in step.get_outputs()}
        given = {
            buffer.get_name(): buffer.mpi_buffer
            for step in steps
            for buffer in step.mpi_node.pred_buffers
            if buffer.get_name() not in made
        }
        self._users = {name: len(info.succ_nodes) for name, info in given.items()}
        self._bytes = sum(info.size_free for info in given.values())

    def with_results_of(self, step: Step) -> int:
        """In use while the step runs, if it is the next one."""
        return int(self._bytes + sum(buffer.mpi_buffer.size_alloc for buffer in step.get_outputs()))

    def run(self, step: Step) -> None:
        self._bytes = self.with_results_of(step)
        for buffer in step.get_outputs():
            self._users[buffer.get_name()] = len(buffer.mpi_buffer.succ_nodes)
            self._free(buffer)
        for buffer in step.mpi_node.pred_buffers:
            self._users[buffer.get_name()] -= 1
            self._free(buffer)

    def _free(self, buffer: Any) -> None:
        name = buffer.get_name()
        if not self._users[name] and name not in self._outputs:
            self._bytes -= buffer.mpi_buffer.size_free


# ---- caches on disk ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def caching_effects(gm: fx.GraphModule) -> Iterator[None]:
    """A context in which inductor's caches take the graph, though it has operators that run in their order. PyTorch's own
    operators of higher order that may not be cached keep it out."""
    config = names.find("torch._inductor", "config")
    marked = getattr(config, "unsafe_marked_cacheable_functions", None)
    if marked is None or any(map(_is_uncached, _targets(gm))):
        yield
        return
    name = f"{port.with_effects.__module__}.{port.with_effects.__name__}"
    with config.patch(unsafe_marked_cacheable_functions={**marked, name: "1"}):
        yield


def _targets(gm: fx.GraphModule) -> Iterator[Any]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from (node.target for node in module.graph.nodes)


def _is_uncached(target: Any) -> bool:
    return isinstance(target, port.HigherOrderOperator) and not target.cacheable()
