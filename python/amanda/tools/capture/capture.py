"""Capture: keeps the results of chosen operators, and their gradients."""

from __future__ import annotations

import collections
import functools
import math
import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from amanda import OpContext, Run, Tool
from amanda.toolkit import Place, Results, Skips, frameworks, locks, warn_here
from amanda.toolkit.arrays import Arrays, arrays_in, arrays_of, known
from amanda.toolkit.operators import access_to

from .attention_weights import ATTENTION, WEIGHTS, AttentionWeights
from .captured import Captured, Value
from .names import Naming, Numbering, Pattern, ResultName, listed, ops_of
from .rows import GROUPINGS, GroupBy, Row, grouped
from .stores import KINDS, FolderStore, Kind, MemoryStore, Store

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike

Runs: TypeAlias = Literal["last", "all"] | int | Collection[int]


_KeptArrays: TypeAlias = tuple[int, dict[int, tuple[int, ...]], bool]
"""A result in arrays: the number of the run, shapes by position, and if it is a list."""


class Capture(Results[Row, GroupBy], Captured, Tool):
    """Keeps results of operators while a program runs, for looking at them later or for `Patch`::

        capture = Capture(ops="linear", modules="encoder.layer.0")
        with amanda.apply(capture):
            model(x)
        capture["encoder.layer.0.attention.query"]

    It is a mapping; see `Captured` for names, and for results of several runs. Kept results are copies, without their
    graphs. With ``grad=True``, `grad` has the gradient that autograd computes for a result, as
    `torch.Tensor.retain_grad` keeps it. It is the gradient of the result as its operator returned it, also if the
    result is modified in place later. If there are several backward passes through one run, it is that of the last. It
    is kept also if the backward pass runs after the scope was left.

    `rows` and `table` list the kept results, by "name", "op", "module" or "line", with their shapes, bytes and places.

    Results that are not tensors are left out; those whose elements cannot be read count in `skipped`. Compiled functions
    stay compiled.

    PyTorch's `scaled_dot_product_attention` does not return its attention weights. If it is in `ops`, or these are in
    `names`, they have the name "module:attention_weights", and are computed when they are read, of copies of query, key and
    mask. They have no gradients.

    In graphs of other frameworks results are arrays of numpy, and operators are counted in the order of the graph. The
    gradient is what the backward operators of the result are given: there is none where the graph passes it on as it is.

    Arguments:
        ops: operators, as of `amanda.Tool.add_inst_for_op`. By default, those that `names` needs, or all.
        modules: only operators inside these modules, as there. By default, everywhere.
        names: only results with these names: "module:operator", "module:operator[1]", the path of a module, which stands
            for all results of operators that it calls itself, or names of `naming`. ``*`` and ``?`` are globs. By
            default, all results are kept.
        grad: keeps gradients, too.
        device: the device on which tensors are kept, such as "cpu". By default, the device of each result.
        dtype: the dtype of kept floating-point results: torch's, or numpy's for arrays. By default, their own.
        runs: "last" keeps the last execution of each operator, "all" every one; a number or several keep those. Executions
            of an operator are counted from 0 on, over all scopes, until `reset`. A recomputation by a checkpoint is no
            execution if autograd recorded the first run. With a reentrant checkpoint it is one.
        folder: each result is written to a file there at once, and not kept in memory. See `load`.
        naming: other names for results, such as `TRANSFORMER_LENS_GPT2`. Then a name without a colon in `names` is one of
            these.

    Raises:
        ImportError: safetensors is not installed, and `folder` is given.
        TypeError: an argument has a wrong type.
        ValueError: there is no such operator; `runs` contains a negative number; the folder is not empty.
    """

    _speaker, _groupings = "capture", GROUPINGS

    def __init__(
        self,
        ops: str | Iterable[str] | None = None,
        modules: str | Iterable[str] | None = None,
        names: str | Iterable[str] | None = None,
        *,
        grad: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | DTypeLike | None = None,
        runs: Runs = "last",
        folder: str | os.PathLike[str] | None = None,
        naming: Naming | None = None,
    ) -> None:
        Tool.__init__(self)
        given = [names] if isinstance(names, str) else names
        self._patterns = None if given is None else [Pattern(name, naming, "capture") for name in given]
        self._wanted = _checked_runs(runs)
        self._grad, self._device, self._dtype = grad, device, dtype
        self._with_weights = ops is not None  # of attention, which was asked for
        self._numbering, self._skips = Numbering(), Skips("capture")
        self._counts: collections.Counter[str] = collections.Counter()  # executions, by name
        self._recorded: dict[str, bool] = {}  # true if autograd recorded the last one outside a backward pass
        self._places: dict[str, Place] = {}  # by name
        self._last: dict[str, _KeptArrays] = {}  # by name
        self._early: dict[str, list[Any]] = {}  # gradients whose result was not kept yet, by name
        self._kept_sizes: dict[tuple[Kind, str, int], _Size] = {}  # by kind, name and run
        self._lock = locks.lock()  # guards the fields above
        if ops is None and self._patterns is not None:
            ops = ops_of(self._patterns)
        self.add_inst_for_op(self._analyze, ops=ops, modules=modules)
        store: Store = MemoryStore() if folder is None else FolderStore(folder, new=True)
        Captured.__init__(self, store, naming)

    __hash__ = Tool.__hash__  # a mapping has none; tools are looked up by identity
    __eq__ = Tool.__eq__
    __repr__ = Tool.__repr__

    @property
    def skipped(self) -> dict[str, int]:
        """The number of tensors that were not kept because their elements cannot be read, by reason."""
        return self._skips.counts()

    def grad(self, name: str) -> Value:
        self._settle(list(self._early))
        return super().grad(name)

    def grads(self, name: str) -> dict[int, Value]:
        self._settle(list(self._early))
        return super().grads(name)

    def reset(self) -> None:
        """Forgets all results, and deletes their files, also inside a scope. Executions are counted from 0 on again."""
        self.reset_evidence()
        with self._lock:
            self._counts.clear()
            self._recorded.clear()
            self._last.clear()
            self._early.clear()
            self._kept_sizes.clear()
        self._store.clear()
        self._skips.reset()

    def on_exit(self, error: BaseException | None) -> None:
        self._settle(list(self._early))
        if error is None:
            warn_of_unmatched(self, self._patterns or (), self._numbering)

    def _rows(self, by: GroupBy) -> list[Row]:
        rows = [self._row(name) for name in self._store.names()]
        return grouped([row for row in rows if row is not None], by)

    def _row(self, name: str) -> Row | None:
        """The row of a name. None if another thread has dropped it meanwhile."""
        kept = {kind: self._store.runs(kind, name) for kind in KINDS}
        try:
            where = self._store.where("result", name, kept["result"][-1])
            with self._lock:
                place = self._places[name]
                sizes = {kind: [self._kept_sizes[kind, name, run] for run in runs] for kind, runs in kept.items()}
        except LookupError:
            return None
        latest, total = sizes["result"][-1], sum(size.bytes for some in sizes.values() for size in some)
        counts = len(sizes["result"]), len(sizes["grad"]), total
        return Row(name, place.name, place.module_path, place.source, latest.shape, latest.dtype, *counts, where)

    # ---- routines ---------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        of_torch = frameworks.is_torch(context)
        name = self._numbering.name_of(context)
        if of_torch and context.op.__name__ == ATTENTION:
            self._analyze_attention(context, name._replace(op=WEIGHTS))
        if self._patterns is not None and not any(pattern.matches(name) for pattern in self._patterns):
            return
        with self._lock:
            self._places[str(name)] = Place.of(context)
        if not of_torch:
            with_grad = self._grad and access_to(context.namespace, context.op.__name__).has_backward
            context.insert_after_op(self._keep_arrays, with_run=True, name=str(name))
            if with_grad:
                context.insert_before_backward_op(self._receive_arrays, with_run=True, name=str(name))
            return
        is_in_place = context.op.__name__.endswith("_") and not context.op.__name__.endswith("__")
        # The tensor that a routine gets from these is not the one in the program's graph.
        if context.is_symbolic or (self._grad and is_in_place):
            keep = functools.partial(self._keep_detached, recorded=True if context.is_symbolic else None)
            context.insert_after_op(keep, with_run=True, name=str(name))
            if self._grad:
                context.insert_before_backward_op(self._receive, with_run=True, name=str(name))
        else:
            context.insert_after_op(self._keep, name=str(name))

    def _analyze_attention(self, context: OpContext, name: ResultName) -> None:
        if self._with_weights if self._patterns is None else any(each.matches(name) for each in self._patterns):
            with self._lock:
                self._places[str(name)] = Place.of(context)
            recorded = True if context.is_symbolic else None
            context.insert_before_op(self._keep_weights, name=str(name), recorded=recorded)

    def _keep_weights(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        name: str,
        recorded: bool | None,
    ) -> None:
        """The parameters are those of the operator."""
        import torch

        run = self._next_run(name, [query, key, value], _in_backward(), recorded)
        if run is None:
            return
        if any(torch.func.debug_unwrap(each) is not each for each in (query, key, mask) if each is not None):
            self._skips.add("transformed")  # their axes may differ
            return

        def copied(plain: Any, arrays: Arrays) -> Any:
            return arrays.copied(plain, self._device, None)

        dtype, scale = self._dtype or query.dtype, 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        is_masked = mask is not None
        query, key, mask = (None if each is None else self._skips.read(each, copied) for each in (query, key, mask))
        if query is None or key is None or (mask is None) == is_masked:
            return
        weights = AttentionWeights(query, key, mask, bool(is_causal), float(scale), dtype)
        self._put("result", name, run, (weights,), False)
        self._drop_before(name, run)

    def _keep(self, *outputs: Any, name: str) -> None:
        kept = self._kept(name, outputs, _in_backward())
        if self._grad and kept is not None:
            self._follow(name, *kept)

    def _keep_detached(self, *outputs: Any, name: str, run: Run, recorded: bool | None) -> None:
        kept = self._kept(name, outputs, _in_backward(), recorded)
        if kept is not None:
            run["number"], tensors, run["is list"] = kept
            run["shapes"] = [tuple(tensor.shape) for tensor in tensors]

    def _receive(self, *gradients: Any, name: str, run: Run) -> None:
        """The first backward operator that runs is the one that gets the gradients of the result."""
        from amanda.toolkit.torch import graph_task_id

        if "number" not in run or run.get("pass") == graph_task_id():
            return
        run["pass"] = graph_task_id()
        found = dict(enumerate(_members(gradients)))
        self._keep_gradients(name, run["number"], found, run["shapes"], run["is list"])

    def _keep_arrays(self, *outputs: Any, name: str, run: Run) -> None:
        with self._lock:
            gradients = run.pop("gradients", None)
            if gradients is not None:
                self._early.pop(name, None)
        self._settle([name])
        kept = self._kept(name, outputs, in_backward=False)
        if kept is None:
            return
        number, arrays, is_list = kept
        shown = [i for i, each in enumerate(_members(outputs)) if arrays_of(each) is not None]
        result = number, dict(zip(shown, [each.shape for each in arrays], strict=True)), is_list
        run["kept"] = result
        with self._lock:
            self._last[name] = result
        if gradients is not None:
            self._keep_arrays_gradients(name, result, gradients)

    def _receive_arrays(self, *gradients: Any, name: str, run: Run) -> None:
        """Each backward operator of a result gets the same gradients of it. In a graph, it may run before the result is
        kept. A function of gradients that runs by itself has a run of its own."""
        if "kept" in run:
            self._keep_arrays_gradients(name, run["kept"], _members(gradients))
        elif "gradients" not in run:
            self._settle([name])
            copies = [None if each is None else known(each).copy(each) for each in _members(gradients)]
            with self._lock:
                run["gradients"] = self._early[name] = copies

    def _settle(self, names: Iterable[str]) -> None:
        """Gradients that came without their result belong to the latest one."""
        for name in names:
            with self._lock:
                latest = self._last.get(name)
                gradients = None if latest is None else self._early.pop(name, None)
            if latest is not None and gradients is not None:
                self._keep_arrays_gradients(name, latest, gradients)

    def _keep_arrays_gradients(self, name: str, result: _KeptArrays, gradients: Sequence[Any]) -> None:
        number, shapes, is_list = result
        of_shown = {at: gradients[position] for at, position in enumerate(shapes) if position < len(gradients)}
        self._keep_gradients(name, number, of_shown, list(shapes.values()), is_list)

    def _kept(
        self, name: str, outputs: tuple[Any, ...], in_backward: bool, recorded: bool | None = None
    ) -> tuple[int, list[Any], bool] | None:
        """Keeps a result; None if it is left out. Returns the number of the run, the tensors, and if it is a list.
        If `recorded` is None, autograd records it if a tensor requires a gradient."""
        result = outputs[0] if len(outputs) == 1 else outputs  # as `_members`
        is_list = arrays_of(result) is None
        tensors = arrays_in(result)
        run = self._next_run(name, tensors, in_backward, recorded)
        if run is None or not tensors:
            return None
        copies = [copy for copy in map(self._copied, tensors) if copy is not None]
        if not copies:
            return None
        self._put("result", name, run, tuple(copies), is_list)
        self._drop_before(name, run)
        return (run, tensors, is_list) if len(copies) == len(tensors) else None

    def _next_run(self, name: str, tensors: Sequence[Any], in_backward: bool, recorded: bool | None) -> int | None:
        """The number of the execution; None if it is none, or is not to be kept."""
        with self._lock:
            if in_backward and self._recorded.get(name):  # recomputed; gradients reach the first tensors
                return None
            if not in_backward:
                requires_grad = any(getattr(tensor, "requires_grad", False) for tensor in tensors)
                self._recorded[name] = requires_grad if recorded is None else recorded
            run = self._counts[name]
            self._counts[name] += 1
        return run if isinstance(self._wanted, str) or run in self._wanted else None

    def _drop_before(self, name: str, run: int) -> None:
        if self._wanted == "last" and run:
            self._store.drop(name, run - 1)
            with self._lock:
                for kind in KINDS:
                    self._kept_sizes.pop((kind, name, run - 1), None)

    def _follow(self, name: str, run: int, tensors: list[torch.Tensor], is_list: bool) -> None:
        import torch

        gradients: dict[int, torch.Tensor | None] = {}
        shapes = [tuple(tensor.shape) for tensor in tensors]

        def receive(gradient: torch.Tensor | None, at: int) -> None:
            gradients[at] = gradient
            with torch.no_grad():  # other tools see nothing of it: autograd calls it
                self._keep_gradients(name, run, gradients, shapes, is_list)

        for at, tensor in enumerate(tensors):
            if tensor.requires_grad and torch.func.debug_unwrap(tensor) is tensor:
                tensor.register_hook(functools.partial(receive, at=at))

    def _keep_gradients(
        self,
        name: str,
        run: int,
        gradients: dict[int, Any],
        shapes: list[tuple[int, ...]],
        is_list: bool,
    ) -> None:
        """Keeps gradients of results. Members of a list that get none have zeros, as autograd passes them on."""
        if run not in self._store.runs("result", name):  # a later run has taken its place
            return
        copies = {at: self._copied(each) for at, each in gradients.items() if each is not None}
        some = next((copy for copy in copies.values() if copy is not None), None)
        if some is None:
            return
        zeros = [known(some).zeros(some, shape) for shape in shapes]
        found = [zero if (copy := copies.get(at)) is None else copy for at, zero in enumerate(zeros)]
        self._put("grad", name, run, tuple(found), is_list)

    def _put(self, kind: Kind, name: str, run: int, tensors: tuple[Any, ...], is_list: bool) -> None:
        with self._lock:
            self._kept_sizes[kind, name, run] = _Size.of(tensors)
        self._store.put(kind, name, run, tensors, is_list)

    def _copied(self, tensor: Any) -> Any:
        def copy(plain: Any, arrays: Arrays) -> Any:
            dtype = self._dtype if arrays.is_floating(plain) else None
            return arrays.copied(plain, self._device, dtype)

        return self._skips.read(tensor, copy)


class _Size(NamedTuple):
    """The size of a result or a gradient that was kept."""

    shape: str
    dtype: str
    bytes: int

    @classmethod
    def of(cls, tensors: tuple[Any, ...]) -> _Size:
        dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        if isinstance(tensors[0], AttentionWeights):
            return cls(shapes, ", ".join(dtypes), tensors[0].nbytes)
        return cls(shapes, ", ".join(dtypes), sum(known(tensor).nbytes(tensor) for tensor in tensors))


def warn_of_unmatched(tool: Tool, patterns: Iterable[Pattern], numbering: Numbering) -> None:
    """Warns of patterns that no result matched so far, where the tool has seen results."""
    names = numbering.names()
    absent = [pattern.text for pattern in patterns if not any(map(pattern.matches, names))]
    if names and absent:
        warn_here(
            f"[{tool.name.lower()}] no result that '{tool.name}' saw has the name {listed(absent)}; it saw {listed(names)}"
        )


def _members(values: tuple[Any, ...]) -> Sequence[Any]:
    return values[0] if len(values) == 1 and isinstance(values[0], list | tuple) else values


def _in_backward() -> bool:
    """True in a backward pass of PyTorch on this thread."""
    from amanda.toolkit.torch import graph_task_id

    return bool(graph_task_id() != -1)


def _checked_runs(runs: Any) -> Literal["last", "all"] | Collection[int]:
    if isinstance(runs, str) and runs in ("last", "all"):
        return "last" if runs == "last" else "all"
    several: Any = (runs,) if isinstance(runs, int) else runs
    if isinstance(several, str) or not isinstance(several, Collection):
        raise TypeError(f'[capture] runs= is "last", "all", a number or several, got {runs!r}')
    for run in several:
        if not isinstance(run, int):
            raise TypeError(f'[capture] runs= is "last", "all", a number or several, got {runs!r}')
        if run < 0:
            raise ValueError(f"[capture] runs are counted from 0 on, got {run}")
    return several if isinstance(several, range) else frozenset(several)
