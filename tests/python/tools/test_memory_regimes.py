"""PeakMemory beside profilers, threads, other scopes, other modules, and in forked children."""

import os
import threading

import amanda
import pytest
import torch
from amanda.tools.memory import PeakMemory
from memory_runs import BATCH, F32, WIDTHS, by, measured, mlp, train


def test_the_profiler_is_refused():
    memory = PeakMemory()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True),
        pytest.raises(
            amanda.Error,
            match=r"\[memory\] another listener hears of memory on this thread, and PyTorch has place for one",
        ),
        amanda.apply(memory),
    ):
        pass
    memory, _ = measured(lambda: torch.ones(3))
    assert memory.rows()


def test_compiled_code_is_left_out_and_counted():
    memory = PeakMemory()
    function = torch.compile(lambda x: torch.relu(x).exp(), backend="aot_eager")
    with amanda.apply(memory, compiled="graph"):
        kept = function(torch.ones(10))
    assert kept is not None
    assert memory.skipped == {"compiled": 2}
    assert set(by(memory, "op", "bytes")) <= {"aten::ones", "(outside operators)"}
    assert "skipped: 2 compiled" in memory.table().caption.plain


def test_two_at_once_are_refused():
    first, second = PeakMemory(), PeakMemory()
    with amanda.apply(first), pytest.raises(amanda.Error, match="or another PeakMemory"), amanda.apply(second):
        pass
    with amanda.apply(second):
        kept = torch.ones(10)
    assert by(second, "op", "bytes") == {"aten::ones": (40,)}
    assert kept is not None


def test_threads_and_nested_scopes_share_a_tool():
    memory, kept = PeakMemory(), []

    def run():
        with amanda.apply(memory), amanda.apply(memory):
            model = mlp()
            kept.append((model, train(model)))

    thread = threading.Thread(target=run)
    with amanda.apply(memory):
        kept.append(torch.ones(1000))
        thread.start()
        thread.join()
        kept.append(torch.ones(1000))
    assert memory._watch is None  # the hooks of optimizers are gone
    assert by(memory, "kind", "bytes")["optimizer state"][0] > 0
    assert memory.live_bytes["cpu"] >= 8000


class Unfinished(torch.nn.Module):
    def __init__(self):  # no super().__init__() yet
        pass


class Stubborn(torch.nn.Module):
    """Its own methods are not called."""

    def named_parameters(self, *arguments, **options):
        raise ValueError("not now")

    named_buffers = children = named_parameters


def test_other_modules_of_the_process_do_no_harm():
    others = Unfinished(), torch.nn.LazyLinear(3), Stubborn()
    memory, model = measured(lambda: torch.nn.Linear(4, 4))
    assert by(memory, "kind", "bytes")["parameter"] == ((16 + 4) * F32,)
    assert (*others, model) is not None


def test_what_is_freed_between_scopes_is_not_there_in_the_next():
    memory, model = PeakMemory(), mlp()
    size = sum(parameter.numel() for parameter in model.parameters()) * F32
    for _ in range(3):
        with amanda.apply(memory):
            model(torch.ones(BATCH, WIDTHS[0])).sum().backward()
        assert memory.live_bytes == {"cpu": size}  # the gradients
        model.zero_grad()
    with amanda.apply(memory):
        model(torch.ones(BATCH, WIDTHS[0])).sum().backward()
    with amanda.apply(memory):
        pass
    assert memory.live_bytes == {"cpu": size}  # which the program still has
    assert by(memory, "kind", "bytes")["gradient"] == (size,)


def test_copies_on_write_are_not_made():
    def run():
        model = torch.nn.BatchNorm1d(4)
        model.other = torch.nn.Parameter(torch._lazy_clone(model.weight.detach()))
        return model

    _, model = measured(run)
    assert torch._C._is_cow_tensor(model.other)


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_exceptions_without_text_leave_as_they_are():
    with pytest.raises(Silent), amanda.apply(PeakMemory()):
        raise Silent


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_listener():
    with amanda.apply(PeakMemory()):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                own = PeakMemory()
                with amanda.apply(own):
                    kept = torch.ones(10)
                code = 0 if own.live_bytes == {"cpu": 40} and kept is not None else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
