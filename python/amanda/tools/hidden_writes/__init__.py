"""WriteCheck: finds writes to tensors that change no version. `amanda.apply(..., check_writes=True)` makes one."""

from .finding import HiddenWrite
from .write_check import WriteCheck

__all__ = ["HiddenWrite", "WriteCheck"]
