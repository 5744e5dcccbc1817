"""spectral-norm-untrained."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import outwards

from ..modes import called_at
from ..rule import Rule

ITERATIONS = 8
LEAST = 0.9  # of the norm: what an estimate reaches


class SpectralNormUntrained(Rule):
    """A layer of `torch.nn.utils.spectral_norm` runs in evaluation mode before it ran in training mode, or was loaded: its
    estimate of the norm is random, and so is the scale of the weight.

    The estimate is compared with eight iterations from it, once per layer. `parametrizations.spectral_norm` begins with a
    good estimate.
    """

    name = "spectral-norm-untrained"
    sentence = "spectral_norm divides by a random number"
    fix = "run the model in training mode first, or use torch.nn.utils.parametrizations.spectral_norm"
    group = "of few operators"
    ops = ("dot",)
    bad = """
        layer = nn.utils.spectral_norm(nn.Linear(4, 8)).eval()
        layer(x)
    """
    good = """
        layer = nn.utils.spectral_norm(nn.Linear(4, 8), n_power_iterations=5)
        layer(x), layer(x), layer(x)
        layer.eval()(x)
    """

    def begin(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # modules

    def look(self, context: OpContext) -> None:
        if _computing(sys._getframe()) is not None:
            context.insert_before_op(self._on_run, inputs=[], place=Place.of(context))

    def _on_run(self, place: Place) -> None:
        frame = _computing(sys._getframe())
        module = frame.f_locals.get("module") if frame is not None else None
        if frame is None or module is None or module in self._known:
            return
        self._known.add(module)
        if not frame.f_locals["do_power_iteration"]:
            u, v = frame.f_locals["u"].float(), frame.f_locals["v"].float()
            norms = self.read(frame.f_locals["weight_mat"].detach(), lambda weight: _norms(weight.float(), u, v))
            if norms is not None and norms[0] < LEAST * norms[1]:
                place = place._replace(source=called_at())
                self.found(place, f"by {norms[0]:.3g}, and the norm of the weight is at least {norms[1]:.3g}")


def _computing(frame: FrameType | None) -> FrameType | None:
    """The frame of torch's function that normalizes a weight."""
    inside = (f for f in outwards(frame) if f.f_globals.get("__name__") == "torch.nn.utils.spectral_norm")
    return next((one for one in inside if one.f_code.co_name == "compute_weight"), None)


def _norms(weight: Any, u: Any, v: Any) -> tuple[float, float]:
    """The estimate of the layer, and a better one."""
    used = float(u @ (weight @ v))
    for _ in range(ITERATIONS):
        v = weight.T @ u
        v = v / (v.norm() + 1e-12)
        u = weight @ v
        u = u / (u.norm() + 1e-12)
    return used, float((weight @ v).norm())
