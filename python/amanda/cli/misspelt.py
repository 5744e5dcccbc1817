"""Suggestions for misspelt commands and options of a command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from amanda.core.near_names import did_you_mean

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$")
_PROGRAMS = (".py", ".pt2", ".onnx")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<given>--[^\s=]+)")


def hint(parser: argparse.ArgumentParser, message: str) -> str:
    """The end of a message of argparse that suggests what may be meant. Empty if nothing is similar."""
    if choice := _CHOICE.search(message):
        if message.startswith("argument COMMAND:") and choice["given"].endswith(_PROGRAMS):
            return f"; a command comes before the program, as in amanda profile {choice['given']}"
        return did_you_mean(choice["given"], re.findall(r"[^', ]+", choice["known"]))
    if unknown := _UNKNOWN.match(message):
        known = (option.removeprefix("--") for option in options(parser))
        return did_you_mean(unknown["given"].removeprefix("--"), known, "--{}")
    return ""


def after_program(parser: argparse.ArgumentParser, program: Sequence[str]) -> str:
    """A note on options of the command that come after a script, which gets them. Empty if there are none, or if the script
    may expect them: it has the word, or reads `argv` itself."""
    if not program or not program[0].endswith(".py"):
        return ""
    given = dict.fromkeys(argument.partition("=")[0] for argument in program[1:])
    own = [option for option in given if option in options(parser)]
    with open(program[0], encoding="utf-8", errors="replace") as script:
        words = set(re.findall(r"\w+", script.read())) if own else set()
    unknown = [option for option in own if option.removeprefix("--").replace("-", "_") not in words]
    if not unknown or "argv" in words:
        return ""
    return (
        f"{parser.prog}: {unknown[0]} comes after {program[0]}, which gets it; options of {parser.prog} come before it"
    )


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The long options that a parser knows."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
