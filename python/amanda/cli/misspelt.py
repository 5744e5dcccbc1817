"""Suggestions for misspelt commands and options of a command line."""

from __future__ import annotations

import argparse
import re

from amanda.core.near_names import did_you_mean

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<given>--[^\s=]+)")


def hint(parser: argparse.ArgumentParser, message: str) -> str:
    """The end of a message of argparse that suggests a command or an option. Empty if nothing is similar."""
    if choice := _CHOICE.search(message):
        return did_you_mean(choice["given"], re.findall(r"[^', ]+", choice["known"]))
    if unknown := _UNKNOWN.match(message):
        return did_you_mean(unknown["given"], options(parser), "{}")
    return ""


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The long options that a parser knows."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
