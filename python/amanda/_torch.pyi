"""
The PyTorch driver. Use it through the package `amanda`.
"""
from __future__ import annotations
import torch
import typing
import typing_extensions
__all__: list[str] = ['NodeWindow', 'bind_function', 'bridge', 'catch_operators', 'dispatch_keys', 'enter_compiled', 'framework_probe', 'give_number', 'has_scopes', 'install', 'leave_compiled', 'restore_keys', 'start_new_epoch', 'take_number', 'time_ids', 'walk_frames_directly', 'walks_frames_directly']
class NodeWindow:
    """
    The autograd nodes that this thread makes from now on.
    """
    def __init__(self) -> None:
        ...
def bind_function(name: str, window: NodeWindow, inputs: tuple, results: typing.Any) -> None:
    """
    Tells what a torch.autograd.Function of that name has recorded in the window.
    """
def bridge() -> typing_extensions.CapsuleType:
    """
    For amanda._core.register_bridge.
    """
def catch_operators(on: bool) -> bool:
    """
    Has operators on this thread caught for its scopes, or not; returns whether they were.
    """
def dispatch_keys() -> tuple[str, str]:
    """
    The names of the dispatch keys in use: filter, all.
    """
def enter_compiled() -> None:
    """
    This thread runs a compiled function, out of the tools' sight, until as many calls of leave_compiled().
    """
def framework_probe() -> typing_extensions.CapsuleType:
    """
    For amanda._cupti: allocations, operands' sizes, other profilers.
    """
def give_number(tensor: typing.Any, counts: bool) -> None:
    """
    Gives a tensor its number, by which places are found; `counts`: as a parameter, whatever its type says.
    """
def has_scopes() -> bool:
    """
    Are scopes open on this thread?
    """
def install(error: typing.Any, resolve: typing.Any, recomputing: typing.Any, engine: typing.Any, run_module: typing.Any, parameter: typing.Any, unwrap: typing.Any) -> None:
    """
    Connects the driver with Python; called once, by the package.
    """
def leave_compiled() -> None:
    ...
def restore_keys() -> None:
    """
    Puts this thread's dispatch keys right again.
    """
def start_new_epoch() -> None:
    """
    Something died that ids were found by.
    """
def take_number(address: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Of a tensor that is dead, or may be.
    """
def time_ids(x: torch.Tensor, weight: torch.Tensor, count: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]:
    """
    For benchmarks: nanoseconds for `count` ids of aten::linear(x, weight), and the number of Python frames.
    """
def walk_frames_directly(on: bool) -> None:
    """
    For tests: ids are the same either way.
    """
def walks_frames_directly() -> bool:
    """
    Is the fast walk over Python frames in use?
    """
