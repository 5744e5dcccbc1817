"""`amanda diff script.py model.pt2` compares the model in a file of torch.export with the program's own."""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amanda.cli import exported_program, statuses
from amanda.cli.command import Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.core.op_context import OpContext
from amanda.core.scope import apply
from amanda.core.switches import disabled
from amanda.core.tool import Tool
from amanda.toolkit.schemas import Sides
from amanda.tools.diff import CausalDiff, Recorder


def job(
    program: Program,
    path: str,
    given: argparse.Namespace,
    report: Callable[[CausalDiff, str, Report, str], object],
    program_failed_status: int,
) -> Job:
    """The work. Nothing has run yet. `report` gets the comparison, if there was one; what was compared; and a sentence if
    both agree.

    Raises:
        ValueError: the file has no exported program, or nothing in it says of which class the model was.
        OSError: the file cannot be read.
    """
    folder = tempfile.mkdtemp()
    options = {"rtol": given.rtol, "atol": given.atol, "close": given.close, "float64": given.float64}
    try:
        calls = FirstCall(path, folder, options)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def end(made: Report, status: object) -> None:
        try:
            if calls.diff is not None:
                report(calls.diff, f"{' '.join(program.argv)} and {path}", made, calls.agreement)
                return
            with made.part("print why nothing was compared"):
                print(f"\nnothing was compared: {calls.why_not}", flush=True)
            if made.status is None:
                made.status = statuses.NOT_LOOKED_AT
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    failed = functools.partial(program_failed, "diff", program.argv[0], own=program_failed_status)
    return run_under(calls, program, given, end, failed=failed)


class FirstCall(Tool):
    """Records the first call of a model of the class that was exported. Then the exported model is called on the same
    arguments, with the same random numbers, and compared with the record.

    Arguments:
        path: the file.
        folder: of the record; it is empty.
        options: of the comparison.
    """

    def __init__(self, path: str, folder: str, options: Mapping[str, Any]) -> None:
        super().__init__("exported_diff")
        exported = exported_program.loaded(path)
        self._class = _root_class(exported.graph)
        if self._class is None:
            raise ValueError(f"{path!r} does not say of which class the model was that was exported")
        self._exported, self._folder, self._options = exported.module(), folder, options
        self._signature = _Signature(exported)
        self._call: _Call | None = None
        self._running = _Running()
        self._close: list[Callable[[], object]] = []
        self.diff: CausalDiff | None = None  # once it was compared
        self._outputs_are_equal = False
        self.why_not = f"the program has called no {self._class}, which is the model in {path!r}"

    @property
    def agreement(self) -> str:
        """A sentence if the outputs of both are equal; else ""."""
        if not self._outputs_are_equal:
            return ""
        return (
            f"no difference: all tensors that the first call of {self._class} returns are equal, bit for bit; later calls "
            "and gradients were not compared"
        )

    def on_enter(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        from amanda.toolkit.torch import after_all_modules

        self._close = [register_module_forward_pre_hook(self._begin).remove, after_all_modules(self._end)]

    def on_exit(self, error: BaseException | None) -> None:
        while self._close:
            self._close.pop()()
        if self._call is not None:  # an exception has left it
            self._call.close()

    def _begin(self, module: Any, arguments: Any) -> None:
        if _is_compiling():
            return
        self._running.modules.append(module)
        if self._call is None and type(module).__name__ == self._class:
            outermost = self._running.modules[0]
            path = next((name for name, each in outermost.named_modules() if each is module), "")
            try:
                copied = copy.deepcopy(_detached(arguments))
            except Exception as error:  # the arguments' own
                self.why_not = f"the arguments can't be copied: {type(error).__name__}: {error}"
            else:
                self._call = _Call(module, path, copied, self._folder)

    def _end(self, module: Any, arguments: Any, keywords: Mapping[str, Any], result: Any) -> None:
        if _is_compiling():
            return
        call = self._call
        if self._running.modules:
            self._running.modules.pop()
        if call is None or call.model is not module or not call.is_open:
            return
        call.close()
        if result is None:
            self.why_not = f"the call of {self._class} has failed, or returned nothing"
        elif call.wrote_to(keywords):
            self.why_not = f"{self._class} writes to an argument that is given by name: give it by position"
        else:
            self._compare(call, keywords, result)

    def _compare(self, call: _Call, keywords: Mapping[str, Any], result: Any) -> None:
        try:
            diff = CausalDiff(self._folder, **self._options, lines=False, progress=False)
            args, kwargs = self._signature.given(call.model, call.arguments, keywords)
            with disabled():
                outputs = self._run(self._exported, call, copy.deepcopy(args), copy.deepcopy(_detached(kwargs)))
            if _are_equal(outputs, result):
                self._outputs_are_equal = True
            else:
                model = _at(call.path, self._exported)
                with apply(diff):
                    self._run(model, call, args, kwargs)
        except Exception as error:  # the file's, of which the program must not end
            self.why_not = f"the model in the file fails on the program's arguments: {type(error).__name__}: {error}"
        else:
            self.diff = diff

    def _run(self, model: Any, call: _Call, args: Any, kwargs: Any) -> Any:
        import torch

        with torch.random.fork_rng(), torch.no_grad():
            torch.set_rng_state(call.random_state)
            return model(*args, **kwargs)


def _is_compiling() -> bool:
    """True while Dynamo traces the program, into which it would compile what hooks do."""
    import torch

    return bool(torch.compiler.is_compiling())


class _Running(threading.local):
    """The modules that a thread runs, the outermost first."""

    def __init__(self) -> None:
        self.modules: list[Any] = []


def _at(path: str, model: Any) -> Any:
    """A module that calls a model, which has this path in it: operators are matched by the paths of their modules."""
    import torch

    if not path:
        return model

    class Around(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.get_submodule(path)(*args, **kwargs)

    around = holder = Around()
    *outer, name = path.split(".")
    for each in outer:
        holder.add_module(each, torch.nn.Module())
        holder = holder.get_submodule(each)
    holder.add_module(name, model)
    return around


class _Signature:
    """The arguments of the exported model, which may take by position what the program gives by name."""

    def __init__(self, exported: Any) -> None:
        args, kwargs = exported.call_spec.in_spec.children()
        names = exported.module_call_graph[0].signature.forward_arg_names or ()
        self._by_position, self._by_name = names[: args.num_children], list(kwargs.context)

    def given(
        self, model: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The program's arguments as the exported model takes them. Raises `TypeError`: it takes others."""
        values = dict(_named(model, arguments, keywords))
        taken = [*self._by_position, *self._by_name]
        if missing := [name for name in taken if name not in values]:
            raise TypeError(f"it takes {', '.join(missing)}, which the program does not give")
        if more := [name for name, (value, default) in values.items() if name not in taken and value is not default]:
            raise TypeError(f"the program gives {', '.join(more)}, which it does not take")
        return [values[name][0] for name in self._by_position], {name: values[name][0] for name in self._by_name}


def _named(
    model: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The arguments and their defaults, by the names that torch.export has for them."""
    bound = inspect.signature(model.forward).bind(*arguments, **keywords)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}_{i}", (each, None)) for i, each in enumerate(value))
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((key, (each, None)) for key, each in value.items())
        else:
            yield name, (value, parameter.default)


class _Call:
    """A call of the model that is recorded, until it is closed."""

    def __init__(self, model: Any, path: str, arguments: Any, folder: str) -> None:
        import torch

        self.model, self.path, self.arguments = model, path, arguments
        self.random_state = torch.get_rng_state()
        self._recorder, self._writes = Recorder(folder, lines=False), _Writes()
        self._scope = apply(self._recorder, self._writes)
        self._scope.__enter__()
        self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._scope.__exit__(None, None, None)
            self._recorder.close()

    def wrote_to(self, keywords: Mapping[str, Any]) -> bool:
        from amanda.toolkit.torch import tree_leaves

        return any(_memory(leaf) in self._writes.memory for leaf in tree_leaves(keywords))


class _Writes(Tool):
    """The addresses of memory that operators write to."""

    def __init__(self) -> None:
        super().__init__("exported_diff_writes")
        self.memory: set[int | None] = set()
        self.add_inst_for_op(self._analyze)

    def _analyze(self, context: OpContext) -> None:
        if Sides.of(context).written:
            context.insert_after_op(self._after)

    def _after(self, *results: Any) -> None:
        self.memory.update(address for result in results if (address := _memory(result)) is not None)


def _memory(value: Any) -> int | None:
    import torch

    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and value.numel() else None


def _detached(arguments: Any) -> Any:
    """Tensors of graphs can't be copied."""
    import torch

    from amanda.toolkit.torch import tree_map_only

    return tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)


def _are_equal(outputs: Any, others: Any) -> bool:
    """True if all tensors in them are, bit for bit."""
    import torch

    from amanda.toolkit.torch import tree_leaves

    tensors = [[leaf for leaf in tree_leaves(each) if isinstance(leaf, torch.Tensor)] for each in (outputs, others)]
    return 0 < len(tensors[0]) == len(tensors[1]) and all(map(_have_same_bits, *tensors))


def _have_same_bits(one: Any, other: Any) -> bool:
    """Unlike `torch.equal`, for which 0.0 is -0.0, and NaN is not NaN."""
    import torch

    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(torch.equal(*(each.detach().cpu().reshape(-1).contiguous().view(torch.uint8) for each in (one, other))))


def _root_class(graph: Any) -> str | None:
    for node in graph.nodes:
        for _, cls in list((node.meta.get("nn_module_stack") or {}).values())[:1]:
            name = cls if isinstance(cls, str) else cls.__qualname__
            return str(name.rpartition(".")[2])
    return None
