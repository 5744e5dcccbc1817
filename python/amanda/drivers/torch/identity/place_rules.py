"""The rules by which C++ names places: one object, which it reads once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FrameType
from typing import Any


@dataclasses.dataclass(frozen=True)
class PlaceRules:
    """The classes, tables and functions of Python that places are named with, for the life of the process.

    drivers/torch/python/identity/place_rules.h has the same fields.
    """

    # Classes. A name, a step, an entry of `registered` and one of `homes` are NamedTuples.
    module_class: type  # nn.Module
    parameter_class: type  # nn.Parameter
    name_class: type
    step_class: type
    buffers_class: type
    home_class: type

    # Tables.
    names: dict[int, Any]  # of known modules, by address
    registered: dict[int, Any]  # the buffers that count as parameters, by the module's address
    homes: dict[int, Any]  # lists of the modules that hold a buffer, by the buffer's number
    blocks: Collection[int]  # addresses of the frames in a block of amanda.root; always the same object

    # Code.
    run_module: CodeType  # its first local is the module that runs
    functional_call: CodeType | None  # calls a module with other tensors than its own
    compiler: str  # the module that has the class of torch.compile's wrappers, if it is imported
    torch_folder: str
    checkpoint_file: str
    graph_file: str  # how the names of files with code of torch.fx graphs begin

    # Questions. While they are asked, this thread has the lock, and nothing is recorded or seen.
    lock: Any
    tell_deaths: Callable[[], None]
    name_running: Callable[[list[Any], bool], bool]
    resumed_steps: Callable[[FrameType | None, bool], list[Any]]  # where a code object is a part of a function
    mark_of: Callable[[FrameType], Any]  # of a frame in a block
    mark_of_function: Callable[[CodeType, int], Any]
    entered: Callable[[], Mapping[int, CodeType]]  # this thread's frames that entered a scope, by address
    is_resumed: Callable[[CodeType], bool]  # no step of it is kept
    search: Callable[[Any, Any], str | None]  # a parameter's name in a module and the modules in it
    watch_exchanges: Callable[[], None]  # before tensors get numbers
    settle_buffers: Callable[[Any], None]  # of a registered module
    shape_of: Callable[[Any], tuple[int, ...] | None]  # of a parameter of another class

    traced_place: Callable[[Any, CodeType, int], tuple[str, str, bool]]  # of a line of a graph's code

    # Texts.
    hash: Callable[[bytes], Any]
    is_machinery: Callable[[str], bool]  # of a file
    file_of: Callable[..., Any]
    position_of: Callable[..., Any]
    line_of: Callable[..., Any]
    name_of_module: Callable[..., Any]
