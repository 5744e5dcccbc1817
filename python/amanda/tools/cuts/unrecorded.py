"""The function that runs, and in which autograd does not record. Imports torch."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from amanda.toolkit.frames import line_of_code, outwards, program_line

_DECORATED = "decorate_context"  # a frame of `@torch.no_grad()`, and of others like it
_DISTRIBUTIONS = "torch.distributions."


def unrecorded_by() -> str:
    """In words: a function that `torch.no_grad` or `torch.inference_mode` decorates, or the `sample` of a distribution;
    "" if none runs. Costs one walk of frames."""
    sample: FrameType | None = None
    for frame in outwards(sys._getframe(1)):
        if str(frame.f_globals.get("__name__")).startswith(_DISTRIBUTIONS):
            sample = frame if frame.f_code.co_name == "sample" else sample
        elif sample is not None:
            break
        elif frame.f_code.co_name == _DECORATED:
            made = getattr(frame.f_locals.get("ctx_factory"), "__self__", None)
            name = getattr(frame.f_locals.get("func"), "__qualname__", "")
            if isinstance(made, (torch.no_grad, torch.inference_mode)) and name:
                caller = line_of_code(program_line(frame.f_back))
                return f"which decorates {name}(), called at {caller}"
            if isinstance(made, torch.enable_grad):
                return ""
    return "" if sample is None else _of_sample(sample.f_locals.get("self"))


def _of_sample(distribution: object) -> str:
    name = type(distribution).__name__
    has_rsample = getattr(distribution, "has_rsample", False)
    return f"in {name}.sample()" + ("; rsample() keeps the path" if has_rsample else ", which has no rsample()")
