"""Forked and spawned processes, and programs that are distributed over several."""

import contextlib
import os

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])
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
        torch.distributed.destroy_process_group()
