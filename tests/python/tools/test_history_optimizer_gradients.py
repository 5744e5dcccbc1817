"""What optimizers get: the norms that History reads, and the histograms, against `.grad` and numpy."""

import amanda
import numpy
import pandas
import pytest
import torch
from amanda.toolkit.arrays import of_numpy, of_torch
from amanda.tools.history import History
from amanda.tools.history.parameter_histograms import EDGES, Counted, counted
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

NAME = "optimizer_gradient_norm"


def made(kind=torch.optim.SGD, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return net, kind(net.parameters(), lr=0.01, **options)


def loss_of(net, step, part=0):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(10 * step + part))
    return net(x).square().mean() * 10


def norms(net):
    return {name: each.grad.double().norm().item() for name, each in net.named_parameters()}


def found(history, quantity=NAME):
    steps = {}
    for row in history.rows("step"):
        if row.tool == "parameters" and row.quantity == quantity:
            steps.setdefault(row.step, {})[row.name] = row.value
    return steps


def total(history, name=NAME):
    return {row.step: row.value for row in history.rows("step") if row.tool == "scalars" and row.name == name}


def assert_equal(history, expected):
    seen = found(history)
    assert list(seen) == list(expected)
    for step, of_step in expected.items():
        assert seen[step] == pytest.approx(of_step, rel=1e-6)
        assert total(history)[step] == pytest.approx(sum(norm**2 for norm in of_step.values()) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_after_clipping_and_accumulation(kind):
    net, optimizer = made(kind)
    history, expected = History(net), {}
    with amanda.scheduled(history) as run:
        for step in range(3):
            for part in range(2):
                loss_of(net, step, part).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            expected[step] = norms(net)
            optimizer.step()
            optimizer.zero_grad()
            run.step()
    assert_equal(history, expected)
    assert total(history)[0] == pytest.approx(0.1, rel=1e-3)
    assert total(history, "gradient_norm")[0] > 1  # the mean of the two passes, as it flows
    assert "norm of all gradients as optimizers get them: from 0.1 to 0.1 in 3 steps" in history.answer()


def test_without_clipping_the_answer_says_it_once():
    net, optimizer = made()
    history = History(net)
    with amanda.scheduled(history, steps=optimizer):
        for step in range(3):
            loss_of(net, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert total(history) == pytest.approx(total(history, "gradient_norm"), rel=1e-6)
    assert "as optimizers get them" not in history.answer()


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
@pytest.mark.parametrize("unscales", [True, False])
def test_under_a_grad_scaler(options, unscales):
    """A fused optimizer unscales by itself, unless the program did."""
    net, optimizer = made(torch.optim.AdamW, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    history, expected = History(net), {}
    with amanda.scheduled(history) as run:
        for step in range(3):
            scaler.scale(loss_of(net, step)).backward()
            scale = scaler.get_scale()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                scale = 1
            expected[step] = {name: norm / scale for name, norm in norms(net).items()}
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.step()
    assert_equal(history, expected)


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
def test_a_step_that_the_scaler_skips_has_none(options):
    net, optimizer = made(torch.optim.AdamW, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    history = History(net, limits=None)
    with amanda.scheduled(history) as run:
        for step in range(3):
            loss = scaler.scale(loss_of(net, step))
            (loss * float("inf") if step == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.step()
    assert sorted(found(history)) == sorted(total(history)) == [0, 2]


def test_of_two_optimizers_and_of_parameters_that_are_not_watched():
    net, _ = made()
    first, second = torch.optim.SGD(net[0].parameters(), 0.1), torch.optim.Adam(net[2].parameters(), 0.1)
    history = History()
    with amanda.scheduled(history) as run:
        loss_of(net, 0).backward()
        expected = {0: norms(net)}
        first.step()
        second.step()
        run.step()
    assert_equal(history, expected)


@pytest.mark.parametrize("counts", ["run.step()", "the optimizer", "all optimizers"])
def test_gradients_that_a_closure_computes(counts):
    """As Lightning has them."""
    from torch.optim.optimizer import register_optimizer_step_post_hook as every

    net, optimizer = made(torch.optim.AdamW)
    history, expected = History(net), {}
    steps = {"the optimizer": optimizer, "all optimizers": every}.get(counts)
    with amanda.scheduled(history, steps=steps) as run:
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                expected[step] = norms(net)
                return loss

            optimizer.step(closure)
            if steps is None:
                run.step()
    assert_equal(history, expected)


def test_an_optimizer_that_calls_its_closure_several_times():
    net, _ = made()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    history, expected = History(net), {}
    with amanda.scheduled(history) as run:

        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, 0)
            loss.backward()
            expected[0] = norms(net)
            return loss

        optimizer.step(closure=closure)
        run.step()
    assert_equal(history, expected)


def test_steps_that_are_not_observed_have_no_hook():
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    net, optimizer = made()
    known, seen = len(hooks), []
    history = History(net)
    with amanda.scheduled(history, schedule=amanda.Schedule(every=2)) as run:
        for step in range(4):
            seen.append(len(hooks) - known)
            loss_of(net, step).backward()
            optimizer.step()
            run.step()
    assert (seen, len(hooks) - known) == ([1, 0, 1, 0], 0)


def test_training_is_bit_equal():
    def train(history=None):
        net, optimizer = made(torch.optim.AdamW)
        for step in range(3):
            loss_of(net, step).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            if history is not None:
                history.step()
        return [each.detach().clone() for each in net.parameters()]

    expected = train()
    with amanda.scheduled(History(histograms=True)) as run:
        assert all(map(torch.equal, train(run), expected))


# ---- histograms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrays", [of_numpy, of_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_counts_are_those_of_numpy(arrays, dtype):
    generator = numpy.random.default_rng(0)
    values = (generator.standard_normal(2000) * 10.0 ** generator.integers(-30, 4, 2000)).astype(dtype)
    values[:40] = [0.0, -0.0, 1.0, -1.0, 2.0**-64, -(2.0**-64), 1.25, 1.75, numpy.nan, numpy.inf] * 4
    given = values if arrays is of_numpy else torch.from_numpy(values)
    found = counted(given, arrays)
    finite = values[numpy.isfinite(values)].astype("float64")
    # numpy closes bins on the left: on the side of zero for positive values, so negative ones are counted mirrored
    positive = numpy.histogram(finite[finite > 0], EDGES)[0]
    negative = numpy.histogram(-finite[finite < 0], EDGES)[0][::-1]
    expected = positive + negative
    expected[len(expected) // 2] += int((finite == 0).sum())
    assert list(found.bins) == expected.tolist()
    assert (found.nonfinite, sum(found.bins)) == (len(values) - len(finite), len(finite))
    assert (found.lowest, found.highest) == (finite.min(), finite.max())
    assert (found.total, found.squares) == pytest.approx((finite.sum(), (finite**2).sum()))


def test_the_shape_of_a_histogram():
    one = counted(torch.tensor([-1.0, 0.5, 0.5, 0.7, float("nan")]), of_torch).histogram("w", "updates")
    assert len(one.edges) == len(one.counts) + 1
    assert (one.edges[0], one.edges[1], one.edges[-2], one.edges[-1]) == (-1.25, -1.0, 0.625, 0.75)
    assert (one.counts[0], one.counts[-2:], sum(one.counts), one.nonfinite) == (1, (2, 1), 4, 1)
    empty = Counted().histogram("w", "updates")
    assert (empty.counts, len(empty.edges)) == ((0,), 2)


def test_sums_of_counts():
    parts = [torch.randn(50), torch.zeros(0), torch.tensor([float("inf")]), torch.randn(30) * 100]
    whole = Counted()
    for part in parts:
        whole.add(counted(part, of_torch))
    expected = counted(torch.cat(parts), of_torch)
    assert (whole.bins, whole.nonfinite) == (expected.bins, expected.nonfinite)
    assert (whole.lowest, whole.highest) == (expected.lowest, expected.highest)
    assert (whole.total, whole.squares) == pytest.approx((expected.total, expected.squares))


def trained(history, clip=0.1):
    net, optimizer = made()
    history.watch(net)
    gradients, updates = [], []
    with amanda.scheduled(history) as run:
        for step in range(3):
            before = {name: each.detach().clone() for name, each in net.named_parameters()}
            loss_of(net, step).backward()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            gradients.append({name: each.grad.clone() for name, each in net.named_parameters()})
            optimizer.step()
            optimizer.zero_grad()
            updates.append({name: each.detach() - before[name] for name, each in net.named_parameters()})
            run.step()
    return gradients, updates


def test_files_have_histograms_of_gradients_and_updates(tmp_path):
    history = History(parquet=tmp_path / "p", tensorboard=tmp_path / "t", histograms=True)
    gradients, updates = trained(history)
    frame = pandas.read_parquet(tmp_path / "p" / "histograms")
    reader = EventAccumulator(str(tmp_path / "t"), size_guidance={"histograms": 0})
    reader.Reload()
    for quantity, steps in (("gradients", gradients), ("updates", updates)):
        for name, tensor in steps[0].items():
            assert len(frame[(frame["name"] == name) & (frame["quantity"] == quantity)]) == 3
            row = frame[(frame["name"] == name) & (frame["quantity"] == quantity) & (frame["step"] == 0)].iloc[0]
            magnitudes = numpy.histogram(tensor.abs().double().numpy(), numpy.abs(row["edges"][row["edges"] > 0]))[0]
            assert row["counts"].sum() == tensor.numel()
            assert magnitudes.sum() <= tensor.numel()
            assert (row["min"], row["max"]) == (tensor.min().item(), tensor.max().item())
            assert row["sum"] == pytest.approx(tensor.double().sum().item())
            first, *_ = reader.Histograms(f"parameters.{quantity}/{name}")
            value = first.histogram_value
            assert (value.num, value.min, value.max) == (tensor.numel(), tensor.min().item(), tensor.max().item())
            assert value.sum_squares == pytest.approx(tensor.double().square().sum().item())
            assert list(value.bucket) == [0, *row["counts"]]
            assert list(value.bucket_limit) == list(row["edges"])
    last = history.histograms()
    assert {(one.name, one.quantity) for one in last} == {
        (n, q) for n in gradients[0] for q in ("gradients", "updates")
    }
    assert sum(one.sum for one in last if one.quantity == "gradients") == pytest.approx(
        sum(each.double().sum().item() for each in gradients[2].values())
    )


def test_without_the_option_there_are_none(tmp_path):
    history = History(parquet=tmp_path / "p")
    trained(history)
    assert history.histograms() == []
    assert not (tmp_path / "p" / "histograms").exists()


def test_reset():
    history = History(histograms=True)
    trained(history)
    assert history.histograms()
    history.reset()
    assert history.histograms() == []
