"""autocast-lost."""

from __future__ import annotations

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..rule import Rule
from ..scalers import calling_scaler

_HALF = ("torch.float16", "torch.bfloat16")


class AutocastLost(Rule):
    """`GradScaler` scales the loss for half precision, and no matrix product or convolution of the program runs in it: the
    forward pass is outside of `torch.autocast`, or autocast is off where the model runs."""

    name = "autocast-lost"
    sentence = "a loss is scaled for half precision, and nothing runs in it"
    fix = "run the forward pass in torch.autocast, or leave out GradScaler"
    ops = ("mul", *ops.linear_like, *ops.convolution)
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
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    """

    def begin(self) -> None:
        self._scaled: Place | None = None
        self._half = self._full = 0

    def look(self, context: OpContext) -> None:
        if context.op.__name__ == "mul":
            if self._scaled is None and calling_scaler() is not None:
                self._scaled = Place.of(context)._replace(name="GradScaler.scale")
            return
        dtype = str(getattr(context.outputs[0], "dtype", ""))
        self._half += dtype in _HALF
        self._full += dtype == "torch.float32"

    def at_end(self, ended_well: bool) -> None:
        if self._scaled is not None and self._full and not self._half:
            self.found(
                self._scaled,
                f"of matrix products and convolutions, {self._full} run in float32, and none in half precision",
            )
