"""`amanda help` leads from a problem to a command."""

from __future__ import annotations

import argparse

from amanda.cli import guide
from amanda.cli.command import Command, Job


class Help(Command):
    """`amanda help`."""

    name = "help"
    description = "Prints the commands for a problem; without words, for all that it knows."
    example = "amanda help out of memory"
    takes_program = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs="*", help="the problem: my loss is nan")

    def begin(self, given: argparse.Namespace) -> Job:
        """Prints the answer."""
        found = guide.matching(given.words)
        if not given.words:
            text = guide.start_page()
        elif found:
            text = f"{guide.guide(found)}\n\n" + "\n".join(
                f"amanda {name} --help" for name in dict.fromkeys(task.command.split()[1] for task in found)
            )
        else:
            text = f"nothing is known of {' '.join(given.words)!r}; what there is:\n\n{guide.guide()}"
        return lambda: print(text)
