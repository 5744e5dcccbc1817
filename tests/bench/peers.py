"""The same work under other tools that observe operators, of PyTorch and others."""

import contextlib
import importlib

import torch
from configurations import Configuration, Missing, Session, counter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PEERS: list[Configuration] = []


def peer(name):
    def register(function):
        PEERS.append(Configuration(name, contextlib.contextmanager(function), is_peer=True))
        return function

    return register


@peer("RecordFunction, inputs, empty callback")
def record_function(workload, body):
    # The callback is null, and torch boxes the inputs for it. PyTorch's own benchmark of it does the same.
    torch._C._autograd._set_empty_test_observer(False, 1.0)  # this thread's, every call
    try:
        yield Session(body.run)
    finally:
        torch._C._autograd._clear_callbacks()


@peer("a bare kernel, counts")
def counting_kernel(workload, body):
    with bare_kernel(workload, None) as count:
        yield Session(body.run, count)


@peer("a bare kernel, Python function")
def python_kernel(workload, body):
    tool = counter()  # for its routine: it is not applied
    with bare_kernel(workload, tool.tick):
        yield Session(body.run, lambda: tool.count)


@contextlib.contextmanager
def bare_kernel(workload, function):
    """The least that an observer of one operator can cost."""
    import bare_kernel

    if workload.group != "add":
        raise Missing("torch.add only")
    library = bare_kernel.library()
    before = library.count()
    library.enter(function)
    try:
        yield lambda: library.count() - before
    finally:
        library.leave()


@peer("TorchFunctionMode, counts")
def function_mode(workload, body):
    class Count(TorchFunctionMode):
        count = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.count += 1
            return function(*args, **(kwargs or {}))

    with Count() as mode:
        yield Session(body.run, lambda: mode.count)


@peer("TorchDispatchMode, counts")
def dispatch_mode(workload, body):
    class Count(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += 1
            return function(*args, **(kwargs or {}))

    with Count() as mode:
        yield Session(body.run, lambda: mode.count)


@peer("module hooks, forward and full backward")
def module_hooks(workload, body):
    if body.model is None:
        raise Missing("no module")
    count = 0

    def hook(*arguments):
        nonlocal count
        count += 1

    handles = [
        torch.nn.modules.module.register_module_forward_hook(hook),
        torch.nn.modules.module.register_module_full_backward_hook(hook),
    ]
    try:
        yield Session(body.run, lambda: count)
    finally:
        for handle in handles:
            handle.remove()


@peer("torch.profiler, CPU")
def profiler(workload, body):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield Session(body.run)


@peer("DebugMode")
def debug_mode(workload, body):
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode:
        yield Session(body.run, lambda: len(mode.operators))


@peer("detect_anomaly, backward only")
def detect_anomaly(workload, body):
    with torch.autograd.detect_anomaly(check_nan=True):
        yield Session(body.run)


@peer("TorchDispatchMode, looks for NaN")
def nan_dispatch_mode(workload, body):
    class Look(TorchDispatchMode):
        seen = found = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            results = function(*args, **(kwargs or {}))
            self.seen += 1
            self.found += has_nan(results)
            return results

    with Look() as mode:
        yield Session(body.run, lambda: mode.seen)


@peer("module hooks, look for NaN")
def nan_module_hooks(workload, body):
    if body.model is None:
        raise Missing("no module")
    seen = found = 0

    def hook(module, inputs, results):
        nonlocal seen, found
        seen += 1
        found += has_nan(results)

    handles = [
        torch.nn.modules.module.register_module_forward_hook(hook),
        torch.nn.modules.module.register_module_full_backward_hook(hook),
    ]
    try:
        yield Session(body.run, lambda: seen)
    finally:
        for handle in handles:
            handle.remove()


def has_nan(results):
    tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return any(bool(torch.isnan(tensor).any()) for tensor in tensors)


@peer("FlopCounterMode")
def flop_counter(workload, body):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        yield Session(body.run)


@peer("TorchLens, no tensors saved")
def torchlens(workload, body):
    require_forward(body)
    library = installed("torchlens")
    # It leaves PyTorch's functions wrapped, for the baseline too, unless told not to.
    options = library.options.CaptureOptions(layers_to_save="none", unwrap_when_done=True)

    def run(count):
        for _ in range(count):
            with torch.no_grad():
                library.trace(body.model, [], body.inputs, capture=options)

    yield Session(run)


@peer("NNsight, empty trace")
def nnsight(workload, body):
    require_forward(body)  # before the import, which replaces Tensor.backward
    library = installed("nnsight")
    model = library.NNsight(body.model)

    def run(count):
        for _ in range(count):
            with torch.no_grad(), model.trace(**body.inputs):
                pass

    yield Session(run)


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Missing("not installed") from None


def require_forward(body):
    if body.inputs is None:
        raise Missing("forward only")
