"""Tools that reproduce papers. The rules of the package are in its README.md."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred

if TYPE_CHECKING:
    from amanda.research.effective_path import EffectivePath, Path
    from amanda.research.error_injection import BitFlip, Campaign, ErrorInjection, Fault, RandomValue, StuckAt
    from amanda.research.learned_step import LearnedStepQuantization
    from amanda.research.pruning import (
        ActivationPruning,
        AttentionPruning,
        CascadePruning,
        ChannelPruning,
        HeadPruning,
        TilewisePruning,
    )
    from amanda.research.rematerialization import Rematerialization
else:  # most import PyTorch
    __getattr__ = deferred.imports(
        __name__,
        effective_path=("EffectivePath", "Path"),
        error_injection=("BitFlip", "Campaign", "ErrorInjection", "Fault", "RandomValue", "StuckAt"),
        learned_step=("LearnedStepQuantization",),
        pruning=(
            "ActivationPruning",
            "AttentionPruning",
            "CascadePruning",
            "ChannelPruning",
            "HeadPruning",
            "TilewisePruning",
        ),
        rematerialization=("Rematerialization",),
    )

__all__ = [
    "ActivationPruning",
    "AttentionPruning",
    "BitFlip",
    "Campaign",
    "CascadePruning",
    "ChannelPruning",
    "EffectivePath",
    "ErrorInjection",
    "Fault",
    "HeadPruning",
    "LearnedStepQuantization",
    "Path",
    "RandomValue",
    "Rematerialization",
    "StuckAt",
    "TilewisePruning",
]
