"""The sessions and calls that tools do not see: they run as without a scope, after one warning."""

from amanda.core.unshown import Unshown

_unshown = Unshown("onnxruntime", "ONNX Runtime")
warn, remarks = _unshown.warn, _unshown.remarks
