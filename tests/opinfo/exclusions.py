"""What the sweep excludes, and why. An entry of UNSEEN or SAMPLES that is not needed fails the sweep."""

import re
from typing import Any

NO_JITERATOR = "needs a GPU: its kernels are compiled for one"
IN_PYTHON = "Python answers: the call never reaches the dispatcher"
NEW_MEMORY = "what is in new memory is an accident; runs under use_deterministic_algorithms, which fills it"

# Operators that never run on the CPU, whatever their dtypes say.
SKIPPED: dict[str, str] = {
    "jiterator_unary": NO_JITERATOR,
    "jiterator_binary": NO_JITERATOR,
    "jiterator_4inputs_with_extra_args": NO_JITERATOR,
    "jiterator_binary_return_by_ref": NO_JITERATOR,
    "jiterator_2inputs_2outputs": NO_JITERATOR,
}

# Operators that, with these dtypes, never call an operator of the dispatcher.
UNSEEN: dict[tuple[str, str], str] = {
    ("broadcast_shapes", "float32"): IN_PYTHON,
    ("contiguous", "float32"): IN_PYTHON,
    ("contiguous", "int64"): IN_PYTHON,
    ("contiguous", "complex64"): IN_PYTHON,
    ("conj", "float32"): IN_PYTHON,
    ("conj", "int64"): IN_PYTHON,
}

# Operators whose results contain, or whose kernels read, uninitialized memory.
UNINITIALISED: dict[str, str] = dict.fromkeys(
    [
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "linalg.lstsq",
        "linalg.lstsq.grad_oriented",
    ],
    NEW_MEMORY,
)

# Samples that may differ: a pattern for "OPERATOR DTYPE VARIANT", what the sample must be like, and why.
SAMPLES: list[tuple[str, Any, str]] = [
    (
        r"addr int64 inplace",
        lambda sample: sample.arguments.broadcasts_input,
        "an error in PyTorch that is found by comparing the addresses of two C++ references (&result == &self), "
        "which no boxed call keeps: in a scope it resizes, and warns",
    ),
]


def reason_for(sample: Any, name: str, dtype: str) -> str | None:
    """Why this sample may differ; None, if it may not."""
    for pattern, applies, reason in SAMPLES:
        if re.fullmatch(pattern, f"{name} {dtype} {sample.variant}") and applies(sample):
            return reason
    return None
