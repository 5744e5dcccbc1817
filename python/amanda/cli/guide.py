"""From a problem, in the words of users, to a command: what `amanda` alone and `amanda help` print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_WORD = re.compile(r"[a-z0-9]+")
_LEAST = 4  # letters: shorter words have to be the same, others to begin alike


class Task(NamedTuple):
    """A problem, and the command for it."""

    problem: str
    command: str
    words: str  # that users have for it


TASKS = (
    Task("a NaN or an infinity: who made it?", "amanda nan train.py", "nan inf infinite overflow nonfinite loss gradient"),
    Task("training is slow: which line?", "amanda profile train.py", "slow time speed fast bottleneck line profile step"),
    Task("backward is slow: whose?", "amanda profile --backward train.py", "slow backward gradient time"),
    Task("out of memory: what is in it?", "amanda memory train.py", "memory oom ram cuda keeps peak"),
    Task("memory grows: who keeps it?", "amanda memory --growth train.py",
         "memory leak leaks grows growth ram cuda keeps step accumulates oom"),
    Task("two runs differ: where do they begin to?", "amanda diff before.py after.py",
         "diff different differ change changed refactoring version reproduce seed mismatch compare port"),
    Task("the compiled function differs: which operators?", "amanda diff eager.py compiled.py",
         "compile compiled inductor fusion fused differ different wrong eager kernel"),
    Task("which operator became which node of my ONNX file?", "amanda ls --against-onnx model.onnx infer.py",
         "onnx export exported node nodes became becomes fused fusion optimized onnxruntime mapping which"),
    Task("my ONNX export differs: which node?", "amanda diff --against-onnx model.onnx infer.py",
         "onnx export exported exporter differ differs different node wrong results onnxruntime runtime quantized qdq"),
    Task("\"modified by an inplace operation\"", "amanda inplace train.py",
         "modified inplace place write wrote version backward error variable needed gradient computation"),
    Task("\"backward through the graph a second time\"", "amanda inplace train.py",
         "trying backward through graph second time retain_graph freed saved twice error detach hidden"),
    Task("a parameter gets no gradient: where is the path cut?", "amanda gradients train.py",
         "gradient gradients none zero parameter parameters path cut detach grad frozen train update updated requires"),
    Task("training goes wrong: since when?", "amanda watch train.py",
         "loss diverges diverge vanishing exploding gradient norm dead relu learn learning update watch explodes"),
    Task("it runs, and learns nothing, or badly: a mistake?", "amanda check train.py",
         "mistake wrong learns learn nothing bug silent broadcast zero_grad eval dropout lint check rules accuracy poor "
         "loss negative decrease decreases constant stuck validation batch_first"),
    Task("which operators run, and where?", "amanda ls train.py", "operators operator ops list graph layers shapes runs"),
    Task("which lines wait for the device?", "amanda ls --ops item,nonzero,is_nonzero train.py",
         "synchronize sync wait waits device cuda item gpu"),
    Task("how many operations does it take?", "amanda flops train.py", "flops macs operations cost count compute"),
    Task("a value that I want to see", "amanda trace -e 'linear: output.abs().max()' train.py",
         "value values print activation activations output input look trace max mean"),
    Task("prune, quantize, or other tools", "amanda run -t 'magnitude_pruning(sparsity=0.9)' train.py",
         "prune pruning quantize quantization tool tools sparsity run several"),
    Task("several ranks, or a saved run", "amanda report results", "rank ranks distributed page html report saved"),
    Task("does Amanda work here?", "amanda doctor train.py", "install installed doctor works work environment version"),
)  # fmt: skip


def guide(tasks: Sequence[Task] = TASKS) -> str:
    """The problems, each with its command."""
    width = max(len(task.problem) for task in tasks)
    return "\n".join(f"  {task.problem:{width}}  {task.command}" for task in tasks)


def start_page() -> str:
    """The text of `amanda` alone."""
    return (
        "Amanda runs your script unchanged, under tools that look into its neural networks. What is the problem?\n\n"
        f"{guide()}\n\n"
        "amanda help WORDS, as in: amanda help my loss is nan\n"
        "amanda COMMAND --help lists the options of a command"
    )


def matching(words: Sequence[str]) -> list[Task]:
    """The tasks whose words these are, the best first."""
    asked = set(_WORD.findall(" ".join(words).lower())) - _COMMON
    known = {task: set(_WORD.findall(f"{task.words} {task.problem}".lower())) - _COMMON for task in TASKS}
    scores = {task: sum(any(_alike(one, other) for other in of) for one in asked) for task, of in known.items()}
    best = max(scores.values())
    return [task for task, score in scores.items() if score == best] if best else []


_COMMON = {
    "a",
    "or",
    "an",
    "it",
    "is",
    "the",
    "does",
    "do",
    "to",
    "i",
    "that",
    "how",
    "who",
    "which",
    "and",
    "where",
    "of",
    "my",
    "in",
}


def _alike(one: str, other: str) -> bool:
    if min(len(one), len(other)) < _LEAST:
        return one == other
    return one.startswith(other) or other.startswith(one)
