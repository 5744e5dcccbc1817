"""GradientCuts beside what programs do: several passes, errors, threads, sparse and compiled code."""

import gc
import itertools
import re
import weakref

import amanda
import pytest
import torch
from amanda.tools.cuts import GradientCuts
from cut_runs import Model, loss_of, net, reasons, train, verdicts
from process_groups import destroy_group
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_all_kinds_are_let_through():
    def program():
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3, 3))
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
        loss = (nested @ weight).values().sum() + torch.vmap(lambda x: (x @ weight).sum())(torch.ones(2, 3)).sum()
        loss = loss + (torch.eye(3).to_sparse() @ weight).sum() + (weight.to(torch.complex64) * 1j).abs().sum()
        loss = loss + torch.func.grad(lambda x: (x @ weight).sum())(torch.ones(3)).sum()
        loss = (
            loss
            + torch.empty(0, 3).matmul(weight).sum()
            + torch.ones(2, device="meta").sum().new_zeros((), device="cpu")
        )
        loss = loss + torch.quantize_per_tensor(weight.detach(), 0.1, 0, torch.qint8).dequantize().sum()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
            loss = loss + torch.autograd.forward_ad.unpack_dual(dual.sin()).primal.sum()
        (torch.autograd.grad(weight.exp().sum(), weight, create_graph=True)[0].square().sum() + loss).backward()
        return weight.grad

    expected, tool = program(), GradientCuts()
    with amanda.apply(tool):
        found = program()
    assert torch.equal(expected, found)
    assert tool.findings() == []


def test_inputs_of_backward():
    model, tool = net(), GradientCuts()
    with amanda.apply(tool):
        for _ in range(2):
            loss_of(model).backward(inputs=[model[2].weight])
    assert verdicts(tool) == {"2.weight": "ok"}


def test_gradients_that_are_handed_out():
    model, tool = net(), GradientCuts()
    with amanda.apply(tool):
        torch.autograd.grad(loss_of(model), list(model.parameters()))
    assert tool.findings() == []


def test_no_backward_pass():
    model, tool = net(), GradientCuts()
    with amanda.apply(tool):
        loss_of(model)
    assert re.match(r"no backward pass was seen, in \d+ operators", tool.answer())
    assert tool.rows() == []
    assert GradientCuts().answer().startswith("no backward pass was seen")


def test_a_loss_that_no_parameter_leads_to():
    """PyTorch's error says "element 0 of tensors does not require grad"; not where the path ends."""
    model, tool = net(), GradientCuts()
    with pytest.raises(RuntimeError, match="does not require grad"), amanda.apply(tool):
        loss_of(model).detach().exp().backward()
    assert set(reasons(tool).values()) == {"detach"}
    assert len(reasons(tool)) == 4
    assert "1 backward pass, 1 of them refused by PyTorch" in tool.answer()


def test_a_pass_that_is_refused_after_others_were_not():
    """Autograd was turned off for an evaluation, and not turned on again."""
    model, tool = net(), GradientCuts()
    with amanda.apply(tool), torch.enable_grad():
        loss_of(model).backward()
        assert tool.findings() == []
        torch.set_grad_enabled(False)
        with pytest.raises(RuntimeError, match="does not require grad"):
            loss_of(model).backward()
    (refused,) = tool.findings()
    assert (refused.verdict, len(refused.parameters)) == ("refused", len(list(model.parameters())))
    assert {cut.reason for cut in refused.cuts} == {"no_grad"}
    assert "no gradient in the pass that PyTorch refused: " in tool.answer(ended_well=False)


def test_the_gradient_of_a_slice_that_the_result_does_not_use():
    """As of the coordinates of a network for differential equations."""
    model, tool = nn.Linear(2, 1), GradientCuts()
    points = torch.rand(4, 2, requires_grad=True)
    with amanda.apply(tool):
        result = model(points)
        time = points[:, :1]
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            torch.autograd.grad(result.sum(), time)
    answer = tool.answer(ended_well=False)
    assert re.search(
        r"does not use the result of aten::slice \(.*: aten::linear \(.* uses what this was made of, not this", answer
    )
    tool.reset()
    with amanda.apply(tool):
        time = points[:, :1]
        torch.autograd.grad(model(torch.cat([time, points[:, 1:]], 1)).sum(), time)
    assert "does not use" not in tool.answer()


def test_a_program_that_fails_midway():
    model, tool = net(), GradientCuts()

    def program():
        model(torch.ones(1, 4)).sum().backward()
        model(torch.ones(1, 4))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), amanda.apply(tool):
        program()
    assert tool.answer(ended_well=False).startswith(
        "all 4 parameters that require a gradient got one, in 1 backward pass until the program failed"
    )


def test_a_pass_that_fails_is_not_judged():
    model, tool = net(), GradientCuts()

    def program():
        y = model(torch.ones(1, 4)).exp()
        y.add_(1)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="inplace"), amanda.apply(tool):
        program()
    assert (tool.findings(), tool.rows()) == ([], [])
    assert "no backward pass was seen; 1 pass raised an error" in tool.answer()


def test_two_losses_and_gradient_accumulation():
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)])
    optimizer, tool = torch.optim.SGD(model.parameters(), 0.1), GradientCuts()
    with amanda.apply(tool):
        for _ in range(2):
            for _ in range(2):
                h = model[0](torch.randn(3, 4))
                model[1](h).sum().backward(retain_graph=True)
                model[2](h.detach()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert tool.findings() == []
    assert set(verdicts(tool).values()) == {"ok"}


def test_a_generator_and_a_discriminator():
    """Each is frozen or detached while the other is trained."""
    generator, discriminator, tool = net(), nn.Linear(1, 1), GradientCuts()
    of_g = torch.optim.SGD(generator.parameters(), 0.1)
    of_d = torch.optim.SGD(discriminator.parameters(), 0.1)
    with amanda.apply(tool):
        for _ in range(3):
            made = generator(torch.randn(3, 4))
            of_d.zero_grad()
            discriminator(made.detach()).mean().backward()
            of_d.step()
            discriminator.requires_grad_(False)
            of_g.zero_grad()
            (-discriminator(made).mean()).backward()
            of_g.step()
            discriminator.requires_grad_(True)
    assert tool.findings() == []
    assert set(verdicts(tool).values()) == {"ok"}
    wrong = GradientCuts()
    with amanda.apply(wrong):
        for _ in range(3):
            made = generator(torch.randn(3, 4))
            of_d.zero_grad()
            discriminator(made.detach()).mean().backward()
            of_d.step()
            of_g.zero_grad()
            (-discriminator(made.detach()).mean()).backward()
            of_g.step()
    assert set(reasons(wrong).values()) == {"detach"}
    assert {name.partition(".")[0] for name in reasons(wrong)} == {"0", "2"}


class Adapter(nn.Module):
    """As LoRA: the second factor starts at zero."""

    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.base.requires_grad_(False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_a_factor_that_starts_at_zero_is_meant_so():
    torch.manual_seed(0)
    model = Adapter()
    tool = train(model, loss_of, steps=1)
    assert verdicts(tool) == {"down.weight": "zero", "up.weight": "ok"}
    assert (tool.findings(), tool.rows()[0].reason) == ([], "starts at zero")
    assert "1 parameter got zeros, as a parameter that they are multiplied by starts at zero" in tool.answer()


def test_a_factor_that_no_optimizer_has_is_not_excused_by_zeros():
    """The optimizer was made before the adapter was added, or has one factor: the other never gets more than zeros."""
    for kept in (["base.weight"], ["base.weight", "down.weight"]):
        torch.manual_seed(0)
        model = Adapter()
        parameters = dict(model.named_parameters())
        tool = train(model, loss_of, optimizer=torch.optim.SGD([parameters[name] for name in kept], 0.1))
        outside = {"down.weight", "up.weight"} - {*kept}
        assert {name: verdict for name, verdict in verdicts(tool).items() if name in outside} == dict.fromkeys(
            outside, "not updated"
        )
        assert {name for one in tool.findings() for name in one.parameters} == outside
        assert tool.answer().startswith(f"{len(outside)} of 2 parameters that require a gradient are not trained")


def test_a_part_of_the_passes():
    class Experts(nn.ModuleList):
        def forward(self, x, active):
            return sum(self[i](x) for i in active)

    model, tool = Experts([nn.Linear(4, 1), nn.Linear(4, 1)]), GradientCuts()
    with amanda.apply(tool):
        for step in range(4):
            model(torch.ones(3, 4), [0, 1] if step == 2 else [0]).sum().backward()
    assert tool.findings() == []
    assert verdicts(tool) == {"0.weight": "ok", "0.bias": "ok", "1.weight": "partial", "1.bias": "partial"}


def test_rows_of_an_embedding_that_are_not_used():
    model = nn.Embedding(10, 4)
    tool = train(model, lambda model: model(torch.tensor([1, 2, 3])).sum())
    (row,) = tool.rows()
    assert (row.verdict, row.idle, row.is_finding) == ("partial", 7, False)


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.table(x).detach())

    tool = train(Tied(), lambda model: model(torch.tensor([1, 2])).square().sum())
    assert verdicts(tool) == {"table.weight": "ok"}


def test_a_reentrant_checkpoint_of_inputs_without_gradient():
    class Recomputed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 1), reentrant

        def forward(self, x):
            return self.head(checkpoint(lambda x: self.inner(x).tanh(), x, use_reentrant=self.reentrant))

    with pytest.warns(UserWarning, match="requires_grad=True"):
        tool = train(Recomputed(True), loss_of)
    assert set(reasons(tool).values()) == {"checkpoint"}
    assert set(reasons(tool)) == {"inner.weight", "inner.bias"}
    assert train(Recomputed(False), loss_of).findings() == []


def test_sparse_gradients():
    model = nn.Embedding(10, 4, sparse=True)
    tool = train(model, lambda model: model(torch.tensor([1, 2, 3])).sum())
    assert verdicts(tool) == {"weight": "ok"}


def test_results_are_equal():
    def trained():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of(model) + model(torch.randn(3, 4)).detach().sum()
            loss.backward()
            optimizer.step()
        return [*model.state_dict().values()]

    expected = trained()
    with amanda.apply(GradientCuts()):
        found = trained()
    assert all(map(torch.equal, found, expected))


def test_no_tensor_is_kept():
    tool, model = GradientCuts(), net()
    with amanda.apply(tool):
        h = model(torch.ones(3, 4))
        alive = [weakref.ref(h), weakref.ref(model[0].weight)]
        (h.detach() * model[2].bias).sum().backward()
        storage = h.untyped_storage()
        pointer = weakref.ref(storage)
        del h, storage, model
        gc.collect()
        assert [one() for one in alive] == [None, None]
        assert pointer() is None
    assert tool.findings()


def test_memory_is_bounded(monkeypatch):
    from amanda.tools.cuts import flow

    monkeypatch.setattr(flow, "KEPT", 100)
    model, tool = net(), GradientCuts()
    state = torch.zeros(1)
    with amanda.apply(tool):
        for _ in range(100):
            loss_of(model).backward()
            state = state * 0.9 + 1  # as a running mean
    steps = list(tool._program.flow.steps())
    assert len(steps) < 150


def test_when_nothing_is_new_values_are_followed_no_longer():
    model, tool, numbers = net(), GradientCuts(), []
    with amanda.apply(tool):
        for _ in range(27):
            loss_of(model).backward()
            numbers.append([step.number for step in tool._program.flow.steps()][-1])
    grown = [after - before for before, after in itertools.pairwise(numbers)]
    assert min(grown[:15]) >= 5
    assert max(grown[17:]) < 5  # but for the losses, which tell passes apart
    assert {(row.passes, row.gradients) for row in tool.rows()} == {(27, 27)}


@pytest.mark.parametrize("clearing", ["none", "zeros", "never", "in backward"])
def test_gradients_are_counted_also_when_values_are_followed_no_longer(clearing):
    """One parameter gets none in some late passes, one gets zeros, and an embedding other rows. The oracle is hooks."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.always, self.sometimes = nn.Embedding(40, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, number):
            h = self.always(self.rows(torch.tensor([number])))
            return (self.sometimes(h) if number % 30 else h).sum() * (0 if number % 8 == 3 else 1e-30)

    torch.manual_seed(0)
    model, tool, expected = Late(), GradientCuts(), {}
    for name, parameter in model.named_parameters():
        expected[name] = [0, 0]  # not zero, zero

        def count(gradient, counts=expected[name]):
            counts[not bool((gradient != 0).any())] += 1

        parameter.register_hook(count)
        if clearing == "in backward":
            parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    with amanda.apply(tool):
        for number in range(40):
            model(number).backward()
            if clearing in ("none", "zeros"):
                model.zero_grad(set_to_none=clearing == "none")
    found = {row.name: [row.gradients, row.zeros, row.passes] for row in tool.rows()}
    # What is read no more, as each row has got a gradient, counts as not zero.
    assert {name: (one[0] + one[1], one[2]) for name, one in found.items()} == {
        name: (sum(counts), 40) for name, counts in expected.items()
    }
    assert found["rows.weight"][:2] == expected["rows.weight"] == [35, 5]
    assert next(row.idle for row in tool.rows() if row.name == "rows.weight") == 5
    assert verdicts(tool)["sometimes.bias"] == "partial"


def test_a_reset_when_values_are_followed_no_longer():
    """What is found afterwards is exact, though operators have no routines any more."""
    model, tool, factor = net(), GradientCuts(), 1.0
    with amanda.apply(tool):
        for number in range(50):
            if number == 40:
                tool.reset()
                factor = 0.0
            (model(torch.ones(3, 4)).sum() * factor).backward()
            model.zero_grad()
    assert {(row.verdict, row.zeros, row.gradients) for row in tool.rows()} == {("zero", 10, 0)}


@pytest.mark.parametrize(
    ("values", "is_nonzero"),
    [
        ([[0.0, -0.0], [1e-45, 0.0]], [False, True]),
        ([[float("nan"), 0.0], [0.0, -float("inf")]], [True, True]),
        ([[0.0, -1e-30], [0.0, 0.0]], [True, False]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_what_is_not_zero(values, is_nonzero, dtype):
    from amanda.tools.cuts.parameters import nonzero

    tensor = torch.tensor(values).nan_to_num(3).to(dtype) if dtype == torch.int32 else torch.tensor(values).to(dtype)
    expected = tensor.ne(0).any(1)
    if dtype == torch.float32:
        assert expected.tolist() == is_nonzero
    assert nonzero(tensor, by_row=True).tolist() == expected.tolist()
    assert nonzero(tensor).item() == expected.any()
    assert nonzero(tensor.t().unsqueeze(2), by_row=True).tolist() == tensor.ne(0).any(0).tolist()
    assert nonzero(tensor.to_sparse()).item() == expected.any()
    assert nonzero(tensor[:0], by_row=True).item()  # it has nothing that is zero


def test_a_loss_that_comes_late_is_judged():
    """What its parameters got is known; why they got none is not."""
    model, tool = net(), GradientCuts()
    with amanda.apply(tool):
        for i in range(20):
            h = model[0](torch.ones(2, 4)).detach()
            if i < 18:
                model[2](h).sum().backward()
            else:
                model[2](h).mean().backward()
    assert {row.name: (row.verdict, row.passes) for row in tool.rows()} == {
        "weight": ("none", 20),
        "bias": ("none", 20),
        "weight #2": ("ok", 20),
        "bias #2": ("ok", 20),
    }
    assert set(reasons(tool).values()) == {"detach"}  # of the first loss


def train_in_parallel(path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(
            Model(lambda h, model: h.relu().detach()), find_unused_parameters=True
        )
        return train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    finally:
        destroy_group()


def test_distributed_data_parallel(tmp_path):
    assert reasons(train_in_parallel(tmp_path)) == {"module.first.weight": "detach", "module.first.bias": "detach"}


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_is_left_out_where_it_runs_compiled():
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    tool = GradientCuts()
    with amanda.apply(tool, compiled="graph"):
        compiled(torch.ones(2, 4)).sum().backward()
    assert tool.skipped
    assert "compiled" in tool.answer()


class PartlyCompiled(nn.Module):
    """Parameters before, in and after a compiled function; the function cuts one off, and one is in none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.inside, self.cut, self.after, self.idle = (nn.Linear(4, 4) for _ in range(5))
        self.compiled = torch.compile(self.part, backend="eager")

    def part(self, h):
        return self.inside(h.relu()) + self.cut(h).detach()

    def forward(self, x):
        return self.after(self.compiled(self.before(x)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["graph", "opaque", "eager"])
def test_gradients_from_compiled_functions_have_come(mode):
    model, tool = PartlyCompiled(), GradientCuts()
    with amanda.apply(tool, compiled=mode):
        for _ in range(3):
            model.zero_grad()
            loss_of(model).backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    found = verdicts(tool)
    assert {name for name, verdict in found.items() if verdict == "ok"} == trained
    assert {name for name, verdict in found.items() if verdict == "none"} == set(found) - trained
    assert reasons(tool)["idle.weight"] == "unused"
    assert reasons(tool)["cut.weight"] == ("detach" if mode == "eager" else "unused")
    assert "no operator that was seen used it" in tool.answer()


def test_nothing_listens_outside_of_scopes():
    from amanda.drivers.torch import backward_pass

    tool = GradientCuts()
    scope = amanda.apply(tool)
    for _ in range(2):
        with scope:
            loss_of(net()).backward()
            assert len(backward_pass._listeners) == 1
        assert backward_pass._listeners == ()


def test_reset():
    model, tool = net(), GradientCuts()
    with amanda.apply(tool):
        loss_of(model[0:1]).detach().requires_grad_().backward()
        assert tool.rows()
        tool.reset()
        assert (tool.rows(), tool.findings()) == ([], [])
        loss_of(model).backward()
    assert tool.findings() == []


def test_another_thread_is_not_judged():
    import threading

    model, other, tool = net(), net(), GradientCuts()
    with amanda.apply(tool):
        loss_of(model).backward()
        thread = threading.Thread(target=lambda: loss_of(other).backward())
        thread.start(), thread.join()
    assert tool.answer().startswith("all 4 parameters that require a gradient got one, in 1 backward pass,")
