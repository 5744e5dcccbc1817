"""Separate processes, so that one measurement does not affect the next."""

import gc
import multiprocessing
import os
import time
import traceback

CONTEXT = multiprocessing.get_context("spawn")
REPEATS = 5


def prepare():
    """Settings of every process that measures."""
    import warnings

    import torch

    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")  # of the peers: several are private, and say so
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()


class Failed(Exception):
    """What was raised in another process: its type, and the traceback as a text."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def _answer(pipe, function, arguments):
    try:
        pipe.send((True, function(*arguments)))
    except Exception as error:
        pipe.send((False, (type(error), traceback.format_exc())))


def call(function, *arguments):
    """`function(*arguments)` in a fresh process."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        good, result = ours.recv()
    except EOFError:
        good, result = False, (EOFError, f"[bench] the process of {function.__name__} died")
    process.join()
    if not good:
        raise Failed(*result)
    return result


def repeated(settings, function, *arguments):
    """The results of `call`, from several processes in turn."""
    return [call(function, *arguments) for _ in range(min(settings.rounds, REPEATS))]


class Control:
    """A process that runs the same workload and never imports Amanda. Idle but when it is asked."""

    def __init__(self, workload, full):
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, workload.name, full), daemon=True)
        self._process.start()
        theirs.close()

    def time(self, count, repeats):
        """Nanoseconds of one."""
        self._pipe.send((count, repeats))
        return self._pipe.recv()

    def close(self):
        self._pipe.send(None)
        self._process.join()


def _serve(pipe, name, full):
    import sys

    import workloads

    prepare()
    body = next(w for w in workloads.WORKLOADS if w.name == name).make(full)
    body.run(2)
    while (asked := pipe.recv()) is not None:
        body.run(1)  # the baseline follows other work of its own process, this may have waited for minutes
        pipe.send(best(body.run, *asked))
        assert "amanda" not in sys.modules


def times(run, counts, found):
    """Appends to `found` the nanoseconds of one, from a run of each of `counts`.

    There is one call here, and a session is measured by one call of this: to Amanda an operator that is reached by
    another call is another place, to be analysed first.

    It is CPU time of the process, all its threads: on an idle machine the wall time of one thread, and on a shared one
    without the time in which others run.
    """
    for count in counts:
        start = time.process_time_ns()
        run(count)
        found.append((time.process_time_ns() - start) / count)
    return found


def best(run, count, repeats):
    """Nanoseconds of one: others can only make it slower."""
    return min(times(run, [count] * repeats, []))
