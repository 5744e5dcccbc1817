"""Locks that are free in a forked child, with what they guard in a consistent state: `lock()` and `rlock()`.

The routines of a tool run on every thread of the program, and a program may fork between any two of their lines. A lock of
`threading` that another thread holds then stays locked in the child.
"""

from amanda.core.fork import lock, rlock

__all__ = ["lock", "rlock"]
