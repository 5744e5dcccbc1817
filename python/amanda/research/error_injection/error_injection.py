"""ErrorInjection: operators run with faults in their inputs, weights, outputs or gradients."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

from amanda import Error, OpContext, Tool
from amanda import ops as amanda_ops
from amanda.research.error_injection.elements import Elements, Index, index_of
from amanda.research.error_injection.faults import Fault
from amanda.toolkit import (
    Arrays,
    Place,
    PlaceRow,
    Skips,
    TellsSkips,
    arrays_of,
    frameworks,
    fused_layers,
    locks,
    place_groupings,
)
from amanda.toolkit.parameters import ParameterUse, TellsParameters
from amanda.toolkit.tables import Column, Grouping, Results, fields_of, general_column, name_column, number_column
from amanda.toolkit.where import Where
from amanda.tools.mapping import keys_of, weighted_operators

OPS = amanda_ops.linear + amanda_ops.convolution + amanda_ops.transposed_convolution + amanda_ops.matmul
"""PyTorch's; in other frameworks, the operators that the words `amanda.toolkit.operators.WEIGHTED` stand for."""
Side = Literal["output", "input", "weight", "grad_output", "grad_input"]
GroupBy = Literal["fault", "id", "op", "module", "line"]


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """One fault that was injected; or all those of one operator, of an operator type, a module or a line. The place of a
    fault is that of a row by "id"."""

    backward_op: str = ""  # the autograd node, by "fault" and "id", if gradients are hit; else ""
    position: int | str | None = None  # of the operand, by "fault" and "id"; else None
    faults: int = 0  # by "fault": 1
    executions: int | None = None  # those that could be hit; by "fault": None, as the next one
    elements: int | None = None  # those that could be hit, in all executions
    execution: int | None = None  # which one was hit, from 0 on; this and what follows only by "fault"
    index: Index | None = None  # of the element in the tensor
    bit: int | None = None  # None if the fault concerns the whole element
    before: float | None = None
    after: float | None = None


class ErrorInjection(TellsParameters, TellsSkips, Results[Row, GroupBy], Tool):
    """Injects hardware faults into the values of operators::

        injection = ErrorInjection(BitFlip(30), ops="conv2d", rate=1e-6, seed=0)
        with amanda.apply(injection):
            model(x)
        print(injection.table())

    The faults are those of A. Mahmoud et al.: PyTorchFI: A Runtime Perturbation Tool for DNNs, DSN-W 2020. That tool
    hits outputs and weights of modules; here any operand of any operator can be hit, and gradients. A fault changes a
    value and nothing else: its gradient passes as if the value were right (PyTorchFI stops it), and the parameter that
    a faulty weight was read from keeps its value.

    By default, every execution of the layers' products is hit in one random element of its result. Operators whose
    result is a view of an operand compute nothing, and are not hit. Nothing else draws from the random numbers of this
    tool, and it draws from nobody else's; so equal seeds and equal programs have equal faults. A region that
    checkpointing recomputes is executed again: it is hit on its own.

    An operand that is None, or no tensor, is not hit; nor is one whose elements cannot be read, or that holds several
    samples at once, under `torch.vmap` (both in `skipped`). An element of a complex tensor is two elements, the last
    index being 0 or 1.

    Rows are by "fault" (the default, in the order of injection), "id" (one operator at its place in the program), "op",
    "module" or "line". See `Results` for `rows`, `table`, `to_pandas` and `reset`. `reset` also starts the random numbers
    again. `unhandled` has the parameters of the operators that were left out, and `covered` the share of the others: where
    faults are in weights, of these; else of all parameters that the operators hit compute with. Both are below tables.

    Arguments:
        fault: a `BitFlip`, `StuckAt` or `RandomValue`, or a `Fault` of your own.
        ops, modules: as in `Tool.add_inst_for_op`. By default, matrix products and convolutions.
        where: called as ``where(context)`` once per operator; False keeps faults away from it. If it is never True, leaving
            the scope warns (`UnmatchedFilterWarning`).
        at: "output", "input" or "weight" of an operator, "grad_output" or "grad_input" of a backward operator. A weight
            is the input of that name, or in a matrix product the factor that is a parameter of the model; products
            without one are not hit.
        position: the output, input or gradient to hit; an input may be named. Gradients have the positions of the
            autograd node.
        backward_op: the name of that node, such as "ConvolutionBackward0" or a shell glob; needed with gradients, and
            only there.
        index: the element to hit, as a tuple with an index for each dimension; or a list of such tuples.
        count: the number of random elements to hit in each execution. At most one of `index`, `count` and `rate` is
            given; by default, `count` is 1.
        rate: the probability with which each element is hit, 0 to 1.
        execution: hit only this execution of each operator, or these (``range(10, 20)``), counted from 0 on since the
            tool was made or reset. A gradient belongs to the execution that it is a gradient of.
        permanent: an operator is hit in the same way in each execution, elements, bits and values, as long as the shape
            is the same. By default, faults are transient: each execution is hit in its own way.
        seed: the seed of the random numbers.
        max_rows: the number of faults to keep as rows: the first ones. The others are counted in `dropped`, and in the
            rows of all other groupings.

    Raises:
        TypeError: `fault` is no `Fault`, or `where` is not callable.
        ValueError: an argument is out of range, or two exclude each other.
        amanda.Error: when an operator runs that has no such position, element or weight.
    """

    _speaker = "error_injection"
    _counts = (number_column("faults", "faults"), number_column("executions", "executions"))
    _counted = (*_counts, number_column("elements", "elements"))
    _of_a_fault = ("execution", "index", "bit", "before", "after")
    _where_hit = (
        Column("backward op", lambda row: row.backward_op, left=True, folds=True, field="backward_op"),
        Column("position", lambda row: str(row.position), field="position"),
    )
    _groupings = {
        "fault": Grouping(
            [
                name_column("id"),
                *_where_hit,
                number_column("run", "execution"),
                Column("index", lambda row: ", ".join(map(str, row.index))),
                number_column("bit", "bit"),
                general_column("before", "before"),
                general_column("after", "after"),
            ],
            fields_of(Row, without=("executions", "elements"), position="object"),
        ),
        **place_groupings(Row, _counted, {"id": _where_hit}, without=_of_a_fault, position="object"),
    }

    def __init__(
        self,
        fault: Fault,
        *,
        ops: str | Iterable[str] | None = OPS,
        modules: str | Iterable[str] | None = None,
        where: Callable[[OpContext], object] = lambda context: True,
        at: Side = "output",
        position: int | str = 0,
        backward_op: str | None = None,
        index: Index | list[Index] | None = None,
        count: int | None = None,
        rate: float | None = None,
        execution: int | Collection[int] | None = None,
        permanent: bool = False,
        seed: int = 0,
        max_rows: int = 100_000,
    ) -> None:
        super().__init__()
        if not isinstance(fault, Fault):
            raise TypeError(f"[error_injection] a fault is a BitFlip, a StuckAt or a RandomValue, got {fault!r}")
        self._where = Where(self._speaker, where)
        self._parameters = ParameterUse(self, self._speaker)
        if at not in get_args(Side):
            raise ValueError(f"[error_injection] at= is {', '.join(get_args(Side))}; got {at!r}")
        backward = at.startswith("grad_")
        if backward != (backward_op is not None):
            raise ValueError(
                '[error_injection] backward_op= names the autograd node for at="grad_output" and at="grad_input", such as '
                f'"ConvolutionBackward0"; the results of GradientStatistics list them; got at={at!r}, {backward_op!r}'
            )
        if backward and not isinstance(position, int):
            raise ValueError(f"[error_injection] position= of a gradient is a number, got {position!r}")
        executions = (execution,) if isinstance(execution, int) else execution
        if executions is not None and (isinstance(executions, str) or not isinstance(executions, Collection)):
            raise TypeError(f"[error_injection] execution= is a number or a range of numbers, got {execution!r}")
        self._fault, self._at, self._position = fault, at, position
        self._backward_op = backward_op or ""
        self._elements = Elements(index, count, rate)
        self._executions = executions
        self._permanent, self._seed, self._max_rows = permanent, seed, max_rows
        self.arrays: Arrays | None = None  # the framework of what is hit
        self._generator: Any = None
        self._seeds: dict[_Target, int] = {}  # of permanent faults
        self._counts_of: dict[_Target, collections.Counter[str]] = {}
        self._executed: collections.Counter[int] = collections.Counter()  # by operator, for gradients
        self._injected: list[Row] = []
        self._skips = Skips("error_injection")
        self._lock = locks.lock()  # guards everything random and found
        names = ops if ops is None or isinstance(ops, str) else [*ops]
        if ops is OPS:
            names = weighted_operators(*OPS)
        if backward:
            self.add_inst_for_op(self._count_executions, ops=names, modules=modules)
            outputs = at == "grad_input"
            self.add_inst_for_op(self._analyze_backward, True, outputs, ops=names, modules=modules)
        else:
            self.add_inst_for_op(self._analyze, ops=names, modules=modules)
        if ops is OPS:
            fused_layers.refuse_in(self)

    # ---- injecting --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        self._parameters.asked(context)
        if _returns_view(context) or not self._where(context):
            return
        if self._at == "output":
            self._parameters.handled_operator(context)
            target = _Target(Place.of(context), self._position)
            context.insert_after_op(self._inject, [self._position], target=target)
            return
        position = _weight_of(context) if self._at == "weight" else self._position
        if position is not None:
            self._parameters.handled(context, position, or_computed=self._at == "weight")
            target = _Target(Place.of(context), position)
            context.insert_before_op(self._inject, [position], target=target)

    def _count_executions(self, context: OpContext) -> None:
        self._parameters.asked(context)
        context.insert_before_op(self._count_execution, [], with_run=True, op_id=context.op_id)

    def _count_execution(self, op_id: int, run: dict[str, int]) -> None:
        with self._lock:
            run["execution"] = self._executed[op_id]
            self._executed[op_id] += 1

    def _analyze_backward(self, context: OpContext) -> None:
        node, position = context.backward_op.__name__, cast(int, self._position)
        if not fnmatch.fnmatchcase(node, self._backward_op) or not self._where(context):
            return
        self._parameters.handled_operator(context)
        target = _Target(Place.of(context), position, node, context.backward_op_id)
        if self._at == "grad_output":
            context.insert_before_backward_op(self._inject, [position], with_run=True, target=target)
        else:
            context.insert_after_backward_op(self._inject, [position], with_run=True, target=target)

    def _inject(self, value: Any, target: _Target, run: dict[str, int] | None = None) -> Any:
        arrays = arrays_of(value)
        if arrays is None or self._skips.unreadable(value):
            return None
        if self._skips.is_several(value):
            return None
        with arrays.untransformed():
            return self._faulty(arrays.detached(arrays.plain(value)), arrays, target, run)

    def _faulty(self, plain: Any, arrays: Arrays, target: _Target, run: dict[str, int] | None) -> Any:
        """A copy with faults; None if it would have none."""
        shape = (*plain.shape, 2) if arrays.is_complex(plain) else tuple(plain.shape)
        with self._lock:
            counts = self._counts_of.setdefault(target, collections.Counter())
            execution = counts["executions"] if run is None else run["execution"]
            counts.update(executions=1, elements=math.prod(shape))
            if self._executions is not None and execution not in self._executions:
                return None
            generator = self._generator_for(target, arrays)
            hit = self._elements.draw(shape, arrays, generator, f"{self._at} {target.position} of {target.name}")
            if not hit:
                return None
            faulty = arrays.copy(plain)
            values = arrays.as_reals(faulty)
            cells = arrays.as_integers(values)
            before = arrays.take(cells, hit).view(values.dtype)
            after, bits = self._fault.corrupt(before, generator)
            arrays.put(cells, hit, arrays.as_integers(after))
            counts.update(faults=len(hit))
            for element, bit, old, new in zip(hit, bits, arrays.numbers(before), arrays.numbers(after), strict=True):
                if len(self._injected) == self._max_rows:
                    break
                where = index_of(element, shape)
                self._injected.append(
                    Row(*target.row(), faults=1, execution=execution, index=where, bit=bit, before=old, after=new)
                )
        return faulty

    def _generator_for(self, target: _Target, arrays: Arrays) -> Any:
        if self._generator is None:
            self.arrays, self._generator = arrays, arrays.generator(self._seed)
        if not self._permanent:
            return self._generator
        if target not in self._seeds:
            (self._seeds[target],) = arrays.integers(self._generator, 2**62, 1)
        return arrays.generator(self._seeds[target])

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> int:
        """The number of faults that were injected."""
        with self._lock:
            return sum(counts["faults"] for counts in self._counts_of.values())

    @property
    def dropped(self) -> int:
        """The number of faults that have no row of their own, because there were more than `max_rows`."""
        return self.faults - len(self._injected)

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)
            if self._at == "weight" and not self._where.refuses_all:
                self._parameters.tell(self)

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._generator = None
            self._seeds.clear()
            self._counts_of.clear()
            self._executed.clear()
            self._injected.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            if by == "fault":
                return [*self._injected]
            groups: dict[_Target, collections.Counter[str]] = {}
            for target, counts in self._counts_of.items():
                groups.setdefault(target.group(by), collections.Counter()).update(counts)
        return [
            Row(*group.row(), counts["faults"], counts["executions"], counts["elements"])
            for group, counts in groups.items()
        ]

    def _columns(self, by: GroupBy, rows: Sequence[Row]) -> Sequence[Column]:
        hidden = "" if self._backward_op else "backward_op"
        return [column for column in self._groupings[by].columns if column.field != hidden]

    def _remarks(self, by: GroupBy) -> list[str]:
        dropped = self.dropped if by == "fault" else 0
        more = f"{dropped} more faults were injected" if dropped else ""
        return [more, self._skips.caption(), self._parameters.caption()]


class _Target(NamedTuple):
    """An operand that is hit; or what several have in common."""

    place: Place
    position: int | str | None
    backward_op: str = ""
    backward_op_id: int | None = None

    @property
    def name(self) -> str:
        return self.backward_op or self.place.name

    def row(self) -> tuple[int | None, str, str, str, str, int | str | None]:
        op_id, name, module_path, source = self.place
        return op_id, name, module_path, source, self.backward_op, self.position

    def group(self, by: GroupBy) -> _Target:
        return self if by == "id" else _Target(self.place.group(by), None)


def _returns_view(context: OpContext) -> bool:
    """True if the result shares memory with an operand that the operator does not write to."""
    return re.search(r"\w\([a-z]\)", context.op.schema.rpartition("->")[2]) is not None


def _weight_of(context: OpContext) -> str | None:
    op = context.op
    if not frameworks.is_torch(context):
        return _weight_by_role(context)
    if "weight" in op.input_names:
        return "weight"
    if op.__name__ not in amanda_ops.factors:
        raise _weight_is_unknown(context)
    for name in reversed(amanda_ops.factors[op.__name__]):
        if context.parameter_names[op.input_names.index(name)] is not None:
            return name
    return None


def _weight_by_role(context: OpContext) -> str | None:
    keys = keys_of(context)
    if "weight" in keys.get("roles", ()):
        return str(context.op.input_names[keys["roles"]["weight"]])
    if keys.get("op_type") != "matmul":
        raise _weight_is_unknown(context)
    return None


def _weight_is_unknown(context: OpContext) -> Error:
    return Error(f"[error_injection] which input of {context.op.name} is its weight is not known; name it by position=")
