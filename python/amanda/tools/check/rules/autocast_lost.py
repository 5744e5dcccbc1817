"""autocast-lost."""

from __future__ import annotations

import functools
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..graph import products_behind
from ..rule import Rule
from ..scalers import calling_scaler

_HALF = ("torch.float16", "torch.bfloat16")


class AutocastLost(Rule):
    """`GradScaler` scales a loss that was computed in float32: the forward pass is outside of `torch.autocast`. Or matrix
    products and convolutions run in `torch.autocast`, and all of them in float32: it is for another device, or the program
    calls operators that it does not know.

    It looks at the first loss that is scaled, and at each product in autocast, once.
    """

    name = "autocast-lost"
    sentence = "half precision is asked for, and nothing runs in it"
    fix = "run the forward pass in torch.autocast of its device, and call functions of torch.nn.functional"
    ops = ("mul", *ops.linear_like, *ops.convolution, "convolution", "_convolution")
    with_outputs = True
    bad = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    """
    good = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model(x)  # evaluation in float32
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    """

    def begin(self) -> None:
        self._is_scaled = False
        self._ignored: Place | None = None  # the first product in autocast that runs in float32
        self._on = ""
        self._half = self._full = 0  # products in autocast

    def look(self, context: OpContext) -> None:
        if context.op.__name__ == "mul":
            if not self._is_scaled and calling_scaler() is not None:
                self._is_scaled = True
                self._look_at_loss(context)
            return
        result = context.outputs[0]
        once: list[Any] = []  # its routine, which runs one time
        dtype = str(getattr(result, "dtype", ""))
        self._half += dtype in _HALF
        if dtype == "torch.float32":
            routine = functools.partial(self._on_product, once, Place.of(context), result.device.type)
            once.append(context.insert_after_op(routine, outputs=[], differentiable=True))

    def _on_product(self, once: list[Any], place: Place, device: str) -> None:
        """A product runs in float32, and in the program's autocast."""
        once[0].remove()
        on = _autocast()
        self._full += bool(on)
        if on and self._ignored is None:
            self._ignored, self._on = place, f"{', '.join(on)}, and they run on {device}"

    def _look_at_loss(self, context: OpContext) -> None:
        types = [str(one) for one in products_behind(context.inputs[0])]
        if "torch.float32" in types and not any(one in _HALF for one in types):
            place = Place.of(context)._replace(name="GradScaler.scale")
            self.found(place, f"all {len(types)} products behind the loss are in float32")

    def at_end(self, ended_well: bool) -> None:
        if self._ignored is not None and not self._half:
            self.found(self._ignored, f"{self._full} products in float32; autocast is on for {self._on}")


def _autocast() -> list[Any]:
    """The kinds of devices for which autocast is on."""
    import torch

    return [kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(kind)]
