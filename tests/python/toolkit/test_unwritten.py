"""Memory without values: no tool reads it, through views and copies, until it is written."""

import ctypes
import gc
import re
import threading
import warnings
import weakref

import amanda
import numpy
import pytest
import torch
from amanda.toolkit.unwritten import MEMORY
from amanda.tools.histograms import ValueHistograms
from amanda.tools.history import History
from amanda.tools.nonfinite import NaNSentinel, NonfiniteWarning
from amanda.tools.statistics import OpStatistics
from amanda.tools.trace import Trace
from torch import nn


def garbage(*shape, make=torch.empty, **options):
    """Memory with what an earlier user could have left in it: NaNs."""
    memory = make(*shape, **options)
    ctypes.memset(memory.data_ptr(), 0xFF, memory.numel() * memory.element_size())
    return memory


def left_by_others():
    """The next small tensors are in memory that has NaNs."""
    for junk in [garbage(64, 64) for _ in range(50)]:
        del junk


def nans_by_statistics(program):
    statistics = OpStatistics()
    with amanda.apply(statistics):
        program()
    return {row.name for row in statistics.rows() if row.nans}


def nans_by_histograms(program):
    histograms = ValueHistograms()
    with amanda.apply(histograms):
        program()
    return {row.name for row in histograms.rows() if row.nans}


def nans_by_trace(program):
    trace = Trace("*: output.isnan().sum()")
    with amanda.apply(trace):
        program()
    return {row.name for row in trace.rows() if row.max}


def nans_by_sentinel(program):
    return {finding.name for finding in sentinel_of(program).findings()}


def sentinel_of(program):
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        program()
    return sentinel


READERS = [nans_by_statistics, nans_by_histograms, nans_by_trace, nans_by_sentinel]
each_reader = pytest.mark.parametrize("nans", READERS, ids=lambda reader: reader.__name__)


def layers():
    left_by_others()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    net(torch.randn(2, 64)).sum().backward()


def parameters_that_are_filled_later():
    weight = nn.Parameter(garbage(3, 3))
    weight.data.view(-1).normal_()
    torch.relu(weight.t())


def row_by_row():
    rows = garbage(4, 3)
    for i in range(4):
        rows[i] = torch.ones(3) * i
    torch.relu(rows.view(-1))


def column_by_column():
    columns = garbage(3, 4)
    for i in range(4):
        columns[:, i] = torch.ones(3) * i
    torch.relu(columns)


def cast_before_it_is_filled():
    layer = nn.utils.skip_init(nn.Linear, 64, 64)
    garbage_of = [garbage(64, 64), garbage(64)]
    layer.weight, layer.bias = map(nn.Parameter, garbage_of)
    layer = layer.to(torch.float64).to(torch.float32)
    layer.load_state_dict({"weight": torch.ones(64, 64), "bias": torch.ones(64)})
    layer(torch.ones(1, 64))


def filled_by_indices():
    rows = garbage(4, 3)
    rows[torch.tensor([True, False, True, False])] = torch.ones(2, 3)
    rows.index_copy_(0, torch.tensor([1]), torch.ones(1, 3))
    torch.relu(rows[:3])


def filled_by_numpy():
    memory = garbage(3)
    memory.numpy()[:] = 1.0
    torch.relu(memory.view(3, 1))


def grown():
    grows = torch.ones(2)
    grows.resize_(6)
    ctypes.memset(grows.data_ptr() + 8, 0xFF, 16)
    torch.relu(grows[:2])
    grows.view(2, 3)
    grows[2:].zero_()
    torch.relu(grows)


def out_of_an_operator():
    torch.relu(torch.add(torch.ones(3), 1, out=garbage(3)).view(3, 1))


def selected_by_a_mask():
    torch.where(torch.tensor([True, False]), torch.ones(2), torch.cat([torch.ones(1), garbage(1).zero_()])).sum()
    garbage(2).masked_fill(torch.tensor([True, True]), 0).sum()


HEALTHY = [
    *(layers, parameters_that_are_filled_later, row_by_row, column_by_column, cast_before_it_is_filled),
    *(filled_by_indices, filled_by_numpy, out_of_an_operator, selected_by_a_mask, grown),
]


@each_reader
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_healthy_programs_have_no_nans(program, nans):
    assert nans(program) == set()


@each_reader
def test_a_nan_that_was_written_is_one(nans):
    def program():
        memory = garbage(3)
        memory.fill_(torch.nan)
        torch.relu(memory.view(-1))

    assert {"aten::relu", "aten::fill_"} & nans(program)


@each_reader
@pytest.mark.parametrize(
    "make",
    [
        torch.tensor,
        torch.as_tensor,
        torch.Tensor,
        torch.ones(1).new_tensor,
        lambda data: torch.from_numpy(numpy.array(data)),
    ],
    ids=["tensor", "as_tensor", "Tensor", "new_tensor", "numpy"],
)
def test_data_that_is_made_in_the_scope_is_given_to_the_operator_that_gets_it(make, nans):
    found = nans(lambda: torch.relu(make([torch.nan, 1.0])))
    assert "aten::relu" in found
    assert "aten::empty" not in found


def test_views_of_data_that_is_made_in_the_scope_have_its_values():
    statistics = OpStatistics()
    with amanda.apply(statistics):
        torch.tensor([[3.0, 4.0]]).view(-1)
    row = next(row for row in statistics.rows() if row.name == "aten::view")
    assert (row.elements, row.mean, row.skipped) == (2, 3.5, 0)


def test_the_finding_names_the_operator_that_allocated_it_and_the_one_that_computes_with_it():
    sentinel = sentinel_of(lambda: (garbage(3).view(3, 1).clone() * 2).relu())
    (found,) = sentinel.findings()
    assert (found.kind, found.name, sentinel.propagated) == ("given", "aten::mul", 1)
    told = r"memory that aten::empty allocated \(\S*test_unwritten.py:\d+\), and to which no operator wrote"
    assert re.fullmatch(told, found.memory)
    assert f"the first NaN was in {found.memory}; aten::mul passed it on" in str(found)


def test_the_finding_tells_memory_that_is_written_in_part():
    def program():
        memory = garbage(3)
        memory[0] = 1.0
        memory.add_(1)

    (found,) = sentinel_of(program).findings()
    assert (found.kind, found.name) == ("given", "aten::add_")
    assert found.memory.endswith("and to all of which no operator is known to have written")


def test_a_parameter_that_nothing_has_initialized_is_named_with_its_memory():
    def program():
        model = nn.Sequential(nn.Linear(2, 2))
        model[0].weight = nn.Parameter(garbage(2, 2))
        model(torch.ones(1, 2))

    (found,) = sentinel_of(program).findings()
    assert "was in parameter '0.weight', memory that aten::empty allocated (" in str(found)


def test_statistics_and_histograms_count_what_they_left_out():
    statistics, histograms = OpStatistics(), ValueHistograms()
    with amanda.apply(statistics, histograms):
        garbage(3).detach()
    rows = {row.name: (row.calls, row.elements, row.skipped) for row in statistics.rows()}
    assert rows == {"aten::empty": (1, 0, 0), "aten::detach": (1, 0, 1)}
    assert statistics.skipped == histograms.skipped == {"unwritten": 1}
    assert [(row.name, row.elements) for row in histograms.rows()] == [("aten::detach", 0)]


def test_an_expression_about_shapes_has_a_value_where_there_are_no_elements():
    trace = Trace("*: output.numel()", "*: output.shape[0] + outputs[0].dtype.itemsize", "*: output.abs().max()")
    with amanda.apply(trace):
        garbage(3).view(3, 1)
        torch.ones(2)
    values = [(row.expression, row.name, row.last) for row in trace.rows()]
    assert [(name, last) for text, name, last in values if "numel" in text] == [
        ("aten::empty", 3),
        ("aten::view", 3),
        ("aten::ones", 2),
    ]
    assert [last for text, _, last in values if "shape" in text] == [7, 7, 6]
    assert [(name, last) for text, name, last in values if "abs" in text] == [("aten::ones", 1)]
    assert (trace.skipped, trace.errors) == ({"unwritten": 2}, [])
    assert "skipped: 2 unwritten" in trace.table().caption.plain


def test_inputs_that_an_operator_overwrites_are_not_read():
    trace = Trace("*: self.isnan().sum()")
    with amanda.apply(trace):
        garbage(3).uniform_()
        garbage(3).copy_(torch.zeros(3))
    assert [row.name for row in trace.rows() if row.max] == []


def test_watching_raises_no_alarm_of_buffers_that_are_filled_elsewhere():
    net = nn.Linear(64, 4)
    history, optimizer = History(net), torch.optim.SGD(net.parameters(), lr=0.01)
    left_by_others()
    with amanda.scheduled(history, steps=optimizer):
        buffers = [torch.empty(64, 64) for _ in range(3)]
        for buffer in buffers:
            buffer.numpy()[:] = 1.0
            net(buffer).square().mean().backward()
            optimizer.step()
    assert history.alarms == []


def test_memory_is_freed_and_forgotten():
    with amanda.apply(OpStatistics()):
        memory = torch.empty(1000)
        freed = weakref.ref(memory.untyped_storage())
        assert MEMORY.find(memory) is not None
        view = memory[2:]
        del memory
        assert MEMORY.find(view) is not None
        del view
        gc.collect()
        assert freed() is None
        for _ in range(2000):
            torch.empty(1)
        kept = torch.empty(3)
    assert MEMORY.find(kept) is None, "outside of scopes nobody sees who writes"


def test_a_scope_that_is_entered_again_knows_the_operators():
    scope = amanda.apply(OpStatistics())
    for _ in range(2):
        with scope:
            memory = torch.empty(3)
            assert MEMORY.find(memory).place.name == "aten::empty"


def test_an_inner_scope_that_ends_forgets_nothing_of_the_outer_one():
    with amanda.apply(OpStatistics()):
        memory = torch.empty(3)
        with amanda.apply(NaNSentinel()):
            pass
        assert MEMORY.find(memory) is not None


def test_what_is_written_while_tools_are_disabled_counts():
    with amanda.apply(OpStatistics()):
        memory = torch.empty(3)
        with amanda.disabled():
            memory.fill_(1.0)
        assert MEMORY.find(memory) is None


def test_many_pieces_are_written_exactly():
    generator = torch.Generator().manual_seed(0)
    with amanda.apply(OpStatistics()):
        for _ in range(20):
            memory = torch.empty(6, 7)
            written = torch.zeros(6, 7, dtype=torch.bool)
            for _ in range(12):
                a, b, c, d = torch.randint(0, 7, (4,), generator=generator).tolist()
                rows, columns = slice(min(a, b), max(a, b), 1 + c % 3), slice(min(c, d), max(c, d) + 1)
                memory[rows, columns] = 1.0
                written[rows, columns] = True
                for at in (slice(None), b % 6, (slice(None), a % 7)):
                    assert (MEMORY.find(memory[at]) is None) == bool(written[at].all())


def some(size, count, generator):
    return torch.randint(0, size, (count,), generator=generator)


def mask(generator):
    return torch.rand(6, 7, generator=generator) < 0.5


WRITES = {
    "index_put_": lambda x, g: x.index_put_((some(6, 5, g), some(7, 5, g)), torch.ones(5)),
    "a row of index_put_": lambda x, g: x.index_put_((some(6, 2, g),), torch.ones(7)),
    "a column of index_put_": lambda x, g: x.__setitem__((slice(None), some(7, 2, g)), 1.0),
    "a mask": lambda x, g: x.__setitem__(mask(g), 1.0),
    "masked_fill_": lambda x, g: x.masked_fill_(mask(g), 1.0),
    "a mask that is broadcast": lambda x, g: x.masked_fill_(mask(g)[:1], 1.0),
    "masked_scatter_": lambda x, g: x.masked_scatter_(mask(g), torch.ones(42)),
    "index_copy_": lambda x, g: x.index_copy_(1, torch.randperm(7, generator=g)[:4], torch.ones(6, 4)),
    "index_fill_": lambda x, g: x.index_fill_(0, some(6, 3, g), 1.0),
    "scatter_": lambda x, g: x.scatter_(1, some(7, 12, g).view(6, 2), torch.ones(6, 2)),
    "scatter_ of a number": lambda x, g: x.scatter_(0, some(6, 7, g).view(1, 7), 1.0),
    "put_": lambda x, g: x.put_(some(42, 20, g), torch.ones(20)),
    "fill_diagonal_": lambda x, g: x.fill_diagonal_(1.0),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("layout", ["whole", "transposed", "part"])
def test_writes_by_indices_are_followed_element_by_element(name, layout):
    """The oracle is the same write to NaNs."""
    views = {
        "whole": lambda x: x.view(6, 7),
        "transposed": lambda x: x.view(7, 6).t(),
        "part": lambda x: x[1:43].view(6, 7),
    }
    with amanda.apply(OpStatistics()):
        for row in range(5):
            seed, storage, written = row, torch.empty(42 + (layout == "part")), torch.full((6, 7), torch.nan)
            memory = views[layout](storage)
            for _ in range(3):
                generator = torch.Generator().manual_seed(seed)
                WRITES[name](memory, generator)
                WRITES[name](written, generator.manual_seed(seed))
                for at in (slice(None), 0, row, (slice(None), row), (5, 6)):
                    has_values = not bool(written[at].isnan().any())
                    assert (MEMORY.find(memory[at]) is None) == has_values, at
                    assert has_values or MEMORY.find(memory[at]).in_part
                seed += 7


@each_reader
def test_a_nan_that_is_written_by_indices_is_one(nans):
    values = torch.full((4, 3), torch.nan)

    def program():
        memory = garbage(4, 3)
        memory[torch.arange(4)] = values
        torch.relu(memory.view(-1))

    assert nans(program) & {"aten::relu", "aten::index_put_"}


@each_reader
def test_what_is_added_to_memory_without_values_gives_it_none(nans):
    def program():
        memory, other = garbage(3), garbage(3)
        every = torch.arange(3)
        memory.index_put_((every,), torch.ones(3), accumulate=True)
        memory.view(-1)
        other.index_copy_(0, every, garbage(3))
        other.view(-1)

    assert nans(program) == set()


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_masks_of_bytes_and_indices_that_are_none():
    with amanda.apply(OpStatistics()):
        memory = torch.empty(2, 3)
        memory[torch.tensor([1, 0], dtype=torch.uint8)] = torch.ones(1, 3)
        assert MEMORY.find(memory[0]) is None
        assert MEMORY.find(memory[1]) is not None
        memory[:, torch.arange(3)] = 1.0
        assert MEMORY.find(memory) is None


def test_marks_are_made_in_no_mode_of_the_program():
    with amanda.apply(OpStatistics()), torch.device("meta"):
        memory = torch.empty(3, device="cpu")
        every = torch.arange(3, device="cpu")
        memory[every] = torch.ones(3, device="cpu")
        assert MEMORY.find(memory) is None


@each_reader
def test_memory_of_another_producer_has_values(nans):
    def program():
        torch.relu(torch.from_dlpack(numpy.array([numpy.nan, 1.0])))

    assert "aten::relu" in nans(program)


def test_memory_of_another_producer_in_the_place_of_memory_without_values_has_values():
    with amanda.apply(OpStatistics()):
        for _ in range(50):
            memory = torch.empty(64)
            assert MEMORY.find(memory) is not None
            del memory
            assert MEMORY.find(torch.from_dlpack(numpy.ones(64))) is None
            assert MEMORY.find(torch.frombuffer(bytearray(256), dtype=torch.float32)) is None


def test_threads_may_write_and_read_it():
    errors = []

    def work():
        try:
            with amanda.apply(OpStatistics()):
                for i in range(200):
                    memory = torch.empty(4)
                    memory[: i % 4].fill_(1.0)
                    assert MEMORY.find(memory) is not None
                    memory.zero_()
                    assert MEMORY.find(memory) is None
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
