"""
The PyTorch driver. Use it through the package `amanda`.
"""
from __future__ import annotations
import typing
import typing_extensions
__all__: list[str] = ['bridge', 'dispatch_keys', 'install', 'restore_keys', 'walks_frames_directly']
def bridge() -> typing_extensions.CapsuleType:
    """
    For amanda._core.register_bridge.
    """
def dispatch_keys() -> tuple[str, str]:
    """
    The names of the dispatch keys in use: filter, all.
    """
def install(error: typing.Any, describe: typing.Any, recomputing: typing.Any, engine: typing.Any, run_module: typing.Any, parameter: typing.Any) -> None:
    """
    Connects the driver with Python; called once, by the package.
    """
def restore_keys() -> None:
    """
    Puts this thread's dispatch keys right again.
    """
def walks_frames_directly() -> bool:
    ...
