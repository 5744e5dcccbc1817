"""Runs samples of PyTorch's operator database outside a scope and inside, and compares everything they leave behind."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import amanda
import torch
from bits import bits, difference
from exclusions import SKIPPED, UNINITIALISED, UNSEEN, reason_for
from faithful import HandBack, Look, RunOriginal
from sample_inputs import sample_inputs
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.int64, torch.complex64)
TOOLS: dict[str, Callable[[], amanda.Tool]] = {
    "look": Look,
    "hand back": HandBack,
    "run original": RunOriginal,
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def variants(op: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every way to call an operator: its name, and what to call."""
    yield "function", op.op
    for family in (op, *op.aliases):
        prefix = "" if family is op else f"{family.name} "
        if family is not op:
            yield f"{prefix}function", family.op
        ways = ("method_variant", "inplace_variant", "operator_variant", "inplace_operator_variant")
        for way in ways:
            call = getattr(family, way, None)
            if call is not None:
                yield prefix + way.removesuffix("_variant").replace("_", " "), call
    if op.supports_out:
        yield "out", op.op


def gradient_for(tensor: torch.Tensor) -> torch.Tensor:
    """Some gradient, the same each time, with another value at each place."""
    places = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    return ((places % 7) - 3).div(4).to(tensor.device, tensor.dtype)


def copied(value: Any, known: dict[int, Any] | None = None) -> Any:
    """The same again, with the same strides, bits and sharing."""
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        if type(value) is torch.Tensor and value.layout == torch.strided and value.is_leaf and not value.is_nested:
            return copy.deepcopy(value, known)  # knows what shares memory
        if id(value) not in known:
            known[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return known[id(value)]
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, dict):
        return {key: copied(item, known) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(item, known) for item in value)
    return value


def had_gradients(result: list[Any]) -> bool:
    """Did this result of `Sample.run` have gradients?"""
    return result[-1][0] == "had gradients" and result[-1][1]


def result_tensors(result: Any) -> list[torch.Tensor]:
    found = result if isinstance(result, list | tuple) else [result]
    return [item for item in found if isinstance(item, torch.Tensor)]


def prepared_out(result: Any, flavour: int) -> Any:
    """Something to pass as out=: of the right shape, of the right shape with other strides, or to be resized."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if flavour == 2:
            return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        if flavour == 1:  # with gaps; some of PyTorch's kernels corrupt memory where dimensions are permuted
            return torch.ones((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)[..., 0]
        return torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    if isinstance(result, torch.Tensor):
        return one(result)
    return tuple(one(item) for item in result)


@dataclasses.dataclass
class Sample:
    """One way to call one operator on one set of arguments."""

    op: Any
    variant: str
    call: Callable[..., Any]
    arguments: Any  # a SampleInput
    index: int
    out: Any = None
    may_differ: str | None = None  # why
    differed: bool = False

    def prepare_out(self) -> bool:
        """Makes what to pass as out=. There is nothing, where the function itself raises."""
        try:
            torch.manual_seed(7)
            result = self.call(*copied((self.arguments.input, *self.arguments.args)), **copied(self.arguments.kwargs))
            self.out = prepared_out(result, self.index % 3)
        except Exception:
            return False  # the variant "function" compares what it raises
        return True

    def run(self, scope: Any = None) -> list[Any]:
        """Calls it twice with the same arguments, for what is decided in a first run is done in the next.

        Returns what comes back or is raised, and what becomes of the arguments, gradients and random state, as bits.
        """
        arguments, args, kwargs, out = copied(
            (self.arguments.input, self.arguments.args, self.arguments.kwargs, self.out)
        )
        if out is not None:
            kwargs["out"] = out
        torch.manual_seed(7)
        results: list[Any] = []
        gradients: list[Any] = []
        try:
            with scope or contextlib.nullcontext():
                for _ in range(2):
                    results.append(self._call(arguments, args, kwargs))
                    gradients += self._backward(results[-1])
        except (Exception, Warning) as error:
            results += [type(error).__name__, str(error)]
        leaves = [t for t in torch.utils._pytree.tree_leaves((arguments, args, kwargs)) if isinstance(t, torch.Tensor)]
        states = [torch.default_generator.get_state(), *torch.cuda.get_rng_state_all()]
        random = [hash(state.numpy().tobytes()) for state in states]
        reached = [leaf.grad for leaf in leaves if leaf.is_leaf]
        found = bits([arguments, args, kwargs, results, gradients, reached])
        return [*found, ("random state", random), ("had gradients", bool(gradients))]

    def _call(self, first: Any, args: Any, kwargs: Any) -> Any:
        if "inplace" in self.variant and isinstance(first, torch.Tensor) and first.requires_grad:
            first = first.clone()  # a leaf that requires a gradient can't be written to
        return self.call(first, *args, **kwargs)

    def _backward(self, result: Any) -> list[Any]:
        """Gradients flow to the arguments' `.grad`. Returns those that were put in."""
        ends = result_tensors(self.arguments.output_process_fn_grad(result))
        ends = [end for end in ends if end.requires_grad and end.grad_fn is not None and end.layout == torch.strided]
        with amanda.disabled():
            gradients = [gradient_for(end) for end in ends]
        if ends:
            torch.autograd.backward(ends, gradients)
        return gradients


@dataclasses.dataclass
class Findings:
    """What came out of a sweep."""

    operators: int = 0
    samples: int = 0
    comparisons: Counter[str] = dataclasses.field(default_factory=Counter)
    seen: Counter[str] = dataclasses.field(default_factory=Counter)  # operator runs that the looking tool saw
    failures: list[str] = dataclasses.field(default_factory=list)
    excluded: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)  # by what, and why: samples

    def add(self, other: Findings) -> None:
        self.operators += other.operators
        self.samples += other.samples
        self.comparisons += other.comparisons
        self.seen += other.seen
        self.failures += other.failures
        self.excluded += other.excluded

    def table(self) -> str:
        """The figures, and each exclusion with its reason."""
        kinds = ", ".join(f"{which}: {count}" for which, count in self.comparisons.items())
        lines = [
            f"{self.operators} operators, {self.samples} calls of them, compared bit by bit ({kinds})",
            f"operators seen: {self.seen['forward']} forward, {self.seen['backward']} backward",
            f"different: {len(self.failures)}",
        ]
        by_reason: dict[str, list[str]] = {}
        for (what, reason), count in sorted(self.excluded.items()):
            by_reason.setdefault(reason, []).append(f"{what} ({count})")
        indent = "    "
        for reason, whats in by_reason.items():
            listed = textwrap.fill(", ".join(whats), 116, initial_indent=indent, subsequent_indent=indent)
            lines += ["", f"{reason}:", listed]
        return "\n".join(lines)


def samples_of(op: Any, dtype: torch.dtype, most: int | None = None, device: str = "cpu") -> Iterator[Sample]:
    """All samples in all variants; or `most` of them in each, from the first to the last."""
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(device.partition(":")[0])
    torch.manual_seed(0)
    arguments = list(sample_inputs(op, dtype, device=device, requires_grad=differentiable))
    torch.manual_seed(0)
    without = list(sample_inputs(op, dtype, device=device)) if differentiable and op.supports_out else arguments
    for variant, call in variants(op):
        inputs = list(enumerate(without if variant == "out" else arguments))
        if most is not None and len(inputs) > most:
            inputs = [inputs[i * (len(inputs) - 1) // (most - 1)] for i in range(most)]
        for i, those in inputs:
            sample = Sample(op, variant, call, those, i)
            sample.may_differ = reason_for(sample, name, kind) if device == "cpu" else None
            if variant != "out" or sample.prepare_out():
                yield sample


def sweep(op: Any, tools: Any = TOOLS, most: int | None = None, device: str = "cpu") -> Findings:
    """Everything about one operator; with `most`, at least 2, as many samples of each variant and dtype."""
    found, name = Findings(operators=1), name_of(op)
    if name in SKIPPED:
        found.excluded[name, SKIPPED[name]] += 1
        return found
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        if name in UNINITIALISED:
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            for dtype in DTYPES:
                if dtype in op.supported_dtypes(device.partition(":")[0]):
                    _sweep(op, dtype, tools, found, most, device)
        finally:
            torch.use_deterministic_algorithms(False)
    return found


def _sweep(op: Any, dtype: torch.dtype, tools: Any, found: Findings, most: int | None, device: str) -> None:
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    samples = list(samples_of(op, dtype, most, device))
    expected = [sample.run() for sample in samples]
    found.samples += len(samples)
    if name in UNINITIALISED:
        found.excluded[f"{name} {kind}", UNINITIALISED[name]] += len(samples)
    for which, make in tools.items():
        tool = make()
        scope = amanda.apply(tool)
        for sample, before in zip(samples, expected, strict=True):
            found.comparisons[which] += 1
            what = difference(sample.run(scope), before)
            if what is None:
                continue
            sample.differed = True
            if sample.may_differ:
                found.excluded[f"{name} {kind} {sample.variant}", sample.may_differ] += 1
            else:
                itself = difference(sample.run(), before)
                if itself and device != "cpu":  # there, atomic additions have no order
                    found.excluded[f"{name} {kind} {sample.variant}", "differs from itself"] += 1
                    continue
                note = f" (outside, it differs from itself: {itself})" if itself else ""
                found.failures.append(f"{name} {kind} {sample.variant} #{sample.index}, {which}: {what}{note}")
        if isinstance(tool, Look):
            _check_events(name, kind, tool, expected, found)
        if isinstance(tool, RunOriginal):
            for refused, reason in tool.kept.items():
                found.excluded[refused, f"not replaced by itself: {reason}"] += 1

    for sample in samples:
        if sample.may_differ and not sample.differed:
            found.failures.append(f"{name} {kind} {sample.variant} #{sample.index}: is in SAMPLES, and does not differ")


def _check_events(name: str, kind: str, tool: Look, expected: list[Any], found: Findings) -> None:
    """Was something seen wherever something ran?"""
    found.seen["forward"] += sum(tool.forward.values())
    found.seen["backward"] += sum(tool.backward.values())
    if (name, kind) in UNSEEN:
        found.excluded[f"{name} {kind}", f"nothing to see: {UNSEEN[name, kind]}"] += 1
    if bool(tool.forward) == ((name, kind) in UNSEEN):
        found.failures.append(f"{name} {kind}: {'some' if tool.forward else 'no'} operator was seen")
    if any(map(had_gradients, expected)) and not tool.backward:
        found.failures.append(f"{name} {kind}: no backward operator was seen")


def operators(part: int = 0, of: int = 1) -> list[Any]:
    """Every `of`-th operator of the database that has a dtype on the CPU, from the `part`-th on."""
    return [op for op in op_db if any(dtype in op.supported_dtypes("cpu") for dtype in DTYPES)][part::of]
