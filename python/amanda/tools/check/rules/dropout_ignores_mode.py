"""dropout-ignores-mode."""

from __future__ import annotations

import linecache
import re
import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import split_line

from ..modes import running
from ..rule import Rule, operands

_MODULES = "torch.nn.modules.dropout"
_IS_MEANT = re.compile(r"\b(training|train)\s*=\s*True\b|,\s*True\s*[,)]")
_LINES = 3  # of a call


class DropoutIgnoresMode(Rule):
    """A module in evaluation mode calls dropout that is on: `F.dropout(x, p)`, which is on by default, or
    `F.scaled_dot_product_attention(..., dropout_p=p)`, which does not know the mode. Results of `model.eval()` are random
    then.

    Or it calls an `nn.Dropout` that it does not have as a submodule, as one that is made in `forward`: `model.eval()` does
    not reach it.

    It says nothing if the module has `nn.Dropout` in training mode, and if the line says `training=True`: both are meant.
    """

    name = "dropout-ignores-mode"
    sentence = "dropout is on in a module that is in evaluation mode"
    fix = (
        "F.dropout(x, p, training=self.training); dropout_p=p if self.training else 0.0; nn.Dropout made in __init__, not "
        "in forward"
    )
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "scaled_dot_product_attention")
    bad = """
        class Head(nn.Module):
            def forward(self, x):
                return F.dropout(x, 0.5)
        nn.Sequential(nn.Linear(4, 8), Head()).eval()(x)
    """
    good = """
        class Head(nn.Module):
            def forward(self, x):
                return F.dropout(x, 0.5, training=self.training)
        nn.Sequential(nn.Linear(4, 8), Head()).eval()(x)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)).eval()
        model[1].train()  # Monte Carlo dropout
        model(x)
    """

    def look(self, context: OpContext) -> None:
        callers = _callers()
        if not callers or _is_meant(context.source):
            return
        asked = ["p", "train"] if "p" in operands(context) else ["dropout_p"]
        module = weakref.ref(callers[0])
        context.insert_before_op(self._on_run, inputs=asked, place=Place.of(context), module=module)

    def _on_run(self, p: float, train: bool = True, *, place: Place, module: weakref.ref[Any]) -> None:
        known = module()  # to walk the stack in each run would take long
        if not p or not train or (known is not None and known.training):
            return
        callers = _callers()
        if callers and not callers[0].training:
            self.found(place, f"{type(callers[0]).__name__}.training is False, and the probability is {p:g}")


def _callers() -> list[Any]:
    """The modules that call dropout, innermost first; none if that is an `nn.Dropout` of the model, which has a mode."""
    modules = running()
    if not modules or type(modules[0]).__module__ != _MODULES:
        return modules
    is_of_model = len(modules) == 1 or any(one is modules[0] for one in modules[-1].modules())
    return [] if is_of_model else modules[1:]


def _is_meant(source: str) -> bool:
    """The call says that dropout is on."""
    line = split_line(source)
    text = "".join(linecache.getlines(line[0])[line[1] - 1 : line[1] - 1 + _LINES]) if line else ""
    return bool(_IS_MEANT.search(text.partition("\n\n")[0]))
