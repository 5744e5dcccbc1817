"""The reasons why an operator's result is not finite: only those that computing it again confirms. Imports torch:
import it where an operator ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from amanda.toolkit.arrays import arrays_of, of_torch

from . import masks
from .finding import flattened
from .rules import RULES, Rule, text_of_cause

MOST_ELEMENTS = 1 << 24  # of operands that are computed with again

_WIDER = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    torch.complex64: torch.complex128,
}
_EXPONENTIALS = ("exp", "expm1")
_FOREACH = "_foreach_"
_SPECTRA = {"LinalgSvdBackward0": "S", "LinalgEighBackward0": "eigenvalues", "LinalgEigBackward0": "eigenvalues"}
_SPREADS = {"std", "var", "std_mean", "var_mean"}
_UNDERFLOW = "float16 rounds what is less than 3e-08, such as an eps of 1e-8, to zero"
Elements = Callable[[torch.Tensor], torch.Tensor]


Named = Sequence[tuple[str, Any]]


def cause_of(name: str, outputs: Named, inputs: Named, inf: bool, again: Callable[[Sequence[Any]], Any] | None) -> str:
    """The cause in words; "" if none is confirmed.

    `again` computes the operator with other values for all `inputs`; None if that is not possible.
    """
    if not _are_plain(value for _, value in (*outputs, *inputs)):
        return ""
    if name.startswith(_FOREACH):
        return _of_member(name.removeprefix(_FOREACH), outputs, inputs, inf)
    result = next((value for _, value in outputs if isinstance(value, torch.Tensor) and _bad(value, inf).any()), None)
    if result is None:
        return ""
    return next(filter(None, _causes(name.strip("_"), result, inputs, inf, again)), "")


def _of_member(name: str, outputs: Named, inputs: Named, inf: bool) -> str:
    """The cause for the first tensor of the lists whose result is not finite."""
    results = next((value for _, value in outputs if isinstance(value, (list, tuple))), ())
    number = next((n for n, one in enumerate(results) if isinstance(one, torch.Tensor) and _bad(one, inf).any()), None)
    if number is None:
        return ""

    def member(value: Any) -> Any:
        is_list = isinstance(value, (list, tuple)) and len(value) == len(results)
        return value[number] if is_list else value

    of_member = [(operand, member(value)) for operand, value in inputs]
    return cause_of(name, [("output 0", results[number])], of_member, inf, None)


def _causes(
    name: str, result: torch.Tensor, inputs: Named, inf: bool, again: Callable[[Sequence[Any]], Any] | None
) -> Iterator[str]:
    bad = _bad(result, inf)
    yield masks.wholly_masked(name, inputs, bad)
    yield _of_nothing(name, dict(inputs))
    made = bad & _finite_gradients(dict(inputs), bad)
    yield from (_by(rule, dict(inputs).get(rule.operand), made) for rule in RULES.get(name, ()))
    if name == "pow":
        yield _of_power(dict(inputs), bad)
    yield _of_equal_values(name, dict(inputs), bad)
    yield _of_long_targets(name, dict(inputs), bad)
    yield _of_negative_target(name, dict(inputs))
    elements = sum(value.numel() for _, value in inputs if isinstance(value, torch.Tensor))
    if again is not None and elements <= MOST_ELEMENTS:
        yield _by_infinities(bad, inputs, again)
        yield _by_overflow(result, bad, inputs, again)
    yield _of_exponential(name, dict(inputs), result, bad)


def is_unused(outputs: Named, inputs: Named, inf: bool) -> bool:
    """True if the gradient that a backward operator got is zero at all elements that are not finite now: zero times
    infinity."""
    given = dict(inputs).get("grad_output 0")
    if not isinstance(given, torch.Tensor) or not _are_plain([given, *(value for _, value in outputs)]):
        return False
    tensors = [value for _, value in outputs if isinstance(value, torch.Tensor)]
    bad = next((_bad(value, inf) for value in tensors if _bad(value, inf).any()), None)
    return bad is not None and given.shape == bad.shape and not bool((given[bad] != 0).any())


def _of_nothing(name: str, inputs: dict[str, Any]) -> str:
    """A mean of no elements, or a spread of one."""
    values, dim = inputs.get("input self"), inputs.get("input dim")
    target, ignored = inputs.get("input target"), inputs.get("input ignore_index")
    if isinstance(target, torch.Tensor) and isinstance(ignored, int) and bool((target == ignored).all()):
        return f"input target is {ignored}, which is ignored, at all {target.numel()} elements"
    if not isinstance(values, torch.Tensor) or (name not in _SPREADS and name != "mean" and "loss" not in name):
        return ""
    dims = [dim] if isinstance(dim, int) else dim or range(values.dim())
    if not all(type(one) is int for one in dims):  # names of dimensions
        return ""
    count = math.prod(values.shape[one] for one in dims)
    if count > 1 or (count and name not in _SPREADS):
        return ""
    return "input self has one element for each of the result" if count else "input self has no elements"


def _finite_gradients(inputs: dict[str, Any], bad: torch.Tensor) -> torch.Tensor:
    """Where a backward operator got a finite gradient; elsewhere that may be the cause. In the forward pass, all."""
    gradient = inputs.get("grad_output 0")
    return torch.isfinite(gradient) if gradient is not None and gradient.shape == bad.shape else torch.ones_like(bad)


def _by(rule: Rule, operand: Any, bad: torch.Tensor) -> str:
    values = _elements(operand, bad)
    text = text_of_cause(f"{rule.operand} {rule.what}", rule.holds(values), bad) if values is not None else ""
    is_half = isinstance(operand, torch.Tensor) and operand.dtype == torch.float16
    return f"{text}; {_UNDERFLOW}" if text and is_half and rule.what == "is zero" else text


def _of_power(inputs: dict[str, Any], bad: torch.Tensor) -> str:
    base, exponent = (_elements(inputs.get(f"input {name}"), bad) for name in ("self", "exponent"))
    if base is None or exponent is None:
        return ""
    roots = (base < 0) & (exponent != exponent.round())
    return text_of_cause("input self is negative, and input exponent no integer", roots, bad) or text_of_cause(
        "input self is zero, and input exponent negative", (base == 0) & (exponent < 0), bad
    )


def _of_exponential(name: str, inputs: dict[str, Any], result: torch.Tensor, bad: torch.Tensor) -> str:
    values = _elements(inputs.get("input self"), bad) if name in _EXPONENTIALS and not result.is_complex() else None
    if values is None:
        return ""
    limit = math.log(torch.finfo(result.dtype).max)
    ends = f"is greater than {limit:.4g}, where {name} of {str(result.dtype).removeprefix('torch.')} ends"
    return text_of_cause(f"input self {ends}", torch.isfinite(values) & (values > limit), bad)


def _of_equal_values(name: str, inputs: dict[str, Any], bad: torch.Tensor) -> str:
    """Singular values, or eigenvalues, that are equal: the derivative divides by their differences."""
    of = _SPECTRA.get(name)
    values = inputs.get(f"saved {of}") if of else None
    if not isinstance(values, torch.Tensor) or bad.dim() < 2 or values.shape[:-1] != bad.shape[:-2]:
        return ""
    equal = (values.unsqueeze(-1) == values.unsqueeze(-2)).sum((-2, -1)) > values.shape[-1]
    return text_of_cause(f"saved {of} has equal values", equal, bad.any(-1).any(-1))


def _of_long_targets(name: str, inputs: dict[str, Any], bad: torch.Tensor) -> str:
    """A loss of ctc_loss is infinite, though all its probabilities are finite: no path is as long as the target."""
    losses, given = inputs.get("saved result0"), inputs.get("saved log_probs")
    if name != "CtcLossBackward0" or not isinstance(losses, torch.Tensor) or not isinstance(given, torch.Tensor):
        return ""
    infinite = torch.isposinf(losses)
    if not bool(torch.isfinite(given).all()) or not torch.equal(infinite, bad.any(-1).any(0).view_as(infinite)):
        return ""
    count = f"{int(infinite.sum())} of {infinite.numel()} examples"
    return (
        f"the loss of {count} is infinite: the target is longer than its input allows; zero_infinity=True leaves it out"
    )


def _of_negative_target(name: str, inputs: dict[str, Any]) -> str:
    """kl_div computes the logarithm of its target, unless the target is logarithms already."""
    target = inputs.get("input target")
    if name != "kl_div" or not isinstance(target, torch.Tensor) or inputs.get("input log_target") is True:
        return ""
    count = int((target < 0).sum())
    where = f"at {count} of {target.numel()} elements: logarithms of probabilities need log_target=True"
    return f"input target is negative {where}" if count else ""


def _by_infinities(bad: torch.Tensor, inputs: Named, again: Callable[[Sequence[Any]], Any]) -> str:
    """The cause, if the result is finite when the infinite elements of its inputs are set to zero."""
    infinite = [name for name, value in inputs if any(bool(torch.isinf(one).any()) for one in _tensors(value))]
    if not infinite:
        return ""
    finite = _again([_map(value, _without_infinities) for _, value in inputs], again, bad)
    if finite is None or bool((~torch.isfinite(finite) & bad).any()):
        return ""
    name, value = next(one for one in inputs if one[0] == infinite[0])
    tensors = [*_tensors(value)]
    count, elements = sum(int(torch.isinf(one).sum()) for one in tensors), sum(one.numel() for one in tensors)
    return f"{name} is infinite at {count} of {elements} elements"


def _by_overflow(result: torch.Tensor, bad: torch.Tensor, inputs: Named, again: Callable[[Sequence[Any]], Any]) -> str:
    exact = _again([_map(value, lambda v: v) for _, value in inputs], again, bad)
    if exact is None or not bool(torch.isfinite(exact[bad]).all()):
        return ""
    largest, limit = exact[bad].abs().max().item(), torch.finfo(result.dtype).max
    ends = f"; {str(result.dtype).removeprefix('torch.')} ends at {limit:.4g}" if largest > limit else ""
    return f"in float64 the result is finite, as large as {largest:.4g}{ends}"


def _again(values: Sequence[Any], again: Callable[[Sequence[Any]], Any], bad: torch.Tensor) -> torch.Tensor | None:
    """The result for these inputs in float64, where its shape is that of `bad`."""
    try:
        with torch.random.fork_rng(devices=[]):
            found = again(values)
    except Exception:  # there is no such kernel
        return None
    results = [value for value in flattened([found]) if isinstance(value, torch.Tensor)]
    wide = (torch.float64, torch.complex128)
    return next((value for value in results if value.shape == bad.shape and value.dtype in wide), None)


def _map(value: Any, change: Elements) -> Any:
    """Wider copies."""
    if isinstance(value, torch.Tensor):
        return change(value.detach().to(_WIDER.get(value.dtype, value.dtype), copy=True))
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if isinstance(value, float) and math.isinf(value):
        return float(change(torch.tensor(value, dtype=torch.float64)))
    return [_map(member, change) for member in value] if isinstance(value, (list, tuple)) else value


def _without_infinities(values: torch.Tensor) -> torch.Tensor:
    if not (values.is_floating_point() or values.is_complex()):
        return values
    return values.masked_fill(torch.isinf(values), 0)


def _bad(values: torch.Tensor, inf: bool) -> torch.Tensor:
    return ~torch.isfinite(values) if inf else torch.isnan(values)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for one in flattened([value]):
        if isinstance(one, float):
            yield torch.tensor(one, dtype=torch.float64)
        elif isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()):
            yield one


def _elements(operand: Any, like: torch.Tensor) -> torch.Tensor | None:
    """The real operand in float64, an element for each of `like`; None if it has another shape."""
    if isinstance(operand, (int, float)) and not isinstance(operand, bool):
        operand = torch.tensor(float(operand), dtype=torch.float64)
    if not isinstance(operand, torch.Tensor) or operand.is_complex():
        return None
    try:
        return operand.detach().to(torch.float64).expand(like.shape)
    except RuntimeError:
        return None


def _are_plain(values: Any) -> bool:
    """No wrappers, no generators: computing with them again changes nothing else."""
    for value in flattened(values):
        if isinstance(value, torch.Generator):
            return False
        if isinstance(value, torch.Tensor):
            arrays = arrays_of(value)
            if of_torch.is_transformed(value) or arrays is None or arrays.why_unreadable(value) is not None:
                return False
    return True
