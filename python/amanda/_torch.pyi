"""The PyTorch driver. Use it through the package `amanda`."""
from __future__ import annotations
import collections.abc
import torch
import typing
import typing_extensions
__all__: list[str] = ['CoverageCounter', 'NodeWindow', 'OwnWork', 'Spot', 'assign_number', 'bind_function', 'bridge', 'built_for', 'catch_operators', 'caught_types', 'clear_number', 'count_known_places', 'count_named_places', 'count_steps', 'dead_numbers', 'dead_objects', 'dispatch_keys', 'enter_compiled', 'enter_graph', 'exchange_key_role', 'exchange_numbers', 'forget_loose', 'forget_model', 'forget_steps', 'framework_probe', 'has_scopes', 'held', 'home_name', 'identify', 'install', 'install_errors', 'install_rules', 'is_registered', 'key_role', 'leave_compiled', 'leave_graph', 'modules_of', 'name_among', 'name_hash', 'name_parts', 'named_parts', 'next_to_name', 'number_of', 'parameters_text', 'path_of', 'raw_place', 'record_callbacks', 'record_calls', 'register_buffers', 'renumber_loose', 'restore_keys', 'running_modules', 'sees_nothing', 'set_block', 'skip_reasons', 'start_new_epoch', 'steps_from', 'time_ids', 'typed_kernels', 'undeclared_writes', 'use_known_places', 'walk_frames_directly', 'walks_frames_directly', 'watch', 'with_state']
class CoverageCounter:
    """What PyTorch was asked for while it was open, and whether tools were shown it."""
    def __init__(self, tools: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """`tools`: as amanda._core.Scope.tools() has them."""
    def close(self) -> None: ...
    def open(self) -> None:
        """Counts on this thread, until as many calls of close()."""
    def rows(self) -> list:
        """Tuples: operator or node, is it a node, times seen, times skipped by reason."""
class NodeWindow:
    """The autograd nodes that this thread makes from now on."""
    def __init__(self) -> None: ...
class OwnWork:
    """`with` it: calls on this thread are a tool's own, and not the program's."""
    def __enter__(self) -> None: ...
    def __exit__(self, *args) -> None: ...
    def __init__(self) -> None: ...
class Spot:
    """An instruction that a frame is at."""
    def __init__(self, code: typing.Any, offset: typing.SupportsInt | typing.SupportsIndex, python_module: typing.Any, graph_module: typing.Any = None) -> None: ...
    @property
    def lends(self) -> bool:
        """Does it call a module with other tensors than its own?"""
def assign_number(tensor: torch.Tensor, counts: bool) -> int:
    """Assigns a new number to a tensor and returns it; `counts`: as a parameter, whatever its type says."""
def bind_function(name: str, window: NodeWindow, inputs: tuple, results: typing.Any) -> None:
    """Tells what a torch.autograd.Function of that name has recorded in the window."""
def bridge() -> typing_extensions.CapsuleType:
    """For amanda._core.register_bridge."""
def built_for() -> str:
    """The version of PyTorch that this was compiled with."""
def catch_operators(on: bool) -> bool:
    """Has operators on this thread caught for its scopes, or not; returns whether they were."""
def caught_types() -> int:
    """Operators that filtered scopes have asked for in this process."""
def clear_number(number: typing.SupportsInt | typing.SupportsIndex) -> None:
    """Removes a number from its tensor, if that is alive."""
def count_known_places() -> int:
    """How many places this thread knows."""
def count_named_places() -> int:
    """For tests: how many places were named, rather than found."""
def count_steps() -> int:
    """For tests: how many steps were made, rather than found."""
def dead_numbers() -> list[int]:
    """Numbers of tensors that died since the last call."""
def dead_objects() -> list[int]:
    """Addresses of watched things that died since the last call."""
def dispatch_keys() -> tuple[str, str]:
    """The names of the dispatch keys in use: filter, all."""
def enter_compiled() -> None:
    """This thread runs a compiled function, out of the tools' sight, until as many calls of leave_compiled()."""
def enter_graph() -> None:
    """As enter_compiled(), for a graph that is instrumented; coverage counters do not count what it calls either."""
def exchange_key_role(role: typing.SupportsInt | typing.SupportsIndex) -> int:
    """Includes what key_role() returned, and returns what was included before."""
def exchange_numbers(a: torch.Tensor, b: torch.Tensor) -> None:
    """After torch.utils.swap_tensors: the Python objects keep their numbers."""
def forget_loose(number: typing.SupportsInt | typing.SupportsIndex) -> None:
    """The tensor with this number has died."""
def forget_model(address: typing.SupportsInt | typing.SupportsIndex) -> None:
    """The object at this address has died."""
def forget_steps(code: typing.SupportsInt | typing.SupportsIndex) -> None:
    """The code object at this address has died."""
def framework_probe() -> typing_extensions.CapsuleType:
    """For profilers: what is allocated, which other profilers are on."""
def has_scopes() -> bool:
    """Are scopes open on this thread?"""
def held(module: typing.Any, kind: str) -> list:
    """Names and values of a module's own `_parameters`, `_buffers` or `_modules` that are not None."""
def home_name(module: typing.Any) -> typing.Any:
    """The name that a module has where it is called directly, or None."""
def identify(path: str, modules: list, traced: tuple[str, typing.SupportsInt | typing.SupportsIndex], name_hash: typing.SupportsInt | typing.SupportsIndex, tensors: collections.abc.Sequence, recomputing: bool) -> tuple:
    """The id of an operator on a path, and the path of its module: `traced` is its name in a running module, and the number of that one, innermost first. `tensors`: for each tensor operand: (position, tensor or None, does it count as a parameter by its type)."""
def install(error: typing.Any, name_parameter: typing.Any, recomputing: typing.Any, engine: typing.Any, unwrap: typing.Any, set_compiler: typing.Any) -> None:
    """Connects the driver with Python; called once, by the package."""
def install_errors(is_programs: typing.Any, methods: typing.Any) -> None:
    """Tells exceptions of the program from those of tools; called once."""
def install_rules(rules: typing.Any) -> None:
    """Installs the rules by which places are named, a PlaceRules. Called once, by the package."""
def is_registered(name: str) -> bool:
    """Is an operator of this name, without wildcards, registered with the dispatcher?"""
def key_role() -> int:
    """Which of dispatch_keys() this thread includes: 0 if none, 1 for filter, 2 for all."""
def leave_compiled() -> None: ...
def leave_graph() -> None: ...
def modules_of(steps: list) -> list:
    """The modules that the steps run, innermost first."""
def name_among(running: list, module: typing.Any) -> typing.Any:
    """The name of a module in the outermost of the running modules that holds it, or None."""
def name_hash(name: str, overload: str) -> int:
    """What an operator's name counts as in ids."""
def name_parts(parts: list, model: str, with_state: bytes, names: dict, is_plain: bool) -> list:
    """Watches all parts of a model and names them. `names`: where they are called directly, by address. Returns the addresses of those that have no name any more."""
def named_parts(module: typing.Any, wrapper: typing.Any) -> list:
    """(name, module) of a module and all modules in it, each once. `wrapper`: the class of torch.compile's wrappers, which count as the module inside; None: there are none."""
def next_to_name(running: list) -> typing.Any:
    """The outermost module of a model that is to be named before the running modules, innermost first, have names; None: all have."""
def number_of(tensor: torch.Tensor) -> int:
    """A tensor's number, by which places are found; 0: none."""
def parameters_text(parts: list) -> str:
    """The names and shapes of all parameters of named parts, as Python shows them."""
def path_of(steps: list) -> tuple:
    """The places of the steps up to their root, as the text of a tuple; the source line; what identify() calls `traced`; and whether steps outside the outermost module do not change the places. The modules have names."""
def raw_place(args: typing.Any, positions: tuple) -> tuple[int, int]:
    """The epoch, and a hash that holds in it: of this thread's Python frames, and of which objects are in these positions."""
def record_callbacks() -> int:
    """For tests: callbacks of RecordFunction on this thread, and one more if all threads have some."""
def record_calls(see: typing.Any, function: typing.Any, args: tuple, kwargs: dict) -> typing.Any:
    """Calls `function(*args, **kwargs)` on traced tensors. Before each outermost operator, calls `see(namespace, name, overload, inputs)`, and after it what that returned, unless None, with (outputs, result_is_view)."""
def register_buffers(parts: list) -> None:
    """Has the buffers of named parts count as parameters."""
def renumber_loose(tensor: torch.Tensor) -> None:
    """A parameter may have another name from now on."""
def restore_keys() -> None:
    """Puts this thread's dispatch keys right again."""
def running_modules() -> list:
    """What this thread's frames of nn.Module's __call__ run, innermost first."""
def sees_nothing() -> bool:
    """Does this thread run code of a tool, or a compiled function, whose operators no tool is shown?"""
def set_block(frame: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex) -> None:
    """What `with amanda.root(name)` the frame at this address is in; 0: none."""
def skip_reasons() -> list[str]:
    """Why a call may be skipped; each has its sentence in amanda.core.coverage.reasons."""
def start_new_epoch() -> None:
    """What ids were found by has changed."""
def steps_from(frame: typing.Any) -> list:
    """The steps of a frame (or None) and its callers, innermost first."""
def time_ids(x: torch.Tensor, weight: torch.Tensor, count: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]:
    """For benchmarks: nanoseconds for `count` ids of aten::linear(x, weight), and the number of Python frames."""
def typed_kernels() -> int:
    """Operators that come in with their C++ operands."""
def undeclared_writes() -> set:
    """(operator, argument): what operators write to though their schemas call it read-only."""
def use_known_places(on: bool) -> None:
    """For tests: with False, every call takes the slow path, on all threads."""
def walk_frames_directly(on: bool) -> None:
    """For tests: ids are the same either way."""
def walks_frames_directly() -> bool:
    """Is the fast walk over Python frames in use?"""
def watch(thing: typing.Any, plain: bool = False) -> bool:
    """Starts a new epoch when the thing dies; `plain`: it is a module without state or parts, which does not. Returns whether it can be watched."""
def with_state(parts: list, wrapper: typing.Any) -> bytes:
    """For each part one byte: does it hold parameters or buffers, or a module in it?"""
