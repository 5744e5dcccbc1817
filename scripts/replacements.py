"""Writes which operators cannot be replaced into docs/limitations.md: `python scripts/replacements.py`.

Each operator of PyTorch's operator database is called under a tool that replaces every operator by itself.
"""

import contextlib
import sys
import warnings
from pathlib import Path

import amanda
import torch
from torch.testing._internal.common_methods_invocations import op_db

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "python" / "support"), str(ROOT / "tests" / "opinfo")]

from faithful import RunOriginal  # noqa: E402
from sample_inputs import sample_inputs  # noqa: E402

PAGE = ROOT / "docs" / "limitations.md"
BEGIN, END = "<!-- replacements: written by scripts/replacements.py -->\n", "<!-- end of replacements -->\n"
MOST_SAMPLES = 3  # of each operator


def calls_of(op):
    """Functions without arguments: a few samples, out of place and in place."""
    for _, sample in zip(range(MOST_SAMPLES), sample_inputs(op, torch.float32), strict=False):
        for way in filter(None, (op.op, op.inplace_variant)):

            def call(way=way, sample=sample):
                first = sample.input.clone() if isinstance(sample.input, torch.Tensor) else sample.input
                return way(first, *sample.args, **sample.kwargs)

            yield call


def refused():
    """The operators that refuse a replacement, by message; and those that fail although they were replaced."""
    kept, failed = {}, {}
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        for op in op_db:
            tool = RunOriginal()
            with contextlib.suppress(Exception):  # no samples on the CPU
                for call in calls_of(op):
                    try:
                        call()
                    except Exception:
                        continue  # it fails without a tool, too
                    try:
                        with amanda.apply(tool):
                            call()
                    except Exception as error:
                        failed[op.name] = str(error)
            for name, reason in tool.kept.items():
                kept.setdefault(reason, set()).add(name)
    return kept, failed


def rewritten(page, kept):
    """The page with the new list."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    lines = [
        f"- {', '.join(f'`{name}`' for name in sorted(names))}: {reason}\n" for reason, names in sorted(kept.items())
    ]
    return "".join([before, BEGIN, *lines, END, after])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(), refused()[0]))
