"""The regimes of the framework that is installed, by the name of their column."""

from __future__ import annotations

import importlib.util

from regime_table.program import Regime

REGIMES: dict[str, Regime]

if importlib.util.find_spec("torch") is not None:
    from regime_table import of_arrays, of_onnx, of_torch

    REGIMES = of_torch.REGIMES | of_arrays.REGIMES | of_onnx.REGIMES
else:
    from regime_table import of_tensorflow

    REGIMES = of_tensorflow.REGIMES
