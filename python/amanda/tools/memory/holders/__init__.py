"""Who holds a tensor: the way from a variable of the program to it. Import it where an operator has run."""

from .names import Name
from .search import Search

__all__ = ["Name", "Search"]
