"""Importing this module is an error in a subinterpreter.

The threads and locks of the core are those of one interpreter, and in a subinterpreter loading an extension module of
pybind11 may wait forever. So the package imports this one before it loads any.
"""

from __future__ import annotations

import importlib
from typing import Any


def _interpreters() -> Any:
    """CPython's own module, or None if this Python has none."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on; before
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _number(interpreter: Any) -> int:
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


_known = _interpreters()
if _known is not None and _number(_known.get_current()) != _number(_known.get_main()):
    raise ImportError(
        "[import] amanda does not support loading in subinterpreters, and neither does PyTorch; import it in the main "
        "interpreter (under mod_wsgi: WSGIApplicationGroup %{GLOBAL}), or use processes"
    )
