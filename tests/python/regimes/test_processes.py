"""Forked and spawned processes, and programs that are distributed over several."""

import contextlib
import gc
import os
import signal
import threading

import amanda
import pytest
import torch
from process_groups import destroy_group
from unharmed import Look, bits

X = torch.tensor([-1.0, 2.0])
WATCHDOG = 120  # seconds, after which what hangs is ended
nn = torch.nn


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_scope(recorder):
    tool = recorder(ops=["relu", "sin"])
    scope = amanda.apply(tool)
    with contextlib.suppress(SystemExit):
        with scope:
            child = os.fork()
            if child == 0:
                torch.relu(X)
                seen_inside = list(tool.ran)
        if child == 0:  # it leaves the with block as the parent does
            torch.relu(X)
            with scope:
                torch.sin(X)
            os._exit(0 if (seen_inside, tool.ran) == ([], ["sin"]) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert tool.ran == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_data_loader_with_workers(recorder):
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    with amanda.apply(recorder()):
        batches = [batch[0] for batch in torch.utils.data.DataLoader(data, batch_size=2, num_workers=1)]
    assert torch.cat(batches).tolist() == list(range(8))


def test_a_distributed_model(recorder, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, tool = nn.parallel.DistributedDataParallel(nn.Linear(3, 3)), recorder()
        with amanda.apply(tool):
            for _ in range(2):
                model(torch.ones(1, 3)).sum().backward()
        assert tool.ran.count("linear") == 2
        assert model.module.weight.grad.tolist() == [[2.0] * 3] * 3
    finally:
        destroy_group()


class Made(torch.utils.data.Dataset):
    """Each item is computed in the worker, which says whether a scope was open there."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.relu(torch.tensor([-1.0, float(i)])), amanda.is_enabled()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers_compute_unseen(method, recorder):
    def batches():
        torch.manual_seed(0)
        loader = torch.utils.data.DataLoader(
            Made(), batch_size=2, shuffle=True, num_workers=1, multiprocessing_context=method
        )
        return [batch.tolist() for batch, _ in loader]

    expected = batches()
    tool = recorder(ops=["relu", "add"])
    with amanda.apply(tool):
        assert batches() == expected
        torch.relu(X)
    assert tool.ran == ["relu"]


FORKED = "ignore:.*multi-threaded.*fork.*:DeprecationWarning"


def forked(function):
    """What the function returns in a forked child: a small number."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(function())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings(FORKED)
@pytest.mark.parametrize("ops", [None, ["relu"]], ids=["all", "some"])
def test_a_fork_inside_a_routine(ops, before):
    codes, ran = [], []

    def routine(x):
        ran.append(1)
        codes.append(forked(lambda: torch.relu(torch.ones(3)).sum()))

    with amanda.apply(before("relu" if ops else ["relu"], routine)):
        assert torch.relu(X).tolist() == [0.0, 2.0]
        assert torch.relu(X).tolist() == [0.0, 2.0]
    assert (codes, len(ran)) == ([3, 3], 2)


@pytest.mark.filterwarnings(FORKED)
def test_a_childs_own_scopes_work_and_nested_forks_do(recorder):
    tool, inner = recorder(ops="relu"), recorder(ops="relu")

    def child():
        torch.relu(X)
        with amanda.apply(inner):
            torch.relu(X)
            grandchild = forked(lambda: (torch.relu(X), len(inner.ran))[1])
            torch.relu(X)
        return 10 * grandchild + len(inner.ran) + 5 * len(tool.ran)

    with amanda.apply(tool):
        torch.relu(X)
        assert forked(child) == 10 * 1 + 2 + 5
        torch.relu(X)
    assert len(tool.ran) == 2


@pytest.mark.filterwarnings(FORKED)
def test_a_fork_under_inference_mode_autocast_and_a_switch(recorder):
    tool = recorder()

    def child():
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            torch.relu(X)
        return len(tool.ran)

    with amanda.apply(tool), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), amanda.disabled():
        assert forked(child) == 0


@pytest.mark.filterwarnings(FORKED)
def test_a_fork_while_another_thread_is_in_a_scope(recorder):
    import threading

    stop, started, tool = threading.Event(), threading.Event(), recorder()

    def work():
        with amanda.apply(tool):
            while not stop.is_set():
                torch.relu(X)
                started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()

    def child():
        watcher = recorder(ops="relu")
        with amanda.apply(watcher):
            torch.relu(X)
        return len(watcher.ran)

    try:
        assert [forked(child) for _ in range(10)] == [1] * 10
    finally:
        stop.set()
        thread.join()


def test_a_collective_that_is_still_running_is_looked_at(after, tmp_path):
    import time

    def look(*operands):
        time.sleep(0.05)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x, gathered = torch.ones(5_000_000), torch.zeros(5_000_000)
        # torch 2.13 has renamed it, and warns of the former name.
        gather = getattr(torch.distributed, "all_gather_single", torch.distributed.all_gather_into_tensor)
        with amanda.apply(after("c10d::*", look)):
            for _ in range(3):
                gather(gathered, x, async_op=True).wait()
                assert torch.equal(gathered, x)
    finally:
        destroy_group()


@pytest.mark.slow
def test_models_over_two_processes(ranks, tmp_path):
    ranks.function(over_two_processes, 2, str(tmp_path / "rendezvous"))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def fsdp(**options):
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in (model[0], model[2], model):
        fully_shard(layer, **options)
    return model


def half():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def over_two_processes(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel
    models = {
        "DDP, static graph": lambda: parallel(net(), static_graph=True),
        "DDP, unused parameters": lambda: parallel(net(), find_unused_parameters=True),
        "DDP, views into buckets": lambda: parallel(net(), gradient_as_bucket_view=True, bucket_cap_mb=0.0001),
        "FSDP2": fsdp,
        "FSDP2, kept": lambda: fsdp(reshard_after_forward=False),
        "FSDP2, bfloat16": half,
    }
    for name, make in models.items():
        expected = train(make(), rank)
        for kind, options in {"look inside": {"nested": True}, "hand back": {"hand_back": True}}.items():
            tool, everything = Look("aten::*", **options), amanda.Tool()
            everything.add_inst_for_op(lambda context: None)
            model = make()
            with amanda.apply(tool, everything):
                assert train(model, rank) == expected, (name, kind)
            assert tool.count["AddmmBackward0"] == 9, (name, kind, tool.count)
            assert tool.count["linear"] >= 9
        assert train(make(), rank) == expected, name
    destroy_group()


def train(model, rank):
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync() if hasattr(model, "no_sync") and step == 1 else contextlib.nullcontext():
            model(torch.randn(2, 4)).float().square().sum().backward()
        if step != 1:
            optimizer.step()
    plain = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return bits([each.detach() for each in plain])


@pytest.mark.filterwarnings(FORKED)
def test_a_fork_while_another_thread_names_places_and_forgets_them(recorder):
    """Whatever lock the other thread holds, the child finds it free, and leaves its parent's `with` blocks."""
    tool, stop, started = recorder(ops=["relu", "sin"]), threading.Event(), threading.Event()
    scope = amanda.apply(tool)

    def name():
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        started.set()  # at a thread's first operator, PyTorch holds a lock of its own that a child finds held
        while not stop.is_set():
            with amanda.apply(Look(), coverage=True):
                for source in ("torch.relu(x)", "torch.sin(x)"):  # a new place each time
                    exec(source, {"torch": torch, "x": X})
                model(X)
            with scope:
                torch.relu(X)
            scope.cache_clear()

    def child():
        signal.alarm(WATCHDOG)
        torch.relu(X)
        with amanda.apply(Look(), coverage=True), scope:
            exec("torch.relu(x)", {"torch": torch, "x": X})
            nn.Linear(2, 2)(X)
        scope.cache_clear()
        gc.collect()
        return 3

    # Imports what scopes and layers import on first use: a child waits forever for a module that a thread was importing.
    with amanda.apply(Look(), coverage=True), scope:
        nn.Linear(2, 2)(X)
    busy = threading.Thread(target=name)
    busy.start()
    assert started.wait(WATCHDOG)
    try:
        with amanda.apply(recorder()):
            codes = [forked(child) for _ in range(25)]
    finally:
        stop.set()
        busy.join()
    assert codes == [3] * 25


@pytest.mark.filterwarnings(FORKED)
def test_a_fork_while_another_thread_analyses(recorder):
    """The analysis never ends in the child, which lacks its thread: it runs there again."""
    analysing, go_on, analysed = threading.Event(), threading.Event(), []

    def analyse(context):
        analysed.append(context.op.__name__)
        if threading.current_thread() is not threading.main_thread():
            analysing.set()
            go_on.wait(WATCHDOG)

    def program():
        with scope:
            torch.relu(X)

    tool = amanda.Tool()
    tool.add_inst_for_op(analyse, ops="relu")
    scope = amanda.apply(tool)
    other = threading.Thread(target=program)
    other.start()
    assert analysing.wait(WATCHDOG)

    def child():
        signal.alarm(WATCHDOG)
        with scope:
            torch.relu(X)
        program()
        return len(analysed)

    code = forked(child)
    go_on.set()
    other.join()
    assert code in (2, 3)  # the place in child() is another one


@pytest.mark.filterwarnings(FORKED)
def test_a_forked_child_has_no_patches():
    engine = torch.autograd.variable.Variable._execution_engine

    def work(entered, go_on):
        with amanda.apply(Look()):
            entered.set()
            go_on.wait(WATCHDOG)

    entered, go_on = threading.Event(), threading.Event()
    other = threading.Thread(target=work, args=(entered, go_on))
    other.start()
    assert entered.wait(WATCHDOG)
    code = forked(lambda: int(torch.autograd.variable.Variable._execution_engine is engine))
    go_on.set()
    other.join()
    assert code == 1
    assert torch.autograd.variable.Variable._execution_engine is engine
