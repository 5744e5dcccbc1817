"""Programs that torch.compile compiled, with inductor: ratios to the same compiled program without a tool.

A round measures each row once, between two measurements of the baseline in the same process. The first step of a row
compiles, with an empty on-disk cache; its time includes that of the C++ compiler.
"""

import contextlib
import resource
import sys

import process
import torch
from configurations import BASELINE
from workloads import repeat

STEPS = 3  # in one measurement


def transformer_layer():
    model, x = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), torch.randn(8, 64, 256)
    return model, lambda compiled: compiled(x).sum()


def bert():
    import models

    model, ids = models.small_bert(), models.token_batch(8, 64)
    labels = torch.zeros(8, dtype=torch.long)
    return model, lambda compiled: compiled(input_ids=ids, labels=labels).loss


PROGRAMS = {
    "compiled transformer layer": ("width 256, 8x64 tokens, gradients", transformer_layer),
    "compiled BERT": ("2 layers, width 256, 8x64 tokens, gradients", bert),
}


def measurement(name, rounds):
    """All measurements of a program. Runs in its own process: what is compiled stays there."""
    import compiled_rows

    process.prepare()
    torch._inductor.config.compile_threads = 1  # processes of a pool are not waited for, so their time is not counted
    size, make = PROGRAMS[name]
    run = compiled(make)
    rows = opened(make, run)
    first_s = {BASELINE: first(run)}
    missing = {}
    for row, (own_run, scope) in list(rows.items()):
        say(f"compiles: {row}")
        try:
            with scope:
                first_s[row] = first(own_run)
                require_observed(row, scope)
        except torch._dynamo.exc.TorchDynamoException as error:
            if row not in compiled_rows.HOOKS:
                raise
            missing[row] = f"fails: {type(error).__name__}"
            del rows[row]
    ratios = {row: [] for row in [BASELINE, *rows]}
    baseline_ns = []
    for number in range(rounds):
        turn = number * 3 % len(rows)
        before = process.best(run, STEPS, 1)
        for row in [*rows][turn:] + [*rows][:turn]:
            own_run, scope = rows[row]
            with scope:
                own_run(1)
                ns = process.best(own_run, STEPS, 1)
            run(1)
            after = process.best(run, STEPS, 1)
            ratios[row].append(2 * ns / (before + after))
            ratios[BASELINE].append(after / before)
            baseline_ns.append(after)
            before = after
    return {
        "workload": name,
        "size": size,
        "baseline_ns": baseline_ns,
        "ratios": ratios,
        "first_s": first_s,
        "missing": missing,
    }


def say(text):
    print(f"[bench]   {text}", file=sys.stderr, flush=True)


def compiled(make, hook=None):
    """What runs forward and backward, compiled; nothing is compiled yet."""
    import compiled_rows

    model, loss_of = make()
    function = torch.compile(compiled_rows.hooked(model, hook) if hook else model)

    def step():
        model.zero_grad()
        loss_of(function).backward()

    return repeat(step)


def opened(make, run):
    """What each row runs, and what is entered for it."""
    import amanda
    import compiled_rows

    rows = {row: (run, amanda.apply(tool(), compiled="graph")) for row, tool in compiled_rows.TOOLS.items()}
    rows |= {row: (compiled(make, hook), contextlib.nullcontext()) for row, hook in compiled_rows.HOOKS.items()}
    return rows | {row: (run, mode()) for row, mode in compiled_rows.MODES.items()}


def first(run):
    """CPU seconds of the first step, and of the compilers that it runs."""
    from torch._inductor.utils import fresh_cache

    def seconds():
        uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(use.ru_utime + use.ru_stime for use in uses)

    with fresh_cache():
        start = seconds()
        run(1)
        return seconds() - start


def require_observed(row, scope):
    """A row that measures nothing is an error."""
    import compiled_rows

    if row in compiled_rows.TOOLS and row != compiled_rows.NOBODY_ASKS and not scope.cache_info().misses:
        raise RuntimeError(f"[bench] {row} has seen nothing")
    if row in compiled_rows.HOOKS and "debug_log" not in row:
        if not compiled_rows.Calls.count:
            raise RuntimeError(f"[bench] {row} has seen nothing")
        compiled_rows.Calls.count = 0
