"""Masks of operators as masks of parameters, to be written into a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from amanda import Error

from .masked import Use


def check(model: object) -> None:
    """
    Raises:
        TypeError: it is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"[pruning] apply_to takes the model that was pruned, got {model!r}")


def write(model: torch.nn.Module, uses: Iterable[Use]) -> None:
    """Multiplies parameters of the model by their masks.

    Raises:
        amanda.Error: these masks cannot be written into this model; the message says which, and what would work.
    """
    with torch.no_grad():
        for parameter, mask in parameter_masks(model, uses):
            parameter.mul_(mask)


def parameter_masks(model: torch.nn.Module, uses: Iterable[Use]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters of the model that are pruned, each with its mask.

    Raises:
        amanda.Error: these masks cannot be written into this model; the message says which, and what would work.
    """
    of_parameters: dict[torch.Tensor, list[Use]] = {}
    for use in uses:
        parameter = _parameter_of(use)
        if parameter is not None:
            of_parameters.setdefault(parameter, []).append(use)
    pruned = {
        parameter: of_one for parameter, of_one in of_parameters.items() if any(use.mask is not None for use in of_one)
    }
    if not pruned:
        raise Error("[pruning] nothing has been pruned that still exists; run the model in a scope of the tool first")
    own = set(model.parameters())
    return [(parameter, _mask_of(model, own, parameter, of_one)) for parameter, of_one in pruned.items()]


def _parameter_of(use: Use) -> torch.Tensor | None:
    if use.weight is not None:
        return use.weight.parameter()
    if use.mask is None:
        return None
    raise Error(
        f"[pruning] the weight of {use.place} is computed, or no parameter, so no mask can be written into it; "
        "compute it once and keep it (torch.nn.utils.parametrize.remove_parametrizations), or leave the operator dense "
        "with where="
    )


def _mask_of(
    model: torch.nn.Module, own: set[torch.nn.Parameter], parameter: torch.Tensor, uses: list[Use]
) -> torch.Tensor:
    first = uses[0]
    assert first.weight is not None
    if parameter not in own:
        raise Error(
            f"[pruning] {first.place} was pruned, and its weight {first.weight.name!r} is not a parameter of this "
            f"{type(model).__name__}; pass the model that ran in the scope, not a copy or a part of it, or several in a "
            "torch.nn.ModuleList"
        )
    _check_holders(model, parameter, uses)
    whole, known = torch.ones(()), torch.zeros((), dtype=torch.bool)
    for use in uses:
        assert use.weight is not None
        mask = torch.ones(()).expand(use.weight.shape) if use.mask is None else use.mask
        spread, shown = use.weight.spread(mask.to(parameter.device, parameter.dtype))
        whole, known = whole.to(spread), known.to(shown)
        if not torch.equal(torch.where(known & shown, spread, 1), torch.where(known & shown, whole, 1)):
            raise Error(
                f"[pruning] {first.weight.name!r} is the weight of {first.place} and of {use.place}, "
                "with different masks; leave both dense with where=, or give each a weight of its own"
            )
        whole, known = torch.where(shown, spread, whole), known | shown
    return whole


def _check_holders(model: torch.nn.Module, parameter: torch.Tensor, uses: list[Use]) -> None:
    """Raises an error if there are modules with this parameter whose operators were not pruned."""
    holders = {
        f"{path}.{name}" if path else name: module
        for path, module in model.named_modules()
        for name, held in module.named_parameters(recurse=False, remove_duplicate=False)
        if held is parameter
    }
    lookups = torch.nn.Embedding, torch.nn.EmbeddingBag
    is_looked_up = any(isinstance(module, lookups) for module in holders.values())
    if len(holders) > len(uses) or (is_looked_up and not any("embedding" in use.place.name for use in uses)):
        raise Error(
            f"[pruning] {' and '.join(holders)} are one parameter, but only {uses[0].place} was pruned; leave it "
            "dense with where=, or give each module a weight of its own"
        )
