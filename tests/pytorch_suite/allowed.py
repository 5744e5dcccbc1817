"""The tests of PyTorch that may end differently in a scope: a pattern for their names, and why."""

import fnmatch

ALLOWED: dict[str, str] = {
    "test_torch.py::TestTorch::test_swap_basic": "a leaf that requires a gradient and is in no module carries a weak "
    "reference while a scope is open, which swap_tensors refuses (docs/limitations.md, loose parameters)",
    "test_autograd.py::TestAutograd::test_node_post_hook_registered_during_unpack_hook": "where a tool asked for what "
    "is after a backward operator, the engine keeps its inputs, and hooks that were there without see them",
    "test_nestedtensor.py::*::test_to_padded_tensor_compile_*": "it looks at the code that the compiler generates; in a "
    "scope compiled functions run eagerly (docs/limitations.md, the inside of compiled code)",
}


def reason_for(test: str) -> str | None:
    """Why this test may differ; None, if it may not."""
    return next((reason for pattern, reason in ALLOWED.items() if fnmatch.fnmatchcase(test, pattern)), None)
