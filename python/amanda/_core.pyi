"""The core of Amanda: tools, contexts, actions, scopes. Use it through the package `amanda`."""
from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['Action', 'ActionDescription', 'Artifact', 'ArtifactCache', 'ArtifactCacheInfo', 'CacheInfo', 'ContextHandle', 'Error', 'GraphBackend', 'GraphVisitor', 'NativeRoutine', 'OpSite', 'Operator', 'RunState', 'Scope', 'Switch', 'Tap', 'Tool', 'Toolset', 'Unmatched', 'ValueInfo', 'adopt_tool', 'drain_released', 'find_tap', 'instrument', 'is_cache_enabled', 'is_enabled', 'position_at', 'register_bridge', 'set_context_class', 'set_log_sink', 'set_routine_checks', 'set_run_class']
class Action:
    """A scheduled routine."""
    def __repr__(self) -> str: ...
    def describe(self) -> ActionDescription:
        """What was scheduled, and where."""
    def remove(self) -> None:
        """Takes it out, from the operator's next run on; any number of times."""
    @property
    def removed(self) -> bool:
        """Was it removed?"""
class ActionDescription:
    """What was scheduled, and where; see amanda.Scope.describe."""
    def __repr__(self) -> str: ...
    def short_text(self) -> str:
        """Without the operator."""
    @property
    def backward_op_id(self) -> int | None:
        """None for a forward operator."""
    @property
    def backward_operator(self) -> str:
        """Its name; empty for a forward operator."""
    @property
    def module_path(self) -> str:
        """As of a context."""
    @property
    def op_id(self) -> int:
        """Of the forward operator."""
    @property
    def operands(self) -> list[int | str] | None:
        """What the routine gets, by name or by position; None: all."""
    @property
    def operator(self) -> str:
        """The forward operator: aten::add.Tensor."""
    @property
    def phase(self) -> str:
        """Backward at a forward operator: it runs at each backward operator of that."""
    @property
    def removed(self) -> bool:
        """Was it removed?"""
    @property
    def routine(self) -> str:
        """The routine's name."""
    @property
    def source(self) -> str:
        """As of a context."""
    @property
    def tool(self) -> str:
        """The tool's name."""
    @property
    def when(self) -> str:
        """Before, after or replace."""
class Artifact:
    """What became of a graph under a toolset."""
    @property
    def failure(self) -> str:
        """Why the graph could not be lowered; "": it could, or nothing was scheduled."""
    @property
    def lowered(self) -> typing.Any:
        """What lower() returned; None: run the original."""
    @property
    def unseen(self) -> list[tuple[str, str]]:
        """What runs and tools are not shown: (what, reason)."""
class ArtifactCache:
    """A graph's artifacts, by toolset and signature."""
    def __init__(self) -> None: ...
    def clear(self) -> None:
        """Forgets all that are built: the graph itself has changed."""
    def get(self, toolset: Toolset, signature: str, backend: GraphBackend, graph: typing.Any) -> Artifact:
        """The artifact of instrument(), built once for a toolset and a signature. Raises as instrument()."""
    def info(self) -> ArtifactCacheInfo:
        """Counters of this cache."""
class ArtifactCacheInfo:
    """Counters of an ArtifactCache."""
    @property
    def builds(self) -> int:
        """Artifacts built."""
    @property
    def hits(self) -> int:
        """Calls of get() that built nothing."""
    @property
    def size(self) -> int:
        """Artifacts kept."""
class CacheInfo:
    """What a scope's cache did so far."""
    def __repr__(self) -> str: ...
    @property
    def currsize(self) -> int:
        """Operators known."""
    @property
    def hits(self) -> int:
        """Operator runs that needed no analysis."""
    @property
    def maxsize(self) -> int:
        """Of operators on which nothing was scheduled and no key was left; all others are kept."""
    @property
    def misses(self) -> int:
        """Analysis routines run."""
class ContextHandle:
    """What amanda.OpContext asks; use that."""
    def actions(self) -> list[ActionDescription]: ...
    def asks(self, tool: Tool) -> list:
        """Of each of its routines that ask for this operator: backward, require_outputs."""
    def attribute(self, name: str) -> str: ...
    def backward_op(self) -> Operator | None: ...
    def backward_op_id(self) -> int | None: ...
    def depth(self) -> int: ...
    def grad_inputs(self) -> tuple | None: ...
    def grad_outputs(self) -> tuple | None: ...
    def has_grad_inputs(self) -> bool: ...
    def has_outputs(self) -> bool: ...
    def infos(self, side: str) -> list[ValueInfo]:
        """What the driver says of its inputs, outputs, grad_outputs, grad_inputs."""
    def inputs(self) -> tuple: ...
    def is_forward(self) -> bool: ...
    def is_recompute(self) -> bool: ...
    def is_symbolic(self) -> bool: ...
    def may_mutate(self) -> None: ...
    def module_path(self) -> str: ...
    def namespace(self) -> str: ...
    def op(self) -> Operator: ...
    def op_id(self) -> int: ...
    def outputs(self) -> tuple | None: ...
    def parameter_names(self) -> tuple: ...
    def schedule(self, method: str, fn: typing.Any, kwargs: dict, gets: typing.Any, shown: typing.Any = (), with_run: bool = False, differentiable: bool = False, allow_view: bool = False, traceable: bool = False) -> Action:
        """gets, shown: positions and names, or None: all."""
    def source(self) -> str: ...
    def tool(self) -> typing.Any: ...
    def where(self) -> str: ...
class Error(RuntimeError):
    """Raised by Amanda for misuse and failures it detects. Exceptions of a tool's own routines are never wrapped in it."""
class GraphBackend:
    """A graph driver in Python: a framework's operator types, and this thread's tools."""
    def __init__(self, name_space: str, *, backward: str = 'none', can_replace: bool = True, can_change_shape: bool = False, keeps_gradients: bool = False, both_sides: bool = False, same_ids_as: str = '') -> None: ...
    def describe(self, describe: typing.Any) -> None:
        """Describes tensors to C++ tools: `describe(operand)` returns a dict with dtype, sizes (None: unknown), device, bytes and requires_grad, as far as they are known; or None. Numbers and lists describe themselves."""
    def has_scopes(self) -> bool:
        """Are scopes open on this thread, and not switched off? Also while a routine runs."""
    def intern(self, ns: str, name: str, overload: str = '', *, inputs: collections.abc.Sequence[str] = [], outputs: collections.abc.Sequence[str] = [], schema: str = '') -> int:
        """The number of an operator type, the same each time for the same name."""
    def is_asked_for(self, type: typing.SupportsInt | typing.SupportsIndex, is_backward: bool, tools: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> bool:
        """Does one of these tools, given as numbers by Scope.tools() and in force on this thread, ask for this operator type, or for its backward operators? For coverage reports."""
    def name_parameters(self, name: typing.Any) -> None:
        """Tells the names of parameters to analyses: `name(symbol)` returns one, or None for any other symbol."""
    def on_switch(self, callback: typing.Any) -> None:
        """Calls `callback()` on a thread when its scopes or tools have changed; None: no longer."""
    def toolset(self) -> Toolset | None:
        """The tools in force on this thread; None: no scope is open, or a tool's routine runs."""
    def wants(self, type: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """Does a tool in force on this thread ask for this operator type?"""
    @property
    def name_space(self) -> str:
        """The driver's name, as "lists/1/graph"."""
class GraphVisitor:
    """The argument of each_op(): receives a graph's operators."""
    def op(self, site: OpSite) -> None:
        """Shows an operator, and runs its analyses."""
    def unseen(self, what: str, reason: str) -> None:
        """Reports something that runs but is not shown to tools."""
class NativeRoutine:
    """A routine in C++, to be scheduled as a function is."""
    def __call__(self, *args, **kwargs) -> typing.Any: ...
    def __init__(self, capsule: typing_extensions.CapsuleType, otherwise: typing.Any, edits: bool = False) -> None:
        """otherwise: what to call, with what was selected, in the runs in which the C++ routine declines. edits: it may replace what was selected; if not, it only looks."""
class OpSite:
    """One operator of a graph, as tools see it."""
    def __init__(self, backend: GraphBackend, type: typing.SupportsInt | typing.SupportsIndex, id: typing.SupportsInt | typing.SupportsIndex, inputs: tuple, outputs: tuple, *, module_path: str = '', source: str = '', refuse: typing.Any = None, forward: typing.Any = None, attribute: typing.Any = None) -> None:
        """`inputs`, `outputs`: symbols of the graph; for a backward operator (with `forward=`), its grad_outputs and grad_inputs. `refuse(point, position)` returns why an edit or a replacement is impossible, or None. `attribute(name)` returns what is fixed when the graph is built and is no operand, as text, or None."""
class Operator:
    """An operator type. Calling it runs the original operator, uninstrumented."""
    def __call__(self, *args, **kwargs) -> typing.Any: ...
    @typing.overload
    def __eq__(self, arg0: Operator) -> bool: ...
    @typing.overload
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...
    @property
    def __name__(self) -> str: ...
    @property
    def input_names(self) -> list[str]:
        """The names of the input positions."""
    @property
    def name(self) -> str:
        """With its namespace: aten::conv2d."""
    @property
    def overload(self) -> str:
        """The overload: "Tensor"; "" if it has no name."""
    @property
    def schema(self) -> str:
        """The schema, as the framework prints it."""
class RunState:
    """What routines share in one execution of an operator. That of a backward operator is created with `forward`, the one of the execution that it belongs to, where that is known."""
    def __init__(self, forward: RunState | None = None) -> None: ...
class Scope:
    """The core's side of a scope; amanda.Scope holds one."""
    def __init__(self, tools: collections.abc.Sequence[Tool], owners: typing.Any, disable_on_error: bool) -> None:
        """`owners`: keeps the tools alive, and is kept alive while they are in use."""
    def analysed_types(self) -> list[tuple[str, int]]:
        """Forward operators that its tools analysed, by name, and the number of their places; most first."""
    def cache_clear(self, op_id: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def cache_info(self) -> CacheInfo: ...
    def describe(self) -> list[ActionDescription]:
        """What analyses have scheduled; see amanda.Scope.describe."""
    def enter(self) -> int: ...
    def leave(self, entry: typing.SupportsInt | typing.SupportsIndex, error: typing.Any) -> tuple[list[Unmatched], str]:
        """Returns what to warn of: filters that matched nothing; the operator that ran on a thread without scopes."""
    def stopped_tools(self) -> list[str]:
        """The names of the tools that failed and run no more."""
    def tools(self) -> list:
        """For drivers: its tools, dependencies included, as numbers to compare."""
class Switch:
    """A switch of this thread; see amanda.disabled() and the others."""
    def __init__(self, which: str, on: bool) -> None: ...
    def put_back(self) -> None: ...
class Tap:
    """Consecutive actions of one operator: one node of the instrumented graph."""
    def run(self, site: OpSite, inputs: collections.abc.Sequence = (), outputs: collections.abc.Sequence = (), *, original: typing.Any = None, state: RunState | None = None, check: typing.Any = None) -> list:
        """Runs the actions on the operands that reach the tap, and returns the operands after it: the inputs before the operator, otherwise its outputs. Raises what a routine raised. `site`: the operator, as it was shown. `original(*inputs)`: the operator, for a tap in its place. `check(position, operand)` is called with each operand that a routine gives, and returns why it does not fit, or None."""
    def selects(self, position: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """Does it get this operand (of its own side)?"""
    def shows_input(self, position: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """After the operator: is it shown this input, too?"""
    @property
    def differentiable(self) -> bool:
        """Do gradients flow through its routines? If not, they pass it unchanged."""
    @property
    def id(self) -> int:
        """A number, never used again; see find_tap()."""
    @property
    def is_backward(self) -> bool:
        """Is it a tap of a backward operator?"""
    @property
    def kind(self) -> str:
        """"observe": it replaces no value; "transform": it does; "traceable": it also works on symbols; "unknown"."""
    @property
    def point(self) -> str:
        """"before", "replace" or "after": where it runs."""
    @property
    def shares_run(self) -> bool:
        """Do its routines share values with others of the same execution?"""
class Tool:
    """The core's side of a tool; amanda.Tool holds one."""
    def __init__(self, owner: typing.Any, name: str) -> None: ...
    def add_inst_for_op(self, callback: typing.Any, backward: bool, require_outputs: bool, ops: typing.Any, on_demand: bool, nested: bool, modules: collections.abc.Sequence[str] | None, optional: bool) -> None: ...
    def analysed(self) -> tuple[int, int]:
        """How many operators its analyses have looked at: forward, backward."""
    def depends_on(self, tool: Tool) -> None: ...
    def forget_analysed(self) -> None:
        """Counts them anew."""
    def narrow(self, ops: typing.Any, modules: collections.abc.Sequence[str] | None) -> None: ...
    @property
    def name(self) -> str: ...
class Toolset:
    """The tools in force at one place of the program; a key for caches of graphs."""
    @typing.overload
    def __eq__(self, arg0: Toolset) -> bool: ...
    @typing.overload
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def is_over(self) -> bool:
        """Will it never be returned again? What is cached under it may then be released."""
    @property
    def key(self) -> int:
        """A number, never used again in this process."""
class Unmatched:
    """An analysis routine that no operator met in a scope in which operators ran."""
    @property
    def elsewhere(self) -> list[str]:
        """The paths of these, not all if they are many."""
    @property
    def modules(self) -> list[str]:
        """Empty: everywhere."""
    @property
    def ops(self) -> list[str]:
        """Empty: every operator."""
    @property
    def ops_matched(self) -> bool:
        """Its operators ran, in other modules only."""
    @property
    def tool(self) -> str: ...
class ValueInfo:
    """An operand, described in no framework's terms; see amanda/value.h."""
    @property
    def device(self) -> str:
        """Of a tensor."""
    @property
    def dtype(self) -> str:
        """Empty: not known."""
    @property
    def elements(self) -> list[ValueInfo]:
        """Of a list of tensors."""
    @property
    def kind(self) -> str:
        """None, tensor, tensors, number, numbers or other."""
    @property
    def sizes(self) -> list[int | None] | None:
        """None: not known."""
def adopt_tool(capsule: typing.Any) -> Tool:
    """Takes a C++ tool out of its capsule, and owns it."""
def drain_released() -> None:
    """Lets go of objects that were dropped without the interpreter lock."""
def find_tap(id: typing.SupportsInt | typing.SupportsIndex) -> Tap | None:
    """The tap with this id; None: nothing holds it any more, or another process created it."""
def instrument(toolset: Toolset, backend: GraphBackend, graph: typing.Any) -> Artifact:
    """Runs the tools' analyses of a graph. `graph.each_op(visitor)` shows its operators; `graph.lower(sites)` puts taps beside them: it gets (index of the operator, its taps) for each operator that has any, and returns the instrumented graph. Raises what an analysis raised, and amanda.Error for an action that the driver refuses."""
def is_cache_enabled() -> bool:
    """Is the action cache on for this thread?"""
def is_enabled() -> bool:
    """Is instrumentation on for this thread?"""
def position_at(code: typing.Any, offset: typing.SupportsInt | typing.SupportsIndex) -> tuple[typing.Any, typing.Any, typing.Any, typing.Any]:
    """First and last line, first and last column of the instruction at this offset, as `co_positions()` has them."""
def register_bridge(capsule: typing_extensions.CapsuleType) -> None:
    """Makes a driver's operands known to Python; drivers call it."""
def set_context_class(cls: typing.Any) -> None:
    """The class that contexts are shown as: a dict with a slot _handle for the ContextHandle."""
def set_log_sink(sink: typing.Any) -> None:
    """Calls `sink(line)` for each warning."""
def set_routine_checks(check: typing.Any, only_looks: typing.Any) -> None:
    """`check(handle, method, fn, positions, with_run, kwargs, shown)` raises if a routine can't take what it will be given. `only_looks(fn)`: does it return nothing?"""
def set_run_class(cls: typing.Any) -> None:
    """The class of runs; it is constructed with index, op_id and the operator's name."""
__version__: str = '0.1.0'
