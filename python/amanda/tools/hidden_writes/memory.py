"""The memory that operators have seen, and the tensors in it. Keeps none of them alive. Imports torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.weak import TensorWeakRef

from amanda.toolkit import Place
from amanda.toolkit.torch import StorageWeakRef

from . import checksum


class Seen(NamedTuple):
    """The last operator that saw a tensor."""

    place: Place
    made_it: bool  # or has read it


@dataclasses.dataclass(slots=True)
class Alias:
    """A tensor, as it was when the checksum of its memory was taken."""

    tensor: TensorWeakRef | None  # a result that the program has not used yet has none
    memory: Memory
    seen: Seen
    checksum: int
    version: int | None
    layout: tuple[object, ...]
    node: int | None  # the number of the autograd node that made it

    def update(self, tensor: torch.Tensor) -> None:
        self.checksum, self.version, self.layout = self.memory.checksum, version_of(tensor), _layout(tensor)

    def missed(self, tensor: torch.Tensor, found: int) -> bool:
        """True if its memory has changed, and its version has not."""
        return self.checksum != found and self.version == version_of(tensor)


@dataclasses.dataclass(slots=True)
class Memory:
    """A storage, as it was when an operator last saw it."""

    storage: StorageWeakRef
    address: int
    size: int
    checksum: int
    seen: Seen  # the last operator
    version: int | None  # of the tensor through which that saw it
    aliases: list[Alias] = dataclasses.field(default_factory=list)
    result: Alias | None = None  # the tensor as which an operator made it
    writer: Place | None = None  # the operator that wrote to it last, and made the checksum what it is

    def living(self) -> Iterator[tuple[Alias, torch.Tensor]]:
        for alias in self.aliases:
            tensor = alias.tensor() if alias.tensor is not None else None
            if tensor is not None and tensor.untyped_storage()._cdata == self.address:
                yield alias, tensor


def version_of(tensor: torch.Tensor) -> int | None:
    """None for tensors of inference mode."""
    return None if tensor.is_inference() else tensor._version


def checksum_of(tensor: torch.Tensor) -> int:
    return checksum.of(tensor.untyped_storage())


def has_elements(tensor: torch.Tensor) -> bool:
    return bool(math.prod(tensor.shape))


def node_number(tensor: torch.Tensor) -> int | None:
    node: Any = tensor.grad_fn
    return None if node is None else node._sequence_nr()


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """If it differs, the same values have another checksum."""
    storage = tensor.untyped_storage()
    return tensor.device, tensor.dtype, tensor.stride(), tensor.storage_offset(), storage.nbytes()


class Memories:
    """By address."""

    def __init__(self) -> None:
        self._memories: dict[int, Memory] = {}
        self._aliases: dict[int, Alias] = {}  # by address of the tensor
        self._grown = 1000

    def of(self, tensor: torch.Tensor) -> Memory | None:
        """The memory that it is in, if that is known."""
        storage = tensor.untyped_storage()
        known = self._memories.get(storage._cdata)
        return None if known is None or known.storage.expired() or known.size != storage.nbytes() else known

    def alias(self, tensor: torch.Tensor, node: int | None = None) -> Alias | None:
        """The tensor as it was seen last, if it was. `node`: it is a result of this one, whatever its own says."""
        found = self._aliases.get(id(tensor))
        if found is not None and found.tensor is not None and found.tensor() is tensor:
            return found
        memory = self.of(tensor)
        if memory is None or memory.result is None:
            return None
        number = node_number(tensor) if node is None else node
        return memory.result if number is not None and number == memory.result.node else None

    def has_moved(self, tensor: torch.Tensor, alias: Alias) -> bool:
        """True if it is in other memory than before, in the same layout, with the same version."""
        now = (version_of(tensor), _layout(tensor))
        return alias.memory is not self.of(tensor) and now == (alias.version, alias.layout)

    def is_hidden(self, tensor: torch.Tensor, memory: Memory) -> bool | None:
        """True if the memory of a tensor that is not known has changed, and no version shows it; None if that can't be
        known."""
        others = list(memory.living())
        if others:
            return all(alias.version == version_of(one) for alias, one in others)
        return True if memory.version == version_of(tensor) else None

    def note(self, tensor: torch.Tensor, found: int, seen: Seen | None, writer: Place | None = None) -> None:
        """An operator has seen it, with this checksum. `seen`: None if it only passes it on; `writer`: it wrote to it."""
        storage = tensor.untyped_storage()
        memory = self.of(tensor)
        if memory is None:
            if seen is None:
                return
            self._forget_dead()
            address = storage._cdata
            memory = Memory(StorageWeakRef(storage), address, storage.nbytes(), found, seen, version_of(tensor))
            self._memories[address] = memory
        if writer is not None or memory.checksum != found:
            memory.writer = writer
        memory.checksum, memory.seen, memory.version = found, seen or memory.seen, version_of(tensor)
        self.add(tensor, memory, seen)

    def made(self, tensor: torch.Tensor, found: int, seen: Seen) -> None:
        """An operator has made it. The program gets another handle on it than tools do."""
        self.note(tensor, found, seen)
        memory, number = self.of(tensor), node_number(tensor)
        if memory is not None and number is not None:
            memory.result = Alias(None, memory, seen, found, version_of(tensor), _layout(tensor), number)

    def add(self, tensor: torch.Tensor, memory: Memory, seen: Seen | None) -> None:
        """The tensor is in this memory, too, which is as it was noted."""
        alias = self._aliases.get(id(tensor))
        if alias is None or alias.tensor is None or alias.tensor() is not tensor or alias.memory is not memory:
            known = self.alias(tensor)
            last = memory.seen if known is None else known.seen
            alias = Alias(TensorWeakRef(tensor), memory, last, 0, None, (), None)
            self._aliases[id(tensor)] = alias
            memory.aliases.append(alias)
        alias.seen = seen or alias.seen
        living = list(memory.living())
        memory.aliases[:] = [one for one, _ in living]
        for one, other in living:
            one.update(other)
        if memory.result is not None and memory.result.node == node_number(tensor):
            memory.result.update(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        self._memories.pop(tensor.untyped_storage()._cdata, None)
        self._aliases.pop(id(tensor), None)

    def _forget_dead(self) -> None:
        if len(self._memories) < self._grown:
            return
        self._memories = {key: one for key, one in list(self._memories.items()) if not one.storage.expired()}
        self._aliases = {
            key: one for key, one in list(self._aliases.items()) if one.tensor is not None and one.tensor() is not None
        }
        self._grown = max(1000, 2 * len(self._memories))
