"""Tools that ship with Amanda."""

from typing import TYPE_CHECKING

from amanda import moved

if not TYPE_CHECKING:
    __getattr__ = moved.names_of(__name__)
