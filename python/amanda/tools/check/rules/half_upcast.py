"""half-upcast."""

from __future__ import annotations

from amanda import OpContext

from ..rule import Rule, operands

_HALF = ("torch.float16", "torch.bfloat16")


class HalfUpcast(Rule):
    """An operator combines a result in half precision with a float32 tensor that nothing has computed, such as a parameter,
    a mask or a table of positions. Its result is float32: twice the memory, and in `torch.autocast` the next product casts
    it back. Tensors with one element do not do that.
    """

    name = "half-upcast"
    sentence = "a float32 tensor makes a half-precision result float32"
    fix = "cast the smaller one: scale.to(x.dtype); or leave it, where the digits are needed"
    is_advice = True
    ops = ("add", "add_", "sub", "mul", "div", "where", "lerp")
    bad = """
        scale = nn.Parameter(torch.ones(8))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model[2](model[0](x) * scale).sum().backward()
    """
    good = """
        scale = nn.Parameter(torch.ones(8))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model[0](x)
            model[2](hidden * scale.to(hidden.dtype) * torch.tensor(0.5)).sum().backward()
    """

    def look(self, context: OpContext) -> None:
        tensors = [(name, one) for name, one in operands(context).items() if getattr(one, "ndim", 0) > 0]
        half = [name for name, one in tensors if str(one.dtype) in _HALF and one.grad_fn is not None]
        full = [name for name, one in tensors if str(one.dtype) == "torch.float32" and one.grad_fn is None]
        if half and full:
            kinds = dict(tensors)
            sizes = f"{full[0]} {tuple(kinds[full[0]].shape)} is float32"
            self.found_in(
                context, f"{half[0]} {tuple(kinds[half[0]].shape)} is {str(kinds[half[0]].dtype)[6:]}, {sizes}"
            )
