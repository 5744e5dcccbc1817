"""
What tools do with PyTorch's tensors. Use it through `amanda.tools`.
"""
from __future__ import annotations
import collections.abc
import torch
import typing
import typing_extensions
__all__: list[str] = ['GradientRecorder', 'StatisticsRecorder', 'output_bytes']
class GradientRecorder:
    """
    What GradientStatistics has found of eager backward operators.
    """
    def __init__(self) -> None:
        ...
    def reset(self) -> None:
        ...
    def routine(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """
        A routine for `_core.NativeRoutine`. It declines where something must be read in Python.
        """
    def rows(self) -> list[tuple[int, int, typing.Annotated[list[tuple[int, list[tuple[int, int, int, int, float | None, int, float, float, float]]]], "FixedSize(2)"]]]:
        """
        Id, time of the first run, and for both sides calls and the fields of each gradient's norms.
        """

class StatisticsRecorder:
    """
    What OpStatistics has found of eager operators.
    """
    def __init__(self) -> None:
        ...
    def reset(self) -> None:
        ...
    def routine(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
        """
        A routine for `_core.NativeRoutine`. It declines where something must be read in Python.
        """
    def rows(self) -> list[tuple[int, int, int, list[tuple[int, int, int, int, int, int, float, float, float, float]]]]:
        """
        Id, time of the first run, calls, and the fields of each output's summary.
        """

def output_bytes() -> typing_extensions.CapsuleType:
    """
    For `_tools.ProfileRecorder`.
    """
