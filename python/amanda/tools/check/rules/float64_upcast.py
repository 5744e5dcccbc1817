"""float64-upcast."""

from __future__ import annotations

from amanda import OpContext

from ..rule import Rule, operands


class Float64Upcast(Rule):
    """An operator combines a result of a model with a float64 tensor, as numpy makes them, so that it and all that follows
    is computed in float64. It looks at operators on two tensors; numbers and tensors with one element do not do that."""

    name = "float64-upcast"
    sentence = "a float64 tensor makes the result float64"
    fix = "convert the data once: torch.from_numpy(array).float()"
    ops = ("add", "sub", "rsub", "mul", "div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "where")
    bad = """
        target = torch.ones(4, 3, dtype=torch.float64)
        loss = F.mse_loss(model(x), target)
        loss.backward()
    """
    good = """
        target = torch.ones(4, 3, dtype=torch.float64)
        loss = F.mse_loss(model(x), target.float()) + F.mse_loss(model(x).double(), target).float()
        loss = loss * torch.tensor(0.5, dtype=torch.float64)
        loss.backward()
    """

    def look(self, context: OpContext) -> None:
        tensors = {name: one for name, one in operands(context).items() if hasattr(one, "dtype") and one.ndim > 0}
        wide = [name for name, one in tensors.items() if str(one.dtype) == "torch.float64"]
        narrow = [name for name, one in tensors.items() if one.is_floating_point() and name not in wide]
        if wide and any(tensors[name].grad_fn is not None for name in narrow):
            pairs = " and ".join(f"{name} is {str(tensors[name].dtype)[6:]}" for name in (*narrow[:1], *wide[:1]))
            self.found_in(context, pairs)
