"""PeakMemory(growth=True): planted leaks, each beside a program without it, and a count by other means."""

import ctypes
import gc
import inspect
import re
import sys
import weakref

import amanda
import leak_runs
import pytest
import torch
from amanda.tools.memory import PeakMemory, samples
from amanda.tools.memory.holders import variables

F32 = 4
OWNERS = {
    "arrays": ("tensor", r"predictions\[\*\] \(global of arrays.py\)", 9),
    "buffers": ("buffer", r"buffer net.bank \(global of buffers.py\)", 16),
    "caches": ("tensor", r"results\[\*\] \(of the lru_cache weights, global of caches.py\)", 11),
    "closures": (
        "tensor",
        r"value \(closure of reporter.<lambda>\(\), closures.py:9, that is reports\[\*\], local of",
        17,
    ),
    "contexts": ("tensor", r"nodes\[\*\].unused \(global of contexts.py\)", 10),
    "copies": ("parameter", r"parameters of trainer.averages\[\*\] \(global of copies.py\)", 20),
    "cycles": ("tensor", r"Record.output \(in a reference cycle that Python has not collected yet\)", 16),
    "dicts": ("tensor", r"Encoder.seen\['step \*'\] \(global of dicts.py\)", 16),
    "exceptions": (
        "tensor",
        r"\w+ \(local of check\(\), exceptions.py:7, in the traceback of errors\[\*\], global",
        17,
    ),
    "hooks": (
        "tensor",
        r"activations\[\*\] \(closure of watch.keep\(\), hooks.py:10, a forward hook of net.1, glo",
        23,
    ),
    "losses": ("saved activation", r"the graph of history\[\*\] \(global of losses.py\)", 11),
    "nodehooks": ("tensor", r"kept\[\*\] \(local of train\(\), nodehooks.py:11\)", 16),
    "optimizers": ("optimizer state", r"state of optimizers\[\*\], Adam \(global of optimizers.py\)", 13),
    "outputs": ("tensor", r"outputs\[\*\] \(local of evaluate\(\), outputs.py:7\)", 11),
    "prefetch": ("tensor", r"waiting\[\*\] \(local of prefetched\(\), prefetch.py:9\)", "(?:12|14)"),
    "retained": ("saved activation", r"the graph of state \(global of retained.py\)", 12),
    "views": ("tensor", r"first\[\*\] \(global of views.py\)", 9),
}
"""For each program: kind, owner, and the line that makes most of what it keeps."""


@pytest.mark.parametrize("name", OWNERS)
def test_a_planted_leak_has_its_owner_and_line(name):
    kind, owner, line = OWNERS[name]
    growth = leak_runs.found()[name]
    known = [row for row in growth.rows if row.kind == kind and re.match(owner, row.kept_by)]
    assert sum(row.share for row in known) > 0.95, growth.answer
    assert re.search(rf"{name}.py:{line}$", known[0].user_line)
    first = growth.answer.splitlines()[0]
    assert re.match(r"memory in use grows by [\d.]+ KB per (step of \w+|call of \w+), .* kept by ", first)
    assert re.search(rf"{owner}.*, made at \S*{name}.py:{line}", first)


@pytest.mark.parametrize("name", OWNERS)
def test_it_grows_as_much_as_all_tensors_that_exist(name):
    growth = leak_runs.found()[name]
    by_count = (growth.held[-1] - growth.held[3]) / (len(growth.held) - 4)
    assert growth.bytes_per_step == pytest.approx(by_count, rel=0.02)


@pytest.mark.parametrize("name", OWNERS)
def test_nothing_grows_without_the_leak(name):
    answer = leak_runs.found()[name].right_answer
    assert re.match(r"no memory was found to grow|memory in use hardly grows: 4 B per", answer), answer
    assert re.search(r"looked at: the owners of \d+ blocks? that operators have made since the first step$", answer)


def test_each_program_is_here():
    assert {program.stem for program in leak_runs.PROGRAMS} == set(OWNERS) == set(leak_runs.found())


def test_tuples_that_c_code_has_not_filled_yet():
    """Python's own iterator crashes on them; the garbage collector lists them."""
    new = ctypes.pythonapi.PyTuple_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_ssize_t]
    unfilled = [new(2)]
    (program,) = [one for one in leak_runs.PROGRAMS if one.stem == "cycles"]
    assert leak_runs.growth_of(program, leak=True).rows()
    unfilled.clear()


def grown(run, **options):
    memory = PeakMemory(growth=True, **options)
    with amanda.apply(memory):
        run()
    return memory.growth


def forward(steps, keep):
    net = torch.nn.Linear(64, 128)
    for step in range(steps):
        keep(step, net(torch.randn(32, 64)).detach())


def test_too_few_steps_are_no_answer():
    growth = grown(lambda: None)
    assert growth.answer() == (
        "whether memory grows is not known: no optimizer has stepped, and no module with parameters was called"
    )
    kept = []
    growth = grown(lambda: forward(4, lambda step, output: kept.append(output)))
    assert growth.answer() == "whether memory grows is not known: 4 steps have to end, here call of Linear, and 3 have"
    assert growth.rows() == []


def test_an_error_in_the_middle_leaves_the_answer_so_far():
    def run():
        kept = []

        def keep(step, output):
            kept.append(output)
            if step == 8:
                torch.empty(1 << 50)

        forward(100, keep)

    memory = PeakMemory(growth=True)
    with pytest.raises(RuntimeError, match="allocate"), amanda.apply(memory):
        run()
    assert memory.growth.answer().startswith(
        "memory in use grows by 16.4 KB per call of Linear, all of it kept by kept[*]"
    )
    assert "after the 6th of 8" in memory.growth.answer()
    assert memory.at_error is not None


def test_one_time_memory_and_windows_do_not_grow():
    window, once = {}, []

    def keep(step, output):
        window[step % 3] = output
        if step in (5, 11):
            once.append(output)

    assert grown(lambda: forward(14, keep)).answer().startswith("no memory was found to grow")


def concatenated(steps):
    net, all_of_it = torch.nn.Linear(64, 128), torch.empty(0, 128)
    for _ in range(steps):
        all_of_it = torch.cat([all_of_it, net(torch.randn(32, 64)).detach()])


@pytest.mark.parametrize("seconds", [0.0, samples.FREE])
def test_a_block_that_becomes_larger_is_found_however_long_a_search_takes(monkeypatch, seconds):
    monkeypatch.setattr(samples, "FREE", seconds)
    monkeypatch.setattr(samples, "SHARE", 0.0)
    answer = grown(lambda: concatenated(14)).answer()
    assert answer.startswith(
        "memory in use grows by 16.4 KB per call of Linear, all of it kept by all_of_it (local of "
    )


def test_what_grows_is_not_known_after_few_searches():
    assert (
        grown(lambda: concatenated(5))
        .answer()
        .startswith(
            "more memory is in use from call of Linear to call of Linear, and what grows is not known: blocks that become "
            "larger are found by 5 searches, and 3 were made\nin use: "
        )
    )


def test_batches_of_any_length_do_not_grow():
    lengths = [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 18, 19, 30]
    net = torch.nn.Linear(64, 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def run():
        for length in lengths[:4] + lengths[:2] + lengths[:4]:
            batch = torch.randn(32 * length, 64)
            loss = net(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert grown(run).answer().startswith("no memory was found to grow")


def test_accumulation_and_two_optimizers_count_the_steps_of_the_first():
    first, second, kept = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), []
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (first, second)]

    def run():
        for _ in range(6):
            for _ in range(4):
                output = second(first(torch.randn(32, 64)))
                output.square().mean().backward()
            kept.append(output.detach())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    growth = grown(run)
    assert (growth.steps, growth.step) == (6, "step of SGD")
    (row,) = growth.rows()
    assert (row.bytes_per_step, row.blocks_per_step) == (32 * 64 * F32, 1)


def test_results_are_bit_equal_and_objects_die_as_before():
    died = []

    class Kept:
        def __del__(self):
            died.append(len(seen))

    seen = []

    def train():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(10):
            thing = Kept()
            loss = net(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
            del thing
        return [parameter.detach().clone() for parameter in net.parameters()]

    alone, order = train(), list(died)
    died.clear()
    seen.clear()
    results = []
    grown(lambda: results.extend(train()))
    assert all(torch.equal(one, other) for one, other in zip(alone, results, strict=True))
    assert died == order == list(range(1, 11))


def test_variables_that_the_program_reads_by_name_stay_as_they_are():
    net = torch.nn.Linear(4, 4)

    def run(limit):
        before = locals()
        for _ in range(limit):
            y = net(torch.ones(1, 4))
        return before, y

    found = []
    grown(lambda: found.append(run(6)))
    assert list(found[0][0]) == ["limit", "net"]  # without `before` and `y`


def evaluates(net, kept):
    net.eval()
    for _ in range(8):
        kept.append(net(torch.ones(8, 4)).detach())
    return torch.stack(kept)


def inspects(net, kept):
    frame = inspect.currentframe()
    for _ in range(8):
        kept.append(net(torch.ones(8, 4)).detach())
    return len(inspect.stack()), frame.f_lineno


@pytest.mark.parametrize(
    ("run", "owner"), [(evaluates, r"kept\[\*\] \(local of evaluates\(\)"), (inspects, r"(?!.*inspects\(\))")]
)
def test_methods_that_have_the_name_of_a_builtin_are_no_reading_of_variables(run, owner):
    (row,) = grown(lambda: run(torch.nn.Linear(4, 16), [])).rows()
    assert re.match(owner, row.kept_by), row.kept_by


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("net.eval(); torch.stack(x); pool.exec(x)", False),
        ("eval('x')", True),
        ("builtins.eval('x')", True),
        ("locals()", True),
        ("sys._getframe()", True),
        ("inspect.stack()", True),
        ("stack()", True),
        ("dir", True),
    ],
)
def test_functions_that_may_read_their_variables(text, uses):
    names = {}
    exec(f"def f():\n    {text}", names)
    assert variables._uses_locals(names["f"].__code__) is uses


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="f_locals is a view there")
def test_no_variable_lives_longer_in_the_dict_of_a_frame():
    class Kept:
        def __del__(self):
            died.append(True)

    died, at = [], []
    net = torch.nn.Linear(4, 4)

    def run():
        thing = Kept()
        for _ in range(5):
            net(torch.ones(1, 4))
        del thing
        at.append(list(died))

    grown(run)
    assert at == [[True]]


@pytest.mark.long
def test_no_frame_lives_longer():
    class Seen:
        pass

    alive = []

    class Looking(torch.nn.Linear):
        def forward(self, x):
            here = Seen()
            alive.append(weakref.ref(here))
            return super().forward(x)

    gc.disable()
    try:
        net = Looking(4, 4)
        grown(lambda: [net(torch.ones(1, 4)) for _ in range(6)])
        assert not any(one() for one in alive)
    finally:
        gc.enable()


def test_the_collector_does_not_run_for_the_search():
    class Cycle:
        def __init__(self):
            self.itself = self

    generations = gc.get_stats()[2]["collections"]
    gc.disable()
    try:
        Cycle()
        forward_growth = grown(lambda: forward(6, lambda step, output: None))
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert forward_growth.steps == 5
    assert gc.get_stats()[2]["collections"] == generations


class Renaming(torch.nn.Module):
    """Its own methods and properties are not called."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.kept = []

    def __getattr__(self, name):
        if name == "surprise":
            raise AssertionError("asked")
        return super().__getattr__(name)

    def named_parameters(self, *arguments, **options):
        raise AssertionError("asked")

    def forward(self, x):
        output = self.linear(x)
        self.kept.append(output)
        return output


class Tracked(torch.Tensor):
    asked = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.asked.append(function)
        return super().__torch_function__(function, types, arguments, options or {})


def test_objects_of_the_program_are_not_asked():
    net, kept = Renaming(), []

    def run():
        for _ in range(6):
            net(torch.randn(32, 64))
            kept.append(torch.zeros(16, 64).as_subclass(Tracked))
        Tracked.asked.clear()

    with torch.no_grad():
        memory = PeakMemory(growth=True)
        with amanda.apply(memory):
            run()
    owners = {row.kept_by for row in memory.growth.rows()}
    where = "local of test_objects_of_the_program_are_not_asked(), "
    assert any(owner.startswith("net.kept[*] (") for owner in owners), owners
    assert any(owner.startswith("kept[*] (") and where in owner for owner in owners), owners


def test_chains_of_objects_are_named_once():
    class Node:
        def __init__(self, value, before):
            self.value, self.before = value, before

    def run():
        chain = None

        def keep(step, output):
            nonlocal chain
            chain = Node(output, chain)

        forward(10, keep)

    growth = grown(run)
    assert sum(row.share for row in growth.rows() if "chain" in row.kept_by and ".value" in row.kept_by) > 0.95


def test_calls_of_a_module_are_counted_once_each():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRUCell(4, 4)

        def forward(self, x):
            for _ in range(3):
                x = self.cell(x, x)
            return x

    def run():
        net = Twice()
        with torch.no_grad():
            for _ in range(7):
                net(torch.ones(2, 4))

    growth = grown(run)
    assert (growth.step, growth.steps) == ("call of Twice", 6)


def test_reset_forgets_and_begins_anew():
    memory, kept = PeakMemory(growth=True), []
    with amanda.apply(memory):
        forward(8, lambda step, output: kept.append(output))
    assert memory.growth.rows()
    memory.reset()
    assert memory.growth.rows() == []
    assert memory.growth.steps == 0


def test_without_growth_there_is_none():
    memory = PeakMemory()
    with amanda.apply(memory):
        forward(5, lambda step, output: None)
    assert memory.growth is None
    assert "grows by" not in memory.answer()
