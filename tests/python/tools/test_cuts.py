"""GradientCuts: each way in which a parameter gets no gradient, planted, beside a twin that is right."""

import functools
import gc
import itertools
import re
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.cuts import GradientCuts
from process_groups import destroy_group
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """`between` is what the program does between the parameters that may be cut off and those that are not."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between

    def forward(self, x):
        return self.last(self.between(self.first(x), self))


def run(between, *, steps=3, loss=lambda y: y.square().mean(), optimizer=True):
    """Trains such a model; the tool, the model, and which parameters the graph of the last loss reaches."""
    torch.manual_seed(0)
    model, tool = Model(between), GradientCuts()
    made = torch.optim.SGD(model.parameters(), 0.01) if optimizer else None
    with amanda.apply(tool):
        for _ in range(steps):
            value = loss(model(torch.randn(3, 4)))
            model.zero_grad()
            reached = leaves(value)
            value.backward()
            if made:
                made.step()
    return tool, model, reached


def leaves(loss):
    """The addresses of the leaves that autograd's graph reaches: an independent oracle."""
    found, seen, queue = set(), set(), [loss.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        queue.extend(following for following, _ in node.next_functions)
    return found


def verdicts(tool):
    return {row.name: row.verdict for row in tool.rows()}


def check_oracles(tool, model, reached):
    """The verdicts against `.grad` and the graph of the last pass."""
    for name, parameter in model.named_parameters():
        verdict = verdicts(tool)[name]
        if verdict == "none":
            assert id(parameter) not in reached or parameter.grad is None
            assert parameter.grad is None
        elif verdict == "zero":
            assert not parameter.grad.any()
        else:
            assert id(parameter) in reached
            assert parameter.grad.any()


class Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


class Zeros(Silent):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0


class Right(Silent):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def no_grad(h, model):
    with torch.no_grad():
        return h.relu() * 2


def inference(h, model):
    with torch.inference_mode():
        h = h.relu()
    return h.clone()


def tolist(h, model):
    numbers = h.tolist()
    return torch.tensor(numbers)


def item(h, model):
    return torch.full((3, 4), h.sum().item())


def new_numpy(h, model):
    array = h.detach().numpy() + 1
    return torch.from_numpy(array)


def made_anew(h, model):
    return torch.tensor([[float(x) for x in row] for row in h.detach()])


def overwritten(h, model):
    h = h * 1
    h.fill_(0.5)
    return h


def saved_overwritten(h, model):
    h = torch.sigmoid(h)
    h.data.zero_()
    return h + 1


def leaf_written(h, model):
    model.buffer = model.__dict__.get("buffer", torch.zeros(3, 4, requires_grad=True))
    with torch.no_grad():
        model.buffer.copy_(h)
    return model.buffer * 1


def buffer_in_place(h, model):
    """The result requires a gradient, of another parameter."""
    result = model.last.bias * torch.ones(3, 1)
    with torch.no_grad():
        result.add_(h)
    return result


def reentrant(h, model):
    return checkpoint(lambda x: F.linear(x, model.first.weight, model.first.bias), h.detach(), use_reentrant=True)


def numpy_view(h, model):
    return torch.from_numpy(h.detach().numpy())


def new_leaf(h, model):
    return h.detach().requires_grad_()


def into_a_slice(h, model):
    result = torch.zeros(3, 4)
    for i in range(3):
        result[i] = h[i].detach()
    return result


CUT = [  # the program, the reason, the operator at which the path ends, the last one before it
    (lambda h, model: h.relu().detach(), "detach", "detach", "relu"),
    (lambda h, model: h.relu().detach_(), "detach", "detach_", "relu"),
    (new_leaf, "detach", "detach", "linear"),
    (into_a_slice, "detach", "detach", "select"),
    (no_grad, "no_grad", "relu", "linear"),
    (buffer_in_place, "no_grad", "add_", "linear"),
    (inference, "inference_mode", "relu", "linear"),
    (lambda h, model: h.relu().data, "data", "linear", "relu"),
    (lambda h, model: h.relu().data * 2, "data", "mul", "relu"),
    (lambda h, model: F.one_hot(h.argmax(-1), 4).float(), "integer", "argmax", "linear"),
    (lambda h, model: h.sort(-1).indices.float(), "integer", "sort", "linear"),
    (lambda h, model: h.long().float(), "integer", "to", "linear"),
    (lambda h, model: (h > 0).float(), "boolean", "gt", "linear"),
    (lambda h, model: torch.ones_like(h), "not differentiable", "ones_like", "linear"),
    (item, "item", "item", "sum"),
    (tolist, "item", "resolve_conj", "linear"),
    (made_anew, "item", "item", "linear"),
    (new_numpy, "item", "resolve_conj", "linear"),
    (leaf_written, "leaf", "copy_", "linear"),
    (lambda h, model: torch.ones(3, 4), "outside the loss", "linear", None),
]


@pytest.mark.parametrize(
    ("between", "reason", "end", "last"), CUT, ids=[f"{i}-{case[1]}" for i, case in enumerate(CUT)]
)
def test_a_cut_is_named(between, reason, end, last):
    tool, model, reached = run(between)
    check_oracles(tool, model, reached)
    assert verdicts(tool) == {"first.weight": "none", "first.bias": "none", "last.weight": "ok", "last.bias": "ok"}
    (found,) = tool.findings()
    assert (found.verdict, found.parameters, found.passes) == ("none", ("first.weight", "first.bias"), 3)
    (cut,) = found.cuts
    names = [place and place.name.rpartition("::")[2].partition(".")[0] for place in (cut.end, cut.last)]
    assert [cut.reason, *names] == [reason, end, last]
    lines = [int(place.source.rpartition(":")[2]) for place in (cut.last, cut.end) if place]
    assert lines == sorted(lines) or reason in ("data", "outside the loss", "item")


ZERO = [
    (lambda h, model: h.round(), "zero derivative", "round"),
    (lambda h, model: h.sign(), "zero derivative", "sign"),
    (lambda h, model: torch.floor(h), "zero derivative", "floor"),
    (lambda h, model: h * 0 + 1, "factor", "mul"),
    (lambda h, model: h @ torch.zeros(4, 4) + 1, "factor", "matmul"),
    (lambda h, model: torch.where(h < 100, torch.ones(()), h), "masked", "where"),
    (lambda h, model: h.masked_fill(h < 100, 1.0), "masked", "masked_fill"),
    (lambda h, model: (h - 100).relu() + 1, "saturated", "relu"),
    (lambda h, model: h.clamp(100, 200), "saturated", "clamp"),
    (overwritten, "overwritten", "fill_"),
    (saved_overwritten, "saved output", "sigmoid"),
    (lambda h, model: Silent.apply(h), "function", "mul"),
    (lambda h, model: Zeros.apply(h), "function", "mul"),
]


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("between", "reason", "end"), ZERO, ids=[f"{i}-{case[1]}" for i, case in enumerate(ZERO)])
def test_who_makes_a_gradient_zero_is_named(between, reason, end, steps):
    tool, model, _ = run(between, steps=steps)
    (found,) = tool.findings()
    assert found.parameters == ("first.weight", "first.bias")
    for name in found.parameters:
        gradient = model.get_parameter(name).grad
        assert gradient is None if found.verdict == "none" else not gradient.any()
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name.rpartition("::")[2].partition(".")[0]) == (reason, end)


TWINS = [
    lambda h, model: h.relu(),
    lambda h, model: h + h.detach(),  # a part only
    lambda h, model: h - (h - h.round()).detach(),  # straight through
    lambda h, model: h * (h > 0).float(),
    lambda h, model: h.masked_fill(h < 0, 0.0),
    lambda h, model: torch.where(h < 0, 0.1 * h, h),
    lambda h, model: Right.apply(h),
    lambda h, model: checkpoint(lambda x: x.relu() * 2, h, use_reentrant=False),
    lambda h, model: checkpoint(lambda x: x.relu() * 2, h, use_reentrant=True),
    lambda h, model: h.sort(-1).values,
    lambda h, model: (h.sum().item(), h.tolist(), h.detach().numpy(), h)[3],  # what is logged
    lambda h, model: torch.stack([row.clone() for row in h.unbind()]),
    lambda h, model: torch.compile(lambda x: x.relu() * 2, backend="eager")(h),
]


@pytest.mark.parametrize("between", TWINS, ids=map(str, range(len(TWINS))))
def test_a_program_that_is_right_has_no_finding(between):
    tool, model, reached = run(between)
    check_oracles(tool, model, reached)
    assert tool.findings() == []
    assert set(verdicts(tool).values()) == {"ok"}
    assert re.match(
        r"all 4 parameters that require a gradient got one, in 3 backward passes, \d+ operators", tool.answer()
    )


def train(model, loss_of, *, steps=3, optimizer=None, after=lambda: None):
    tool = GradientCuts()
    with amanda.apply(tool):
        for _ in range(steps):
            model.zero_grad()
            loss_of(model).backward()
            after()
            if optimizer:
                optimizer.step()
    return tool


def reasons(tool):
    return {name: found.cuts[0].reason for found in tool.findings() for name in found.parameters}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model):
    return model(torch.randn(3, 4)).square().mean()


def test_a_parameter_that_is_not_used():
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "idle": nn.Linear(4, 1)})
    model.forward = lambda x: model["used"](x)
    tool = train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert reasons(tool) == {"idle.weight": "unused", "idle.bias": "unused"}
    assert "no gradient: idle.weight, idle.bias\n  no operator used it" in tool.answer()


def test_data_of_a_parameter():
    class Layer(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.data, self.bias)

    tool = train(Layer(4, 1), loss_of)
    assert reasons(tool) == {"weight": "data"}
    assert re.search(r"no gradient: weight\n  cut at aten::linear \(\S+\): it reads", tool.answer())


def test_data_of_a_result_that_a_parameter_gets():
    """A hypernetwork, as it is often written first."""
    maker, target = nn.Linear(2, 6), nn.Linear(2, 3, bias=False)
    torch.nn.init.zeros_(target.weight)

    def loss(model):
        target.weight.data = maker(torch.ones(2)).view(3, 2).data
        return target(torch.randn(4, 2)).square().mean()

    tool = train(nn.ModuleList([maker, target]), loss)
    assert reasons(tool) == {"weight": "data", "bias": "data"}
    (found,) = tool.findings()
    assert [cut.last.name for cut in found.cuts] == ["aten::view"]


def test_a_view_from_no_grad_whose_base_is_written_to():
    """PyTorch refuses to tell whether such a view requires a gradient, until it is used."""
    table = nn.Embedding(4, 2)
    tool = GradientCuts()
    with amanda.apply(tool):
        with torch.no_grad():
            row = table.weight[0]
            row.fill_(0)
        table(torch.tensor([1])).sum().backward()
        nn.Embedding(4, 2, padding_idx=0)
    assert tool.findings() == []


def test_frozen_parameters_are_counted():
    model = net()
    model[0].requires_grad_(False)
    tool = train(model, loss_of, optimizer=torch.optim.SGD(model[2].parameters(), 0.1))
    assert tool.findings() == []
    assert tool.answer().endswith("\n2 parameters require no gradient")


def test_a_parameter_that_required_no_gradient_when_it_was_used():
    model = net()

    def loss(model):
        model[0].weight.requires_grad_(False)
        value = loss_of(model)
        model[0].weight.requires_grad_(True)
        return value

    assert reasons(train(model, loss)) == {"0.weight": "frozen"}


def test_a_parameter_in_no_group():
    model = net()
    tool = train(model, loss_of, optimizer=torch.optim.SGD(model[2].parameters(), 0.1))
    assert reasons(tool) == {"0.weight": "optimizer", "0.bias": "optimizer"}
    assert {row.verdict for row in tool.rows()} == {"ok", "not updated"}


def test_a_network_that_no_optimizer_has_is_meant_so():
    model, teacher = net(), net()
    nn.init.ones_(teacher[0].weight)

    def loss(model):
        x = torch.randn(3, 4)
        with torch.no_grad():
            aim = teacher(x)
        return (model(x) - aim).square().mean()

    tool = train(model, loss, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert tool.findings() == []
    assert "4 parameters got none, and no optimizer has them" in tool.answer()


def test_a_learning_rate_of_zero():
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    tool = train(model, loss_of, optimizer=torch.optim.SGD(groups, 0.1))
    assert reasons(tool) == {"0.weight": "lr", "0.bias": "lr"}


def test_a_warm_up_from_zero_is_right():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    tool = GradientCuts()
    with amanda.apply(tool):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            schedule.step()
    assert tool.findings() == []


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step(to_none):
    model = net()
    tool = train(
        model,
        loss_of,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        after=lambda: model.zero_grad(set_to_none=to_none),
    )
    assert set(reasons(tool).values()) == {"cleared"}
    assert len(reasons(tool)) == 4


class Closure:
    def __init__(self, run):
        self.run = run

    def __call__(self):
        return self.run()


@pytest.mark.parametrize("made", [lambda run: run, functools.partial, Closure], ids=["function", "partial", "object"])
def test_a_forward_pass_in_the_closure_of_a_step(made):
    """As trainers call it."""
    model, tool = net(), GradientCuts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        optimizer.zero_grad()
        loss = model[2](model[0](torch.randn(3, 4)).detach()).sum()
        loss.backward()
        return loss

    with amanda.apply(tool):
        for _ in range(3):
            optimizer.step(made(run))
    assert reasons(tool) == {"weight": "detach", "bias": "detach"}


def test_gradients_that_cancel_out():
    """As those of the last bias of a critic: the mean of what is real, less the mean of what is made."""
    model, tool = net(), GradientCuts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with amanda.apply(tool):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).mean().backward()
            (-model(torch.randn(4, 4)).mean()).backward()
            assert not model[2].bias.grad.any()
            optimizer.step()
    assert tool.findings() == []


def test_gradients_that_are_cleared_after_a_step_with_a_closure():
    model, tool = net(), GradientCuts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        loss = loss_of(model)
        loss.backward()
        return loss

    with amanda.apply(tool):
        for _ in range(3):
            optimizer.step(run)
            optimizer.zero_grad()
    assert tool.findings() == []


def test_leaves_that_are_no_parameters():
    x, tool = torch.ones(3, requires_grad=True), GradientCuts()
    with amanda.apply(tool):
        (x * 2).sum().backward()
    assert tool.answer().startswith(
        "no parameter of a module or of an optimizer was seen, in 1 backward pass, 3 operators"
    )
    used, unused = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer, tool = torch.optim.SGD([used, unused], 0.1), GradientCuts()
    with amanda.apply(tool):
        for _ in range(2):
            (used * 2).sum().backward()
            optimizer.step()
    assert reasons(tool) == {"a parameter of shape (3,) #2": "unused"}


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
