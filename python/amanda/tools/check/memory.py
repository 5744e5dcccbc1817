"""The memory of a tensor, of which something is remembered. It is not kept alive."""

from __future__ import annotations

from typing import Any

from .gradients import storage


class Memory:
    """A weak reference. Weak references to a tensor itself may end before it does."""

    def __init__(self, tensor: Any) -> None:
        from amanda.toolkit.torch import StorageWeakRef

        self._reference = StorageWeakRef(tensor.untyped_storage())
        self._identity = storage(tensor)

    def is_of(self, tensor: Any) -> bool:
        """The tensor is in the same memory, which has been alive since."""
        return not self._reference.expired() and storage(tensor) == self._identity
