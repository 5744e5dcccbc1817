"""GradientStatistics: its norms against those of hooks, put on tensors and on every autograd node by hand."""

import collections
import copy
import gc
import math
import re
import sys
import threading
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.gradients import GradientStatistics
from torch.utils.checkpoint import checkpoint


def norm(tensor):
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).item()


def _name(node):
    return node.name().rpartition("::")[2]  # "torch::autograd::AccumulateGrad"


class Hooked:
    """Hooks on every node of a graph: the norms on both sides, by the node's name."""

    def __init__(self):
        self.norms = collections.defaultdict(list)
        self.handles = []

    def hook(self, output):
        known, open_ = set(), [output.grad_fn]
        while open_:
            node = open_.pop()
            if node is None or node in known:
                continue
            known.add(node)
            open_ += [following for following, _ in node.next_functions]
            self.handles.append(node.register_prehook(self._record("grad_output", _name(node))))
            if node.next_functions:
                self.handles.append(node.register_hook(self._after(_name(node))))

    def _record(self, side, name):
        def record(gradients):
            for position, gradient in enumerate(gradients):
                self.norms[name, side, position].append(None if gradient is None else norm(gradient))

        return record

    def _after(self, name):
        record = self._record("grad_input", name)
        return lambda grad_inputs, grad_outputs: record(grad_inputs)

    def remove(self):
        for handle in self.handles:  # AccumulateGrad lives on from step to step
            handle.remove()
        self.handles.clear()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.qkv = torch.nn.Linear(8, 24)
        self.norm = torch.nn.LayerNorm(8)
        self.out = torch.nn.Linear(8, 3, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        attended = F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))
        return self.out(F.gelu(self.norm(x + attended))).clone().relu_()


class Convolutional(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten())

    def forward(self, tokens):
        return super().forward(tokens.double().float().sin()[:, None].expand(-1, 5, -1)[:, None])


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.RNN(1, 4, 2)

    def forward(self, tokens):
        return self.rnn(tokens.float()[..., None])[0]


def run(model, steps=3, watch=lambda loss: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randint(0, 10, (2, 5), generator=generator)).square().mean()
        end = watch(loss)
        loss.backward()
        if end:
            end()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
    return found + list(model.parameters())


@pytest.mark.parametrize("make_model", [Block, Convolutional, Recurrent])
def test_the_norms_are_those_of_hooks_on_every_node(make_model):
    model, hooked = make_model(), Hooked()
    twin = copy.deepcopy(model)

    def watch(loss):
        hooked.hook(loss)
        return hooked.remove

    expected = run(twin, watch=watch)
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        found = run(model)
    assert all(map(torch.equal, found, expected))
    # Nodes of one name, in some order: sums and extremes of all of them.
    by_name = collections.defaultdict(list)
    for row in gradients.rows():
        by_name[row.backward_op, row.side, row.position].append(row)
    assert set(by_name) == set(hooked.norms)
    for key, rows in by_name.items():
        norms = hooked.norms[key]
        defined = [norm for norm in norms if norm is not None]
        assert sum(row.calls for row in rows) == len(norms)
        assert sum(row.undefined for row in rows) == len(norms) - len(defined)
        for value in {row.max for row in rows} | {row.min for row in rows} | {row.last for row in rows}:
            assert value is None or any(value == nearly(norm) for norm in defined)
        if defined:
            assert max(row.max for row in rows if row.max is not None) == nearly(max(defined))
            assert min(row.min for row in rows if row.min is not None) == nearly(min(defined))
            total = sum(row.mean * (row.calls - row.undefined) for row in rows if row.mean is not None)
            assert total == pytest.approx(sum(defined), rel=1e-12)


def nearly(expected):
    """But for the order in which a sum was computed."""
    return pytest.approx(expected, rel=1e-13, abs=0)


def test_each_operators_gradients_are_those_that_tensor_hooks_see():
    seen, model = collections.defaultdict(list), Block()
    w, gradients = torch.nn.Parameter(torch.randn(4, 6)), GradientStatistics()
    with amanda.apply(gradients):
        for _ in range(3):
            x = torch.randn(5, 6, requires_grad=True) * 1
            y = F.linear(x, w)
            z = torch.tanh(y)
            for name, tensor in {"x": x, "y": y, "z": z, "w": w}.items():
                tensor.register_hook(lambda gradient, name=name: seen[name].append(norm(gradient)))
            z.square().sum().backward()
            w._backward_hooks.clear()
    del model
    rows = {(row.name, row.backward_op, row.side, row.position): row for row in gradients.rows()}
    for key, name in {
        ("aten::tanh", "TanhBackward0", "grad_output", 0): "z",
        ("aten::tanh", "TanhBackward0", "grad_input", 0): "y",
        ("aten::linear", "MmBackward0", "grad_output", 0): "y",
        ("aten::linear", "MmBackward0", "grad_input", 0): "x",
        ("aten::linear", "TBackward0", "grad_input", 0): "w",
        ("aten::linear", "AccumulateGrad", "grad_output", 0): "w",
    }.items():
        row, norms = rows[key], seen[name]
        assert (row.calls, row.undefined, row.nonfinite) == (3, 0, 0)
        assert [row.last, row.min, row.max] == nearly([norms[-1], min(norms), max(norms)])
        assert row.mean == nearly(sum(norms) / 3)
    assert not any(row.backward_op == "AccumulateGrad" and row.side == "grad_input" for row in rows.values())


def test_each_module_and_parameter_has_its_rows():
    model, gradients = Block(), GradientStatistics()
    with amanda.apply(gradients):
        run(model, steps=1)
    accumulated = [row for row in gradients.rows() if row.backward_op == "AccumulateGrad"]
    assert sorted(row.last for row in accumulated) == nearly(sorted(norm(p.grad) for p in model.parameters()))
    assert {row.module_path for row in accumulated} == {"embedding", "qkv", "norm", "out"}
    assert {row.name for row in accumulated if row.module_path == "qkv"} == {"aten::linear"}


def test_undefined_gradients_are_counted():
    x, w = torch.randn(3, 4), torch.nn.Parameter(torch.randn(2, 4))
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        F.linear(x, w).sum().backward()
    (row,) = (
        row
        for row in gradients.rows()
        if row.backward_op == "MmBackward0" and row.position == 0 and row.side == "grad_input"
    )
    assert (row.calls, row.undefined, row.last, row.mean) == (1, 1, None, None)


def test_norms_that_are_not_finite_are_counted_and_left_out():
    w, gradients = torch.nn.Parameter(torch.ones(2)), GradientStatistics()
    with amanda.apply(gradients):
        for factor in (1.0, math.nan, math.inf, 2.0, math.nan):
            (w * torch.full((2,), factor)).backward(torch.ones(2))
    row = next(row for row in gradients.rows() if row.backward_op == "MulBackward0" and row.side == "grad_input")
    assert (row.calls, row.nonfinite, row.min, row.max) == (5, 3, math.sqrt(2), math.sqrt(8))
    assert row.mean == pytest.approx((math.sqrt(2) + math.sqrt(8)) / 2)
    assert math.isnan(row.last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_norms_of_other_dtypes(dtype):
    w, gradients = torch.nn.Parameter(torch.ones(2, dtype=dtype)), GradientStatistics()
    with amanda.apply(gradients):
        (w * 1).backward(torch.full((2,), 30000.0, dtype=dtype))  # their squares overflow float16
    rows = [row for row in gradients.rows() if row.backward_op == "AccumulateGrad"]
    assert [row.last for row in rows] == [pytest.approx(30000 * math.sqrt(2), rel=1e-2)]


def test_sparse_gradients_have_their_calls_counted():
    embedding, gradients = torch.nn.Embedding(10, 4, sparse=True), GradientStatistics()
    with amanda.apply(gradients):
        embedding(torch.tensor([1, 2])).sum().backward()
    (row,) = (row for row in gradients.rows() if row.backward_op == "AccumulateGrad")
    assert (row.calls, row.undefined, row.last) == (1, 0, None)


def test_retained_graphs_and_partial_passes_are_counted_as_they_run():
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in "ab")
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        loss = (a.exp() + b.sin()).sum()
        torch.autograd.grad(loss, a, retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    calls = {row.backward_op: row.calls for row in gradients.rows() if row.side == "grad_output"}
    assert calls == {"SumBackward0": 3, "AddBackward0": 3, "ExpBackward0": 3, "SinBackward0": 2, "AccumulateGrad": 2}


def test_several_threads_lose_no_run():
    gradients, layer, x = GradientStatistics(), torch.nn.Linear(4, 4), torch.ones(2, 4)

    def work():
        with amanda.apply(gradients):
            for _ in range(50):
                torch.autograd.grad(layer(x).sum(), layer.weight)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = gradients.rows()
    assert {row.backward_op for row in rows} == {"SumBackward0", "AddmmBackward0", "TBackward0"}
    assert {row.calls for row in rows} == {200}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_training_run_is_bit_equal_under_it(use_reentrant):
    class Checkpointed(Block):
        def forward(self, tokens):
            x = self.embedding(tokens)
            return checkpoint(super().forward, tokens, use_reentrant=False) + checkpoint(
                self.norm, x, use_reentrant=use_reentrant
            ).mean(-1, keepdim=True)

    model = Checkpointed()
    expected = run(copy.deepcopy(model))
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        found = run(model)
    assert all(map(torch.equal, found, expected))
    assert {row.calls for row in gradients.rows() if row.name == "aten::gelu"} == {3}


def test_no_gradient_is_kept_alive():
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            result = gradient * 2
            gone.append(weakref.ref(result))
            return result

    gone, w = [], torch.nn.Parameter(torch.ones(2))
    with amanda.apply(GradientStatistics()):
        Kept.apply(w * 1).sum().backward()
        gc.collect()
        assert [ref() for ref in gone] == [None]


# ---- pandas ----------------------------------------------------------------------------------------------------------


def test_the_table_has_the_rows():
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        run(Block(), steps=2)
    table, rows = gradients.to_pandas(), gradients.rows()
    assert len(table) == len(rows) > 30
    for column in ("op_id", "backward_op_id", "name", "backward_op", "side", "position", "calls", "undefined"):
        assert table[column].tolist() == [getattr(row, column) for row in rows]
    assert table["mean"].isna().tolist() == [row.mean is None for row in rows]
    assert table["op_id"].dtype == table["backward_op_id"].dtype == "uint64"
    assert GradientStatistics().to_pandas().empty


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"\[gradients\] to_pandas needs pandas: pip install 'amanda-nn\[files\]'"):
        GradientStatistics().to_pandas()


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_finds_the_gradient_that_vanishes(run_example):
    printed = run_example("vanishing_gradients.py")
    shares = re.findall(
        r"^(Sigmoid|ReLU): the first layer's gradient is (\S+) of the last one's$", printed, re.MULTILINE
    )
    ((_, sigmoid), (_, relu)) = shares
    assert float(sigmoid) < 1e-5 < 1e-3 < float(relu)
    assert len(printed.splitlines()) == 2 * 11


# ---- GradScaler ------------------------------------------------------------------------------------------------------


def scaled_step(gradients, scaler, net, optimizer):
    """The norms of parameters' gradients, as the optimizer gets them."""
    scaler.scale(net(torch.ones(4, 8)).square().mean()).backward()
    scaler.unscale_(optimizer)
    norms = sorted(norm(parameter.grad) for parameter in net.parameters())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norms


def accumulated(gradients):
    return sorted(row.last for row in gradients.rows() if row.backward_op == "AccumulateGrad")


def scaled(init_scale, **options):
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 2)
    return (
        torch.amp.GradScaler("cpu", init_scale=init_scale, **options),
        net,
        torch.optim.SGD(net.parameters(), lr=0.01),
    )


def test_norms_are_those_of_the_scaled_loss_and_the_table_names_the_factor():
    gradients, training = GradientStatistics(), scaled(1024.0)
    with amanda.apply(gradients):
        true = scaled_step(gradients, *training)
    assert gradients.loss_scales == [1024.0]
    assert [found / 1024 for found in accumulated(gradients)] == pytest.approx(true, rel=1e-6)
    assert "scaled by 1,024 (GradScaler)" in " ".join(str(gradients.table()).split())


def test_factors_that_change_are_told_in_their_order_and_forgotten_with_the_norms():
    gradients, training = GradientStatistics(), scaled(64.0, growth_interval=1)
    with amanda.apply(gradients):
        for scale in (64.0, 128.0, 256.0):
            true = scaled_step(gradients, *training)
            assert [found / scale for found in accumulated(gradients)] == pytest.approx(true, rel=1e-6)
        assert gradients.loss_scales == [64.0, 128.0, 256.0]
        assert "scaled by 64 to 256 (GradScaler)" in " ".join(str(gradients.table()).split())
        gradients.reset()
        assert gradients.loss_scales == []
        scaled_step(gradients, *training)
    assert gradients.loss_scales == [512.0]


def test_losses_that_nothing_scales_have_no_factor():
    scaler, net, optimizer = scaled(1024.0, enabled=False)
    gradients = GradientStatistics()
    with amanda.apply(gradients):
        true = scaled_step(gradients, scaler, net, optimizer)
        (net(torch.ones(4, 8)).sum() * torch.tensor(1024.0)).backward()
    assert gradients.loss_scales == []
    assert "GradScaler" not in str(gradients.table())
    assert true == pytest.approx(sorted(row.min for row in gradients.rows() if row.backward_op == "AccumulateGrad"))
