"""Effective path: the neurons, synapses and weights that made a network predict a class."""

from amanda.research.effective_path.effective_path import EffectivePath, Row
from amanda.research.effective_path.path import Layer, Measure, Part, Path

__all__ = ["EffectivePath", "Layer", "Measure", "Part", "Path", "Row"]
