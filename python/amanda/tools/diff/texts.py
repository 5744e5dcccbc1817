"""What a value is, as a text: a hash of a tensor's elements, the text of anything else. Equal values have equal texts."""

from __future__ import annotations

import re
import zlib
from typing import Any

UNREADABLE = "unreadable"
OVERWRITTEN = "overwritten"
_TENSOR = re.compile(r"tensor \w+\[[^\]]*\] [\w.+-]+")
_NUMBER = re.compile(r"tensor (?:float64|int64)\[\] (.+)")
_TELLING = 6  # digits: a number with fewer is the same as another one by chance


def text_of(value: Any, *, is_overwritten: bool = False) -> str:
    """Of an input. `is_overwritten`: the operator does not read it."""
    import torch

    if isinstance(value, torch.Tensor):
        if is_overwritten:
            return f"tensor {str(value.dtype).removeprefix('torch.')}{list(value.shape)} {OVERWRITTEN}"
        return text_of_tensor(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text_of, value))}]"
    return "generator" if isinstance(value, torch.Generator) else repr(value)


def text_of_tensor(tensor: Any, *, is_copy: bool = False) -> str:
    """ "tensor float32[2, 3] 0f1e2d3c4b5a6978": dtype, shape, hash. Numbers of a program, which PyTorch wraps in
    tensors, have their value in place of the hash. `is_copy`: a contiguous one on the CPU, which nobody else has."""
    import torch

    is_number = tensor.dim() == 0 and tensor.dtype in (torch.float64, torch.int64)
    shown = (is_number and _number(tensor)) or _hash(tensor, is_copy)
    return f"tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {shown}"


def number_in(tensor: str) -> str | None:
    """Its value, if it may be a number of the program."""
    found = _NUMBER.fullmatch(tensor)
    return found[1] if found and is_readable(tensor) else None


def is_telling(tensor: str) -> bool:
    """Are its contents hardly those of another one by chance?"""
    number = number_in(tensor)
    return is_readable(tensor) and (number is None or len(number) > _TELLING)


def tensors_in(text: str) -> list[str]:
    """The texts of the tensors in it; several if it is a list."""
    return _TENSOR.findall(text)


def without_hash(tensor: str) -> str:
    """ "tensor float32[2, 3]"."""
    return tensor.rpartition(" ")[0]


def dtype_in(tensor: str) -> str:
    return tensor.removeprefix("tensor ").partition("[")[0]


def is_readable(tensor: str) -> bool:
    return not tensor.endswith((UNREADABLE, OVERWRITTEN))


def _number(tensor: Any) -> str | None:
    return repr(tensor.item()) if _is_plain(tensor) else None


def _is_plain(tensor: Any) -> bool:
    from amanda.tools._arrays import of_torch

    return of_torch.why_unreadable(tensor) is None


def _hash(tensor: Any, is_copy: bool) -> str:
    import torch

    if not _is_plain(tensor):
        return UNREADABLE
    try:
        mine = tensor if is_copy else tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        data = mine.flatten().view(torch.uint8).numpy().data
    except (RuntimeError, NotImplementedError, TypeError):
        return UNREADABLE
    half = len(data) // 2  # two checksums; a cryptographic hash takes longer than most operators
    return f"{zlib.crc32(data[:half]):08x}{zlib.crc32(data[half:]):08x}"
