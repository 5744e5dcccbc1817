"""ONNX: what the exporter of PyTorch writes into a node about its origin. Needs neither onnx nor onnxruntime.

`exported_of` reads the metadata of a node, an `Exported`.
"""

from amanda.drivers.onnxruntime.exporter import Exported, exported_of

__all__ = ["Exported", "exported_of"]
