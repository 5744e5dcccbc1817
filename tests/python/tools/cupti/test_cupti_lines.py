"""CuptiProfiler by line on the host: forward and backward, against its rows by id, and Profile's lines."""

import amanda
import pytest
import torch
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.profile import Profile
from profiling import profiled
from torch.utils.checkpoint import checkpoint

SUMS = {
    "host_ns": "host_self_ns",
    "allocated_bytes": "allocated_self_bytes",
    "freed_bytes": "freed_self_bytes",
    "failed": "failed",
}


def training(reentrant):
    torch.manual_seed(0)
    body, head = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()), torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def step():
        hidden = checkpoint(body, torch.randn(4, 16, requires_grad=True), use_reentrant=reentrant)
        head(hidden).square().sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("reentrant", [False, True])
def test_lines_add_up_to_the_rows_by_id_and_count_nothing_twice(reentrant):
    step = training(reentrant)
    profiler = profiled(lambda: [step() for _ in range(3)])
    lines, places = profiler.rows("line"), profiler.rows("id")
    assert {field: sum(getattr(row, field) for row in lines) for field in SUMS} == {
        field: sum(getattr(row, own) for row in places) for field, own in SUMS.items()
    }
    backward = [row for row in places if row.phase == "backward"]
    assert sum(row.host_backward_ns for row in lines) == sum(row.host_self_ns for row in backward) > 0
    assert sum(row.backward_calls for row in lines) == sum(row.calls for row in backward) > 0
    assert all(row.host_forward_ns == row.host_ns - row.host_backward_ns >= 0 for row in lines)
    assert sum(row.share for row in lines) == pytest.approx(1)
    assert [row.host_ns for row in lines] == sorted((row.host_ns for row in lines), reverse=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_lines_and_calls_are_those_of_profile(reentrant):
    def counts(tool):
        step = training(reentrant)
        with amanda.apply(tool):
            for _ in range(2):
                step()
        return {row.source: (row.calls, row.backward_calls) for row in tool.rows("line")}

    found = counts(CuptiProfiler(gpu=False))
    assert found == counts(Profile(backward=True))
    assert len(found) == 3
    assert min(min(both) for both in found.values()) == 0, "the optimizer's line has no backward operators"


def test_a_listing_has_host_times_where_there_is_no_device():
    step = training(False)
    profiler = profiled(step)
    head = str(profiler.annotate(__file__)).splitlines()[1]
    columns = ["line", "calls", "forward", "ms", "backward", "ms", "share", "allocated", "MB"]
    assert head.split("│")[0].split() == columns
    assert "ms on the host (" in str(profiler.annotate(__file__))
    assert profiler.table("line").row_count == len(profiler.rows("line"))
