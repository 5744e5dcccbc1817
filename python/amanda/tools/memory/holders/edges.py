"""The objects that an object refers to: those that Python's garbage collector knows, and those that it does not see.

It does not see what C++ holds: the graph of a tensor, what the graph's nodes have saved, and gradients. Nor does it see
the variables of functions that run, and the tensor whose memory a NumPy array has.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import kinds
from .variables import variables_of

EdgesOf = Callable[[Any], list[Any]]

_ATOMS: tuple[Any, ...] = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), type(...), type(NotImplemented), range, slice),
    *(types.CodeType, types.ModuleType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, memoryview),
    *(weakref.ref, weakref.ProxyType, weakref.CallableProxyType, *kinds.ATOMS),
)
GENERATORS = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
_WITHOUT_GC = (dict, tuple)  # may hold tensors also where the garbage collector does not follow them


class Edges:
    """Functions that return what objects of a type refer to. It keeps types alive: not to be kept."""

    def __init__(self) -> None:
        self._known: dict[type, EdgesOf | None] = dict.fromkeys(_ATOMS)
        self.tensors: set[type] = set()  #: types that are known to be tensors'
        self.nodes: set[type] = set()  #: of autograd's graphs

    def of(self, kind: type) -> EdgesOf | None:
        """None if objects of this type can't lead to a tensor."""
        if kind not in self._known:
            self._known[kind] = self._of(kind)
        return self._known[kind]

    def _of(self, kind: type) -> EdgesOf | None:
        bases = kind.__mro__
        if kinds.TENSOR in bases:
            self.tensors.add(kind)
            return _of_tensor
        if is_node(kind):
            self.nodes.add(kind)
            return functools.partial(_of_node, saved=[name for name in dir(kind) if name.startswith("_raw_saved_")])
        numpy = sys.modules.get("numpy")
        if numpy is not None and numpy.ndarray in bases:
            return _of_array
        if kind is types.FrameType:
            return _of_frame
        if kind is types.FunctionType:
            return _of_function
        if kind in GENERATORS:
            return _of_generator
        if not kind.__flags__ & _HAS_GC and not issubclass(kind, _WITHOUT_GC):
            return None
        return gc.get_referents


_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC


def is_node(kind: type) -> bool:
    """True if objects of this type are nodes of autograd's graphs."""
    return bool(issubclass(kind, kinds.NODE))


def _of_tensor(tensor: Any) -> list[Any]:
    """Inside `kinds.untouched`: reading these attributes calls nothing of the program."""
    return [*gc.get_referents(tensor), *(_in_cpp(tensor) if kinds.NODE else ())]


def _in_cpp(tensor: Any) -> Iterator[Any]:
    with contextlib.suppress(RuntimeError):  # a tensor without storage, or of a transformation that has ended
        node = None if kinds.TENSOR.is_leaf.__get__(tensor) else kinds.TENSOR.grad_fn.__get__(tensor)
        if node is not None:
            yield node
        if gradient(tensor) is not None:
            yield gradient(tensor)
        if kinds.TENSOR._is_view(tensor):
            yield kinds.TENSOR._base.__get__(tensor)


def gradient(tensor: Any) -> Any:
    """Its `.grad`, if it can have one."""
    if not kinds.NODE:
        return None
    if not kinds.TENSOR.is_leaf.__get__(tensor) and not kinds.TENSOR.retains_grad.__get__(tensor):
        return None
    return kinds.TENSOR.grad.__get__(tensor)


def _of_node(node: Any, saved: list[str]) -> list[Any]:
    found = [following for following, _ in node.next_functions if following is not None]
    if type(node).__name__ == "AccumulateGrad":
        found.append(node.variable)
    for name in saved:
        found += _saved(node, name)
    return found + gc.get_referents(node)


def _saved(node: Any, name: str) -> list[Any]:
    """The tensors that a node has saved, as they are: hooks that unpack a tensor are not called."""
    try:
        saved = getattr(node, name)
        each = saved if isinstance(saved, tuple | list) else [saved]
        return [data for one in each if (data := getattr(one, "data", None)) is not None]
    except RuntimeError:  # a backward pass has freed it
        return []


def _of_array(array: Any) -> list[Any]:
    found = [] if array.base is None else [array.base]
    return [*found, *array.flat] if array.dtype.hasobject else found


def _of_frame(frame: types.FrameType) -> list[Any]:
    found = variables_of(frame)
    outer = [] if frame.f_back is None else [frame.f_back]
    return outer + (gc.get_referents(frame) if found is None else list(found.values()))


def _of_function(function: types.FunctionType) -> list[Any]:
    return [*(function.__closure__ or ()), *gc.get_referents(function)]


def _of_generator(generator: Any) -> list[Any]:
    frame = getattr(generator, GENERATORS[type(generator)])
    return [] if frame is None else [frame]
