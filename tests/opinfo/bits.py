"""All effects of a call, bit for bit, as plain values that `==` compares."""

import ctypes
import re
from collections.abc import Mapping

import torch


def raw(tensor):
    """The elements' bytes in logical order: NaNs and the sign of zero count, memory between the elements does not."""
    if tensor._is_zerotensor():  # has no memory
        return "zeros"
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()) if dense.numel() else b""


def parts(tensor):
    """The tensors that one without strides is made of."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return [tensor.values(), tensor.offsets()] if tensor.layout == torch.jagged else list(tensor.unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


def bits_of_tensor(tensor):
    node = tensor.grad_fn
    common = (tensor.dtype, tensor.layout, tuple(tensor.shape), tensor.requires_grad, tensor.is_leaf)
    graph = node.name() if node is not None else None
    if tensor.is_quantized:
        return ("tensor", *common, graph, str(tensor.qscheme()), raw(tensor.int_repr()), raw(tensor.dequantize()))
    if tensor.is_nested or tensor.layout != torch.strided:
        return ("tensor", *common, graph, [bits_of_tensor(part) for part in parts(tensor)])
    version = None if tensor.is_inference() else tensor._version
    strided = (tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg(), version)
    return ("tensor", *common, graph, *strided, raw(tensor))


def leaves(value, found=None):
    """The tensors and other values in a nest of them, in order."""
    found = [] if found is None else found
    if isinstance(value, Mapping):
        for key, item in value.items():
            found.append(("key", key))
            leaves(item, found)
    elif isinstance(value, list | tuple):
        found.append((type(value).__name__, len(value)))
        for item in value:
            leaves(item, found)
    else:
        found.append(value)
    return found


def memory_of(tensor):
    """What tells whether two tensors share memory."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return None
    return tensor.untyped_storage()._cdata


def bits(value):
    """All tensors and other values in it, and which tensors are one object, or share their memory."""
    found = leaves(value)
    objects, memories, result = {}, {}, []
    for i, leaf in enumerate(found):
        if isinstance(leaf, torch.Tensor):
            which = objects.setdefault(id(leaf), i)
            memory = memory_of(leaf)
            shares = memories.setdefault(memory, i) if memory is not None else None
            result.append((which, shares, bits_of_tensor(leaf)))
        elif isinstance(leaf, float):
            result.append(("float", leaf.hex()))
        else:
            result.append((type(leaf).__name__, re.sub(r"0x[0-9a-f]+", "0x", repr(leaf))))
    return result


def difference(got, expected):
    """Where two results of `bits` part, in words; None, if they are the same."""
    if got == expected:
        return None
    if len(got) != len(expected):
        new, old = ([leaf[1] for leaf in found if leaf[0] == "str"] for found in (got, expected))  # among them, errors
        return f"{len(got)} values in place of {len(expected)}: {new} in place of {old}"
    names = ["dtype", "layout", "shape", "requires_grad", "is_leaf", "grad_fn"]
    names += ["stride", "offset", "conj", "neg", "version", "bits"]
    for i, (new, old) in enumerate(zip(got, expected, strict=True)):
        if new == old:
            continue
        if len(new) == len(old) == 3 and isinstance(new[2], tuple) and isinstance(old[2], tuple):
            pairs = list(zip(names, new[2][1:], old[2][1:], strict=False))
            pairs += [("same object as", new[0], old[0]), ("shares memory with", new[1], old[1])]
            said = [name if name == "bits" else f"{name} {a} in place of {b}" for name, a, b in pairs if a != b]
            return f"value {i}: " + ", ".join(said)
        return f"value {i}: {str(new)[:300]} in place of {str(old)[:300]}"
    return "?"
