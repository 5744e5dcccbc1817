"""PyTorch's whole operator database: is every call of every operator the same, to the last bit, in a scope?

    make sweep                          # everything, in two processes; minutes
    python tests/opinfo --ops '*norm*'  # some operators
    python tests/opinfo --shard 3/40    # every 40th operator, from the third on
    python tests/opinfo --most 4        # 4 samples of those that have more; every operator

Each operator of `torch.testing._internal.common_methods_invocations.op_db` is called on all its samples with float32,
int64 and complex64, as a function, a method, an operator, in place and with out=, and its aliases, too, backward
included: outside a scope, under a tool that looks, one that hands back what it got, and one that replaces each
operator by itself. Results or exceptions, arguments, gradients and the random state are compared: bytes, strides,
dtypes, gradient functions, versions, what shares memory with what. `exclusions.py` has what is left out.
"""

import argparse
import fnmatch
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))

import sweep
import torch
from amanda.reports.progress import Progress


def arguments():
    parser = argparse.ArgumentParser(
        prog="python tests/opinfo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--ops", default="*", help="a pattern for the operators' names")
    option("--shard", default="0/1", metavar="I/N", help="every N-th operator, from the I-th on")
    option("--most", type=int, metavar="N", help="N samples of each variant and dtype, from the first to the last")
    option("--device", default="cpu", help="cuda: there, operators that differ from themselves are left out by name")
    option("--jobs", type=int, default=1, help="processes")
    option("--slowest", action="store_true", help="say which operators took longest")
    option("--verbose", action="store_true", help="say which operator is next")
    option("--pickle", help=argparse.SUPPRESS)  # a file for the findings, from one of several processes
    option("--done", type=int, help=argparse.SUPPRESS)  # a pipe that takes a byte for each operator
    options = parser.parse_args()
    if options.most is not None and options.most < 2:
        parser.error(f"argument --most: at least 2, the first sample and the last; got {options.most}")
    return options


def chosen_operators(options):
    operators = sweep.operators(*map(int, options.shard.split("/")))
    return [op for op in operators if fnmatch.fnmatchcase(sweep.name_of(op), options.ops)]


def bar(options, count):
    return Progress("sweeping operators", count, show=options.done is None and not options.verbose, ticks=True)


def shard(options):
    """Sweeps through its part in this process."""
    torch.set_num_threads(1)
    found, seconds = sweep.Findings(), {}
    chosen = chosen_operators(options)
    with bar(options, len(chosen)) as progress:
        for op in chosen:
            progress.now(sweep.name_of(op))
            if options.verbose:
                print(sweep.name_of(op), file=sys.stderr, flush=True)
            start = time.perf_counter()
            found.add(sweep.sweep(op, most=options.most, device=options.device))
            seconds[sweep.name_of(op)] = time.perf_counter() - start
            progress.advance()
            if options.done is not None:
                os.write(options.done, b".")
    if options.slowest:
        for name in sorted(seconds, key=seconds.get, reverse=True)[:20]:
            print(f"{seconds[name]:6.2f} s  {name}")
    return found


def shards(options):
    """Splits its part among processes."""
    part, of = map(int, options.shard.split("/"))
    folder = Path(__file__).parents[2] / "build" / "opinfo"
    folder.mkdir(parents=True, exist_ok=True)
    running = []
    done, theirs = os.pipe()
    for job in range(options.jobs):
        file = folder / f"{job}.pickle"
        file.unlink(missing_ok=True)
        command = [sys.executable, Path(__file__).parent, "--ops", options.ops, "--pickle", file]
        command += ["--device", options.device]
        command += ["--verbose"] if options.verbose else []
        command += ["--shard", f"{part + job * of}/{of * options.jobs}"]
        command += ["--most", str(options.most)] if options.most else []
        command += ["--done", str(theirs)]
        running.append((subprocess.Popen(command, pass_fds=[theirs]), file))
    os.close(theirs)
    with open(done, "rb", buffering=0) as pipe, bar(options, len(chosen_operators(options))) as progress:
        while some := pipe.read(4096):  # until all processes have ended
            progress.advance(len(some))
    found = sweep.Findings()
    for process, file in running:
        if process.wait() != 0 or not file.exists():
            found.failures.append(f"a process died: exit status {process.returncode}")
        else:
            found.add(pickle.loads(file.read_bytes()))
    return found


def main():
    options = arguments()
    start = time.perf_counter()
    found = shards(options) if options.jobs > 1 else shard(options)
    if options.pickle:
        Path(options.pickle).write_bytes(pickle.dumps(found))
        return
    for failure in found.failures:
        print("DIFFERS", failure)
    print(found.table())
    failed = len(found.failures)
    print(
        f"\nin {time.perf_counter() - start:.0f} s\n{sum(found.comparisons.values()) - failed} passed, {failed} failed"
    )
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()
