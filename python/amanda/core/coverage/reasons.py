"""Why no tool of a scope saw a call: the texts of coverage reports and of docs/limitations.md.

They are in order of precedence. After a change: `python scripts/reasons.py`. Drivers report the names; PyTorch's are
`Skipped` in its coverage_counter.h.
"""

REASONS = {
    "own": "Amanda calls it for a tool: copies, and trial runs of in-place operators",
    "routine": "a routine or an analysis of a tool calls it",
    "opaque": 'it is called inside a compiled function, under `apply(..., compiled="opaque")`',
    "off": "instrumentation is switched off, by `amanda.disabled()`",
    "thread": "it runs on another thread, which has entered no scope: `threading.Thread`, `torch.jit.fork`",
    "noise": "it is bookkeeping of the framework: `profiler::*`, `prim::*`, `lift_fresh`",
    "backward": "a backward operator is made of it; tools see the autograd node as a whole",
    "graph": "it is inside a function that a v1 graph of TensorFlow calls, and a warning says why that is not copied",
    "compiled": (
        'it is inside a compiled function, under `apply(..., compiled="graph")`, where tools cannot be shown it; or the '
        "function runs without tools, and a warning says why"
    ),
    "traced": "the program is being traced: `FakeTensorMode`, `make_fx`, `torch.export`, `torch.jit.trace`",
    "unasked": "no tool of the scope asks for it: not for operators of its type (`ops=`), or not for backward operators",
    "unowned": (
        "it is a node of a backward pass whose forward operator no tool saw, or none that asks for its backward operators: "
        "made outside the scope, inside compiled code, or by autograd itself"
    ),
    "inner": "it is called inside an operator that a tool of the scope sees, and no tool asks for it with `nested=True`",
    "callback": (
        "a callback calls it that is queued for the end of a backward pass, such as those of `DistributedDataParallel` and "
        "FSDP: they copy and reduce gradients"
    ),
    "lost": "none of these: Amanda's dispatch keys were off, as under a guard in C++ that put the thread's state back",
}
