"""Profile: the time and the output size of every operator, as tables, with the source code, and as a trace."""

from .profile import Profile
from .rows import GroupBy, Row

__all__ = ["GroupBy", "Profile", "Row"]
