"""Profile: the time and the output size of every operator, as tables, with the source code, and as a trace."""

from amanda.tools.profile.profile import Profile
from amanda.tools.profile.rows import GroupBy, Row

__all__ = ["GroupBy", "Profile", "Row"]
