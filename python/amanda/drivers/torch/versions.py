"""The versions of torch that this version of amanda was made for. This file does not import torch."""

from __future__ import annotations

KNOWN = ("2.11", "2.12", "2.13", "2.14")  #: minor versions, in ascending order
#: What to do if this torch lacks something: "install torch 2.11, 2.12 or 2.13, or a newer amanda".
ADVICE = f"install torch {', '.join(KNOWN[:-1])} or {KNOWN[-1]}, or a newer amanda"


def minor_of(torch_version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(torch_version.split(".")[:2])


def is_at_least(minor: str, torch_version: str) -> bool:
    """True if this torch has that minor version, as "2.14", or a later one."""
    return _ordered(minor_of(torch_version)) >= _ordered(minor)


def is_newer_than_known(torch_version: str) -> bool:
    """True if this version of amanda was made before that of torch."""
    return _ordered(minor_of(torch_version)) > _ordered(KNOWN[-1])


def _ordered(minor: str) -> list[int]:
    return [int(number) for number in minor.split(".")]
