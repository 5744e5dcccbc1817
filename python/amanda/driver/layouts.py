"""Layouts: the dimensions of activations and weights as letters."""

from __future__ import annotations

SPATIAL = {0: "", 1: "L", 2: "HW", 3: "DHW"}


def channels_first(rank: int) -> str | None:
    """ "NCHW" for 4 dimensions."""
    return "NC" + SPATIAL[rank - 2] if rank - 2 in SPATIAL else None


def channels_last(rank: int) -> str | None:
    """ "NHWC" for 4 dimensions."""
    return "N" + SPATIAL[rank - 2] + "C" if rank - 2 in SPATIAL else None


def factor(rank: int, on_the_left: bool, transposed: bool) -> str:
    """The layout of a weight that is a factor of a product. The sum is over the last dimension of the left factor."""
    if rank < 2:
        return "I" * rank
    return "N" * (rank - 2) + ("OI" if on_the_left != transposed else "IO")
