"""Values: the memory of programs of TensorFlow, whose allocators report nothing: that of values which operators make, and
of variables."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Place, frameworks, locks
from amanda.toolkit.frames import program_line

from .buffers import WINDOW, Buffer, Buffers
from .rows import Held, Kind
from .run_log import RunLog
from .site import Site

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Role, Stored

ANEW = 0.9  # of the steps: functions of one name that are made in them
UNKNOWN = (
    "TensorFlow reports no allocations: these are bytes of values, in a graph as if its operators ran one after "
    "another; not known: what kernels use while they run, stacks of loops, results inside a gradient that are no "
    "operand's gradient, values of code that XLA compiles"
)
DEVICE = "cpu"  # routines get values there


class Values:
    """Values by their addresses: an operator whose result has the memory of an operand makes none. The value of an eager
    tensor is there as long as this object. Another one, of a graph or a function, is there from the run of its operator
    until that of the last operator which takes it, at least."""

    def __init__(
        self, new_site: Callable[[Site], int], site: Callable[[int], Site], on_step: Callable[[Any, int], None]
    ) -> None:
        """`on_step`: is called after each step of an optimizer, with the bytes that are there."""
        self._lock = locks.rlock()
        self.buffers = Buffers()
        self._new_site, self._site, self._note_step = new_site, site, on_step
        self._lines: dict[tuple[str, str], int] = {}  # sites of operators that tools are not shown
        self._current: dict[Hashable, Buffer] = {}  # by symbol, of its graph's newest run
        self._tensors: dict[int, tuple[weakref.ref[Any], Buffer]] = {}  # by id
        self._dead: collections.deque[tuple[Buffer, bool]] = collections.deque()
        self._variables: dict[object, _Variable] = {}
        self._states: set[object] = set()  # ids of the handles of optimizers' variables
        self._last_eager = 0  # the time at which an eager operator, or a function, last returned
        self._steps = 0
        self._log = RunLog()
        self._graphs: set[int] = set()  # of TensorFlow 1, that have run
        self._numbers = itertools.count()  # of operators, as tools are shown them
        self._stop: list[Callable[[], object]] = []
        self.is_used = False  # an operator of TensorFlow has run
        self.traced: tuple[str, int, str] | None = (
            None  # the function that got most graphs in the scope, how many, and what to do
        )
        self._traced_before: dict[object, tuple[str, int]] = {}  # by function

    def reset(self) -> None:
        """Forgets all."""
        with self._lock:
            self.buffers.reset()
            for known in (self._current, self._tensors, self._dead, self._variables):
                known.clear()
            self._log.take()
            self._last_eager = self._steps = 0
            self.is_used, self.traced = False, None

    # ---- the scope --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A thread has entered the scope, or an operator of TensorFlow runs."""
        if not self._stop and "amanda.drivers.tensorflow.port" in sys.modules:
            from amanda.toolkit.optimizers import register_optimizer_step_post_hook
            from amanda.toolkit.tensorflow import listen_to_results, listen_to_roles, tracings

            self._stop = [
                listen_to_results(self._returned),
                listen_to_roles(self._has_role),
                register_optimizer_step_post_hook(self._on_step).remove,
            ]
            self.look_at_objects()
            self._traced_before = tracings()

    def end(self) -> None:
        """The last thread leaves the scope."""
        if self._stop:
            self.look_at_objects()
            with self._lock:
                self._settle()
                self.buffers.look()
            self.traced = self._most_traced() if self.is_used else None
        while self._stop:
            self._stop.pop()()

    # ---- operators --------------------------------------------------------------------------------------------------

    def analyze(self, context: OpContext, site: int) -> None:
        """An analysis routine of TensorFlow's operators, forward and backward ones."""
        self.begin()
        self.is_used = True
        from amanda.toolkit.tensorflow import roles_of, value_key

        results = _flat(context.grad_inputs if context.is_backward() else context.outputs)
        taken: Sequence[Any] = []
        if not frameworks.shows_after_run(context):
            op = next((symbol.op for symbol in results if symbol is not None), None)
            given = context.grad_outputs if context.is_backward() else context.inputs
            taken = _flat(given) if op is None else op.inputs
        graph = next((symbol.graph for symbol in (*results, *taken) if hasattr(symbol, "graph")), None)
        if context.namespace.endswith("/graph") and id(graph) not in self._graphs:
            self._graphs.add(id(graph))
            self.look_at_objects()
        order = (None if graph is None else id(graph), next(self._numbers))
        made = _Made(
            site,
            context.is_backward(),
            [key for key in map(value_key, taken) if key is not None],
            [value_key(symbol) for symbol in results],
            [any(role.kind == "gradient" for role in roles_of(symbol)) for symbol in results],
        )
        if context.is_backward():
            context.insert_after_backward_op(self._made, order=order, made=made)
        else:
            context.insert_after_op(self._made, order=order, made=made)

    def _made(self, *results: Any, order: tuple[Hashable, int], made: _Made) -> None:
        """An operator has run: a routine."""
        arrays = _flat(results)
        found = [None if one is None or not one.size else (_address(one), int(one.nbytes)) for one in arrays]
        with self._lock:
            if order[0] is None:
                self._settle()
                self._add(made, found)
            else:
                self._log.add(*order, (made, found))
                if len(self._log) >= WINDOW:
                    self._settle()

    def _settle(self) -> None:
        """Operators of graphs that have run count in the order of the program."""
        for made, found in self._log.take():
            self._add(made, found)

    def _add(self, made: _Made, found: Sequence[tuple[int, int] | None]) -> None:
        self._tick()
        operands = [buffer for key in made.taken if (buffer := self._current.get(key)) is not None]
        for operand in operands:
            self.buffers.use(operand)
            if made.is_backward and not operand.made_in_backward:
                operand.saver = made.site
        for position, one in enumerate(found):
            if one is None:
                continue
            known = self.buffers.at(one[0])
            if known is not None and not (_is_held(known, one[1]) or any(known is each for each in operands)):
                known = None
            buffer = self._buffer(known, *one, made.site, made.is_backward)
            if len(made.keys) == len(found) and made.keys[position] is not None:
                self._current[made.keys[position]] = buffer
                if made.gradients[position]:
                    buffer.kind = "gradient"

    def _returned(self, operator: str, inputs: Sequence[Any], outputs: Sequence[Any], is_backward: bool) -> None:
        """Eager code has got these values."""
        with self._lock:
            self._settle()
        if operator == "AssignVariableOp":
            self._assigned(*inputs)
        from amanda.toolkit.tensorflow import address_of

        for tensor in outputs:
            address = address_of(tensor)
            if address is not None:
                with self._lock:
                    self._tick()
                    known = self.buffers.at(address)
                    if known is not None and not (_is_held(known, _bytes(tensor)) or known.made > self._last_eager):
                        known = None
                    site = -1 if known is not None else self._unshown(operator)
                    self._hold(tensor, self._buffer(known, address, _bytes(tensor), site, is_backward))
        with self._lock:
            self._last_eager = self.buffers.now

    def _buffer(self, known: Buffer | None, address: int, bytes: int, site: int, is_backward: bool) -> Buffer:
        if known is None or known.bytes < bytes:
            return self.buffers.make(address, bytes, site, in_backward=is_backward)
        if known.made_by < 0:
            known.made_by = site
        self.buffers.use(known)
        return known

    def _hold(self, tensor: Any, buffer: Buffer) -> None:
        """The buffer is there as long as this eager tensor."""
        from amanda.toolkit.tensorflow import in_gradient

        number = id(tensor)

        def dies(reference: Any) -> None:  # wherever Python runs: it takes no lock
            known = self._tensors.get(number)
            if known is not None and known[0] is reference:
                del self._tensors[number]
            self._dead.append((buffer, in_gradient()))

        if not self._knows(tensor):
            self.buffers.hold(buffer)
            self._tensors[number] = weakref.ref(tensor, dies), buffer

    def _knows(self, tensor: Any) -> bool:
        known = self._tensors.get(id(tensor))
        return known is not None and known[0]() is tensor

    def _tick(self) -> None:
        while self._dead:
            buffer, in_gradient = self._dead.popleft()
            self.buffers.release(buffer)
            if in_gradient and not buffer.holders and not buffer.made_in_backward:
                buffer.is_saved = True
        self.buffers.tick()

    def _unshown(self, operator: str) -> int:
        """The site of an operator, or a function, that tools are not shown."""
        line = program_line(sys._getframe())
        name = "(function)" if operator.startswith("__") else f"tensorflow::{operator}"
        if (name, line) not in self._lines:
            self._lines[name, line] = self._new_site(Site(Place(None, name, "", line), "", line))
        return self._lines[name, line]

    def _has_role(self, role: Role, array: Any) -> None:
        """A value of eager code is a gradient, or a loss."""
        with self._lock:
            known = self.buffers.at(_address(array)) if array.size else None
            if role.kind == "gradient" and known is not None and known.holders:
                known.kind = "gradient"

    # ---- variables --------------------------------------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        self._steps += 1
        for variable in getattr(optimizer, "variables", ()):
            handle = getattr(variable, "handle", None)
            if handle is not None:
                self._states.add(id(handle))
        if not self._steps & (self._steps - 1):  # seldom: all objects are looked at
            self.look_at_objects()
        with self._lock:
            self._settle()
            self._tick()
            live = self.buffers.live_bytes
        self._note_step(optimizer, live)

    def look_at_objects(self) -> None:
        """Finds the variables that exist, and eager tensors that no operator has made."""
        from amanda.toolkit.tensorflow import address_of, eager_tensors, stored

        for one in stored():
            variable, lives = one.variable(), one.lives()
            if lives is None or not (one.is_eager or id(lives) in self._graphs):
                continue
            address = address_of(variable) if variable is not None and one.is_eager else None
            with self._lock:
                self._tick()
                self._store(one.key, address, one.bytes)
                known = self._variables[one.key]
                if known.stored is None:
                    known.stored = one
                    known.lives = weakref.ref(lives, functools.partial(self._forget, one.key))
        for tensor in eager_tensors():
            address = None if self._knows(tensor) else address_of(tensor)
            if address is not None:
                with self._lock:
                    self._tick()
                    buffer = self.buffers.at(address)
                    if buffer is not None and not buffer.holders:
                        buffer = None
                    self._hold(tensor, self._buffer(buffer, address, _bytes(tensor), -1, False))

    def _assigned(self, handle: Any, value: Any) -> None:
        """Eager code has set a variable: it has the memory of the value."""
        from amanda.toolkit.tensorflow import address_of, key_of

        address = address_of(value)
        if address is not None:
            with self._lock:
                self._tick()
                self._store(key_of(handle), address, _bytes(value))

    def _store(self, key: object, address: int | None, bytes: int) -> None:
        """The variable has its value there."""
        variable = self._variables.setdefault(key, _Variable())
        buffer = None if address is None else self.buffers.at(address)
        if buffer is not None and buffer is variable.buffer:
            return
        if variable.buffer is not None:
            if address is None:
                return
            self.buffers.release(variable.buffer)
        if buffer is None or not buffer.holders or buffer.bytes < bytes:
            buffer = self.buffers.make(address, bytes, -1, in_backward=False)
        buffer.variable = variable
        variable.buffer = buffer
        self.buffers.hold(buffer)

    def _forget(self, key: object, reference: Any) -> None:
        variable = self._variables.pop(key, None)
        if variable is not None and variable.buffer is not None:
            self._dead.append((variable.buffer, False))

    # ---- growth -----------------------------------------------------------------------------------------------------

    def last_serial(self) -> int:
        with self._lock:
            self._settle()
            self._tick()
            return self.buffers.last_serial

    def blocks(self) -> list[tuple[Buffer, str]]:
        """Those that objects of Python hold now, with their devices."""
        with self._lock:
            self._settle()
            self._tick()
            return [(buffer, DEVICE) for buffer in self.buffers.held()]

    def serials_of(self, tensors: Sequence[Any]) -> list[int]:
        """The numbers of the buffers that eager tensors, and resources of variables, have; 0 for others."""
        return [self._serial(tensor) for tensor in tensors]

    def _serial(self, tensor: Any) -> int:
        from amanda.toolkit.tensorflow import key_of

        with self._lock:
            if self._knows(tensor):
                return self._tensors[id(tensor)][1].serial
            variable = self._variables.get(key_of(tensor)) if tensor.dtype.name == "resource" else None
            return 0 if variable is None or variable.buffer is None else variable.buffer.serial

    def _most_traced(self) -> tuple[str, int, str] | None:
        from amanda.toolkit.tensorflow import tracings

        before, self._traced_before = self._traced_before, {}
        counts = [(name, count - before.get(one, (name, 0))[1]) for one, (name, count) in tracings().items()]
        most = max(counts, key=lambda each: each[1], default=("", 0))
        of_all: collections.Counter[str] = collections.Counter()
        for name, count in counts:
            of_all[name] += count
        name, count = next(iter(of_all.most_common(1)), ("", 0))
        if count >= ANEW * self._steps:  # it is made again and again, and several models have one each
            most = name, count
        return (*most, hint_of(most[0])) if most[0] else None

    def traces(self) -> Mapping[str, int]:
        from amanda.toolkit.tensorflow import traces

        return traces() if self.is_used else {}

    def written(self) -> Mapping[str, int]:
        from amanda.toolkit.tensorflow import written

        return written() if self.is_used else {}

    # ---- results ----------------------------------------------------------------------------------------------------

    def peak_bytes(self) -> dict[str, int]:
        return self._by_device(lambda: self.buffers.peak)

    def live_bytes(self) -> dict[str, int]:
        return self._by_device(lambda: self.buffers.live_bytes)

    def allocated_bytes(self) -> dict[str, int]:
        return self._by_device(lambda: self.buffers.allocated_bytes)

    def _by_device(self, bytes: Callable[[], int]) -> dict[str, int]:
        with self._lock:
            self._settle()
            self._tick()
            self.buffers.look()
            return {DEVICE: bytes()} if self.is_used else {}

    def held(self, *, at_peak: bool) -> list[Held]:
        if not self.is_used:
            return []
        with self._lock:
            self._settle()
            self._tick()
            self.buffers.look()
            return [self._held(one) for one in (self.buffers.at_peak if at_peak else self.buffers.held())]

    def _held(self, buffer: Buffer) -> Held:
        kind, kept_by = self._kind(buffer)
        place = self._site(buffer.made_by).place
        is_kept = kind == "other" and buffer.holders > 0
        return Held(
            place.name, place.op_id, place.module_path, place.source, kind, DEVICE, buffer.bytes, kept_by, is_kept
        )

    def _kind(self, buffer: Buffer) -> tuple[Kind, str]:
        if buffer.variable is not None:
            stored = buffer.variable.stored
            if stored is None:
                return "buffer", ""
            if stored.handle in self._states:
                return "optimizer state", stored.name
            return "parameter" if stored.is_trainable else "buffer", stored.name
        if buffer.kind is not None:
            return buffer.kind, ""
        if buffer.saver >= 0:
            return "saved activation", str(self._site(buffer.saver))
        if buffer.is_saved:
            return "saved activation", ""
        if buffer.made_in_backward or not buffer.was_held:
            return "temporary", ""
        return "other", ""


class _Made(NamedTuple):
    """An operator: the values that it makes and takes."""

    site: int
    is_backward: bool
    taken: Sequence[Hashable]  # keys of symbols
    keys: Sequence[Hashable]  # of its results
    gradients: Sequence[bool]  # which of them are variables' gradients


@dataclasses.dataclass(eq=False)
class _Variable:
    buffer: Buffer | None = None
    stored: Stored | None = None
    lives: weakref.ref[Any] | None = None  # calls back when it no longer exists


def _is_held(buffer: Buffer, bytes: int) -> bool:
    """True if it still has its memory, with so many bytes. A variable may have moved since it was looked at."""
    return buffer.holders > 1 or (buffer.holders == 1 and (buffer.variable is None or buffer.bytes == bytes))


def _flat(operands: Sequence[Any]) -> list[Any]:
    return [each for one in operands for each in (one if isinstance(one, list | tuple) else [one])]


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def hint_of(function: str) -> str:
    """The reason why a function of TensorFlow is traced again, and a remedy."""
    from amanda.toolkit.tensorflow import why_traced

    return {
        "made": "it is made again and again, and each has a graph of its own: make it once, outside of the loop",
        "variables": "it is made again and again, for other variables, and each has a graph of its own",
        "shapes": "tensors of another shape are a new trace, unless the function has reduce_retracing=True",
        "values": "arguments that are numbers or objects of Python are a new trace for each value",
    }[why_traced(function).why]
