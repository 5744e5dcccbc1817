"""Tools that ship with Amanda."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred

if not TYPE_CHECKING:
    __getattr__ = deferred.imports(__name__)
