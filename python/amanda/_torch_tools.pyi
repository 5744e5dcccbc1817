"""What tools do with PyTorch's tensors. Use it through `amanda.tools`."""
from __future__ import annotations
import collections.abc
import torch
import torch.distributed.distributed_c10d
import typing
import typing_extensions
__all__: list[str] = ['CollectiveRecorder', 'FakeQuantizationState', 'FakeQuantizer', 'GradientRecorder', 'GraphNodes', 'MemoryRecorder', 'MovingRange', 'NodeMakers', 'NonzeroRows', 'Read', 'Reads', 'StatisticsRecorder', 'Storages', 'UnwrittenMemory', 'Writes', 'are_finite', 'has_tangent', 'keeps_incoming', 'output_bytes']
class CollectiveRecorder:
    """Hears of the collectives of torch.distributed."""
    def __init__(self) -> None: ...
    def reset(self) -> None: ...
    def rows(self) -> list[tuple[str, str, int, list[tuple[int, int]]]]:
        """Operator, name of the group, time of `time.perf_counter_ns`, and the times that the process was inside, in the order of their starts."""
    def start(self) -> None:
        """From now on. Calls nest."""
    def stop(self) -> None: ...
    def waited(self, work: torch.distributed.distributed_c10d.Work, start_ns: typing.SupportsInt | typing.SupportsIndex, end_ns: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """A program has waited for this work. False: it belongs to no collective that was heard of."""
class FakeQuantizationState:
    """What all operands of a tool share."""
    observe: bool
    quantize: bool
    def __init__(self) -> None: ...
    def forget(self) -> None:
        """No range is followed any more."""
class FakeQuantizer:
    """Quantizes an operand in C++."""
    def __init__(self, state: FakeQuantizationState) -> None: ...
    def follow(self, range: MovingRange, generation: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def routine(self) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`. It declines until it follows a range, and where that can't be done."""
    @property
    def generation(self) -> int: ...
class GradientRecorder:
    """What GradientStatistics has found of eager backward operators."""
    def __init__(self) -> None: ...
    def reset(self) -> None: ...
    def routine(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`. It declines where something must be read in Python."""
    def rows(self) -> list[tuple[int, int, typing.Annotated[list[tuple[int, list[tuple[int, int, int, int, float | None, int, float, float, float]]]], "FixedSize(2)"]]]:
        """Id, time of the first run, and for both sides calls and the fields of each gradient's norms."""
class GraphNodes:
    """The numbers of the nodes behind some tensors, without those of leaves."""
    def __init__(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None: ...
    def has(self, number: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
class MemoryRecorder:
    """What PeakMemory has heard from PyTorch's allocators."""
    @staticmethod
    def enter(site: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, before an operator."""
    @staticmethod
    def leave(site: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """The routine after it."""
    @staticmethod
    def running() -> int:
        """The operator that runs on this thread, or that an exception has left; -1: none."""
    def __init__(self) -> None: ...
    def blocks(self, device: str, at_peak: bool) -> list[tuple[int, int, int, bool, bool, int, bool, int]]:
        """The blocks at the peak, or those that are alive now, in the order of the fields of `_Block`."""
    def devices(self) -> list[tuple[str, int, int, int, int, int]]:
        """Name, bytes at the peak and now, number and bytes of allocations, bytes freed."""
    def forget_all_but(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None:
        """Forgets all live blocks but those of these tensors and their gradients."""
    def last_serial(self) -> int:
        """The serial of the newest block."""
    def listen(self) -> bool:
        """On this thread. False: another profiler does."""
    def listeners(self) -> int:
        """On how many threads it listens."""
    def mark(self, tensor: torch.Tensor, mark: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """Notes what a tensor's live block holds. False: it is not known."""
    def reset(self) -> None: ...
    def serials_of(self, tensors: collections.abc.Sequence[torch.Tensor]) -> list[int]:
        """The serials of the live blocks of these tensors; 0 where none is known."""
    def timeline(self, device: str) -> list[tuple[int, int]]:
        """Time in nanoseconds, and bytes."""
    def unlisten(self) -> None: ...
class MovingRange:
    """Continues, in its buffers, what an observer has begun."""
    def __init__(self, min: torch.Tensor, max: torch.Tensor, averaging_constant: typing.SupportsFloat | typing.SupportsIndex, quant_min: typing.SupportsInt | typing.SupportsIndex, quant_max: typing.SupportsInt | typing.SupportsIndex, symmetric: bool, by_channel: bool, eps: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    def fake_quantized(self, value: torch.Tensor) -> torch.Tensor | None:
        """The value after quantization; None: the observer must be asked."""
    def look_at(self, value: torch.Tensor) -> bool:
        """Includes the value; False: the observer itself must look at it."""
    def qparams(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Scale and zero point; None: the observer must be asked."""
    def retire(self) -> None:
        """The observer goes on by itself."""
class NodeMakers:
    """Which operator made a node of the backward graph."""
    def __init__(self) -> None: ...
    def beginning(self) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, before an operator."""
    def clear(self) -> None: ...
    def ending(self, maker: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """After the operator, which the caller numbers."""
    def of(self, number: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        """The operators that made a node with this `_sequence_nr()`, on any thread."""
class NonzeroRows:
    """Which rows of leaves have got a gradient that is not zero, or NaN."""
    def __init__(self) -> None: ...
    def add(self, number: typing.SupportsInt | typing.SupportsIndex, leaf: torch.Tensor, rows: torch.Tensor) -> None:
        """From now on, the gradients of this leaf are read. `rows`: of bool, contiguous, on the host; true is written where an element of the gradient is not zero."""
    def clear(self) -> None:
        """Forgets all leaves."""
    def routine(self) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, before AccumulateGrad. It declines where the gradient must be read in Python, and the first gradient of each leaf."""
    def take(self) -> list[tuple[int, bool]]:
        """The numbers of the leaves that got a gradient since the last call, and whether it was not zero."""
class Read:
    """A tensor as an operator consumed it."""
class Reads:
    """How many results were read, and how many had a tangent."""
    def __init__(self) -> None: ...
    def add_results(self, count: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def reset(self) -> None: ...
    @property
    def results(self) -> int: ...
    @property
    def tangents(self) -> int: ...
class StatisticsRecorder:
    """What OpStatistics has found of eager operators."""
    def __init__(self) -> None: ...
    def reset(self) -> None: ...
    def routine(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`. It declines where something must be read in Python."""
    def routine_of_runs(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """The same, of an operator whose results have no values."""
    def routine_where_unwritten(self, op_id: typing.SupportsInt | typing.SupportsIndex, memory: UnwrittenMemory) -> typing_extensions.CapsuleType:
        """The same, where a result may be in memory that has no values yet."""
    def rows(self) -> list[tuple[int, int, int, list[tuple[int, int, int, int, int, int, float, float, float, float]]]]:
        """Id, time of the first run, calls, and the fields of each output's summary."""
class Storages:
    """Which operators made the tensors that are alive."""
    @staticmethod
    def declined_reads() -> list[Read]:
        """What the operator consumed whose second routine alone has just declined."""
    def __init__(self, max_views: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def add_node(self, node: typing.SupportsInt | typing.SupportsIndex) -> None:
        """The graph has it now."""
    def is_new_outside(self, tensor: torch.Tensor) -> bool:
        """Is the tensor from outside, and was it not consumed before?"""
    def make(self, tensor: torch.Tensor, maker: typing.SupportsInt | typing.SupportsIndex, reads: collections.abc.Sequence[Read]) -> None: ...
    def read(self, tensor: torch.Tensor, consumer: typing.SupportsInt | typing.SupportsIndex, position: typing.SupportsInt | typing.SupportsIndex, member: typing.SupportsInt | typing.SupportsIndex, outside: typing.SupportsInt | typing.SupportsIndex) -> tuple[Read, list[int]]:
        """The tensor is consumed: what was read, and its producers. outside: where it comes from, if it is new; or -1."""
    def reset(self) -> None: ...
    def routines(self, node: typing.SupportsInt | typing.SupportsIndex, written: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], returned: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> tuple[typing_extensions.CapsuleType, typing_extensions.CapsuleType]:
        """For `_core.NativeRoutine`, before and after an operator. They decline where the graph grows."""
    def sizes(self) -> list[tuple[int, int]]:
        """For each storage, how many layouts and last writes are kept."""
    def write(self, tensor: torch.Tensor, writer: typing.SupportsInt | typing.SupportsIndex) -> None: ...
class UnwrittenMemory:
    """Which memory has no values yet."""
    def __init__(self) -> None: ...
    def allocating(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, after an operator, with its results."""
    def clear(self) -> None: ...
    def copying(self, source: typing.SupportsInt | typing.SupportsIndex, into: typing.SupportsInt | typing.SupportsIndex | None) -> typing_extensions.CapsuleType:
        """After an operator that copies an input, into another one or into its result."""
    def find(self, tensor: torch.Tensor) -> tuple[int, bool] | None:
        """The operator that allocated it, and was some of it written? None: it has values, as far as is known."""
    def growing(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """Before an operator, with the inputs that it will make larger."""
    def mark(self, tensor: torch.Tensor, marks: torch.Tensor) -> None:
        """The elements that an operator has written."""
    def writing(self, inputs: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> typing_extensions.CapsuleType:
        """After an operator that is shown the inputs that it has written."""
    def writing_some(self) -> typing_extensions.CapsuleType:
        """After an operator that has written some elements of its first input. It declines where `mark` has to tell which."""
    @property
    def is_empty(self) -> bool: ...
class Writes:
    """The operators that wrote to each storage."""
    def __init__(self) -> None: ...
    def all(self) -> list[list[tuple[int, int, int | None, int, int, list[int] | None, list[int]]]]:
        """The writes to each live storage."""
    def beginning(self, site: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, before an operator, with the inputs that it writes to."""
    def ending(self) -> typing_extensions.CapsuleType:
        """After the operator."""
    def take_begun(self) -> tuple[int, list[tuple[int, int | None, torch.Tensor]]] | None:
        """The operator that began on this thread and did not end, with the tensors that it was to write to. None: none."""
    def to(self, storage: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[int, int, int | None, int, int, list[int] | None, list[int]]]:
        """The writes to a storage, which `_cdata` of it names."""
def are_finite(inf: bool, written: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], reads: Reads | None = None) -> typing_extensions.CapsuleType:
    """A routine for `_core.NativeRoutine`. It declines where an operand has a NaN (with `inf` an infinity, too), or can't be read in C++. `written`: inputs that it reads, too, by position, after an operator that returns nothing."""
def has_tangent(tensor: torch.Tensor) -> bool:
    """Does the tensor carry another one, of forward-mode differentiation? What it wraps is not asked."""
def keeps_incoming() -> typing_extensions.CapsuleType:
    """A routine after AccumulateGrad. It declines where the leaf's gradient may have other elements than the one that came in."""
def output_bytes() -> typing_extensions.CapsuleType:
    """For `_tools.ProfileRecorder`."""
