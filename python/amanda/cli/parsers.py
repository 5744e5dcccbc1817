"""The parsers of the command line: of all commands, and of one. A command is imported when it is given."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from amanda.cli import misspelt, statuses

if TYPE_CHECKING:
    from amanda.cli.command import Command


class Listed(NamedTuple):
    """A command that is not imported."""

    name: str
    help: str
    place: str  # "profile:ProfileLines", in amanda.cli

    def load(self) -> Command:
        """The command itself."""
        module, _, name = self.place.partition(":")
        command: Command = getattr(importlib.import_module(f"amanda.cli.{module}"), name)()
        return command


class Parser(argparse.ArgumentParser):
    """A parser of command lines. A mistake is one line, which the usage would bury; it suggests what may be meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(statuses.USAGE, f"{self.prog}: error: {message}{misspelt.hint(self, message)}\n")

    # Left over by a command, an option would be refused by the parser of commands, which knows no options.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given, unknown


class CommandParser(Parser):
    """The parser of a command. It has the command's options from the first use on."""

    def __init__(self, *, listed: Listed, **more: Any) -> None:
        super().__init__(**more)
        self._listed: Listed | None = listed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if self._listed is not None:
            listed, self._listed = self._listed, None
            listed.load().add_to(self)
        return super().parse_known_args(args, namespace)
