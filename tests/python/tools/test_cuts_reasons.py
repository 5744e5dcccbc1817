"""GradientCuts: why parameters of whole models get no gradient, or none that an optimizer uses."""

import functools
import re
import types

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.cuts import GradientCuts
from cut_runs import loss_of, net, reasons, train
from torch import nn
from torch.distributions import Independent, Normal, VonMises


def test_a_parameter_that_is_not_used():
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "idle": nn.Linear(4, 1)})
    model.forward = lambda x: model["used"](x)
    tool = train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert reasons(tool) == {"idle.weight": "unused", "idle.bias": "unused"}
    assert "no gradient: idle.weight, idle.bias\n  no operator that was seen used it" in tool.answer()


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


def test_a_row_that_was_set_before_is_not_where_a_later_path_is_cut():
    """As an embedding is made: its row of padding is zeroed under no_grad, and then used with the others."""
    model = nn.Sequential(nn.Embedding(4, 2, padding_idx=0), nn.Linear(2, 3))
    tool = GradientCuts()
    with amanda.apply(tool):
        with torch.no_grad():
            model[0].weight[0].fill_(0)
        model(torch.tensor([1, 2])).argmax(1).float().mean().requires_grad_().backward()
    assert reasons(tool) == {"0.weight": "integer", "1.weight": "integer", "1.bias": "integer"}
    assert [cut.end.name for finding in tool.findings() for cut in finding.cuts] == ["aten::argmax"]


def test_of_two_cuts_on_one_path_the_last_is_named():
    model = nn.Linear(4, 4)

    def loss(model):
        hidden = model(torch.ones(2, 4))
        return (hidden + hidden.detach()).round().detach().mul(torch.ones(1, requires_grad=True)).sum()

    (finding,) = train(model, loss).findings()
    assert [(cut.reason, cut.last.name) for cut in finding.cuts] == [("detach", "aten::round")]


def test_both_branches_that_are_cut_are_named():
    def loss(model):
        hidden = model(torch.ones(2, 4))
        return (hidden.detach().sum() + hidden.argmax(1).sum()) * torch.ones((), requires_grad=True)

    (finding,) = train(nn.Linear(4, 4), loss).findings()
    assert {cut.reason for cut in finding.cuts} == {"detach", "integer"}


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
    assert "has them: " not in tool.answer()


def test_layers_that_no_optimizer_has_are_told():
    """In a list, which registers nothing. They may be meant, as a network that measures a distance."""

    class Listed(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.first, self.blocks = nn.Linear(4, 4), kind(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x).tanh()
            return x

    answers = []
    for kind in (list, nn.ModuleList):
        model, tool = Listed(kind), GradientCuts()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with amanda.apply(tool):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        assert not any(row.is_finding for row in tool.rows())
        answers.append(tool.answer())
    told = re.search("4 parameters got a gradient, and no optimizer that took a step has them: (.*);", answers[0])[1]
    assert set(told.split(", ")) == {"weight", "bias", "weight #2", "bias #2"}
    assert "has them" not in answers[1]


class Tempered(nn.Linear):
    """A scale that should be learned, and a state that should not."""

    def __init__(self, scale):
        super().__init__(4, 4)
        self.scale, self.state = scale, None

    def forward(self, x):
        self.state = self.scale * super().forward(x)
        return self.state


def train_tempered(scale, optimizer_of=lambda model: model.parameters(), normalized=False):
    model, tool = Tempered(scale), GradientCuts()
    if normalized:  # it sets another weight each time
        model.weight = nn.Parameter(model.weight.detach())
        nn.utils.spectral_norm(model)
    optimizer = torch.optim.SGD(optimizer_of(model), 0.1)
    with amanda.apply(tool):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward(retain_graph=True)
            optimizer.step()
    return tool.answer()


@pytest.mark.parametrize(
    "made", [lambda: torch.ones(1, requires_grad=True), lambda: 2 * torch.ones(1, requires_grad=True)]
)
def test_a_tensor_of_a_module_that_is_no_parameter_is_told(made):
    remark = (
        "1 tensor that requires a gradient is in a module and no nn.Parameter: neither parameters() nor an optimizer"
    )
    assert f"{remark} has it: scale" in train_tempered(made())


def test_tensors_of_modules_that_are_right():
    free = torch.ones(1, requires_grad=True)
    right = [
        train_tempered(nn.Parameter(torch.ones(1))),
        train_tempered(torch.ones(1)),
        train_tempered(free, lambda model: [*model.parameters(), free]),
        train_tempered(nn.Parameter(torch.ones(1)), normalized=True),
    ]
    assert not any("no nn.Parameter" in answer for answer in right)
    assert all(answer.startswith("all ") for answer in right)


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


# ---- who turned autograd off ----------------------------------------------------------------------------------------


class Decorated(nn.Linear):
    @torch.no_grad()
    def encode(self, x):
        return self(x).relu()

    @torch.inference_mode()
    def infer(self, x):
        return self(x).relu()

    @torch.no_grad()
    def within(self, x):
        with torch.enable_grad():
            return self.mixed(x)

    @torch.enable_grad()
    def mixed(self, x):
        with torch.no_grad():
            return self(x).relu()


def encoder_and_head(encode):
    model = nn.Sequential(Decorated(4, 4), nn.Linear(4, 1))
    return train(model, lambda model: model[1](encode(model[0], torch.randn(3, 4)).clone()).square().mean())


def test_the_function_that_no_grad_decorates_is_named():
    for encode, mode in ((Decorated.encode, "no_grad"), (Decorated.infer, "inference_mode")):
        tool = encoder_and_head(encode)
        assert reasons(tool) == {"weight": mode, "bias": mode}
        text = str(tool.findings()[0])
        assert f"it ran under {mode}, which decorates Decorated.{encode.__name__}(), called at " in text
        assert re.search(r"\S+test_cuts_reasons.py:\d+$", text)


def test_a_block_is_not_said_to_be_in_a_function_that_called_the_module_before():
    model, tool = nn.Sequential(Decorated(4, 4), nn.Linear(4, 1)), GradientCuts()
    with amanda.apply(tool):
        model[0].encode(torch.randn(3, 4))
        for _ in range(3):
            with torch.no_grad():
                h = model[0](torch.randn(3, 4)).relu()
            model[1](h.clone()).square().mean().backward()
    assert str(tool.findings()[0]).endswith("it ran under no_grad")


def test_a_block_in_a_function_that_records_is_not_said_to_be_decorated():
    for encode in (Decorated.mixed, Decorated.within):
        assert str(encoder_and_head(encode).findings()[0]).endswith("it ran under no_grad")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda h: Normal(h, h.exp()), "in Normal.sample(); rsample() keeps the path"),
        (lambda h: Independent(Normal(h, h.exp()), 1), "in Independent.sample(); rsample() keeps the path"),
        (lambda h: VonMises(h, h.exp()), "in VonMises.sample(), which has no rsample()"),
    ],
)
def test_a_sample_of_a_distribution_is_named(made, text):
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    tool = train(model, lambda model: model["head"](made(model["first"](torch.ones(3, 4))).sample()).square().mean())
    (found,) = tool.findings()
    assert found.parameters == ("weight", "bias")
    assert f"it ran under no_grad, {text}" in str(found)
    if "keeps" in text:
        tool = train(
            model, lambda model: model["head"](made(model["first"](torch.ones(3, 4))).rsample()).square().mean()
        )
        assert tool.findings() == []


ADAPTERS = "peft has loaded the adapters for inference: PeftModel.from_pretrained(..., is_trainable=True) trains them"


# ---- nothing requires a gradient ------------------------------------------------------------------------------------


def answer_of_refused(model, x):
    tool = GradientCuts()
    with pytest.raises(RuntimeError, match="does not require grad"), amanda.apply(tool):
        model(x).square().mean().backward()
    return tool.answer()


def test_a_model_that_is_frozen_as_a_whole():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).requires_grad_(False)
    text = answer_of_refused(model, torch.ones(3, 4))
    assert text.startswith("none of the 4 parameters of the modules that ran requires a gradient, in 1 backward pass, ")
    assert text.endswith(": *.weight, *.bias (4 parameters)")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("the program's own")


def test_passes_of_a_frozen_model_that_failed_are_told():
    model, x = nn.Linear(4, 1).requires_grad_(False), torch.ones(3, 4, requires_grad=True)
    with amanda.apply(GradientCuts()) as tool:
        model(x).sum().backward()
        with pytest.raises(RuntimeError, match="the program's own"):
            FailsBackward.apply(model(x)).sum().backward()
    head, *more = tool.answer().splitlines()
    assert head.startswith("none of the 2 parameters of the modules that ran requires a gradient, in 1 backward pass, ")
    assert more == ["1 backward pass failed, and was not judged"]


def test_adapters_that_were_loaded_for_inference():
    """`tests/programs` has one of peft."""
    model = nn.Linear(4, 1).requires_grad_(False)
    for is_for_inference in (True, False):
        model.peft_config = {"default": types.SimpleNamespace(inference_mode=is_for_inference)}
        head, *more = answer_of_refused(model, torch.ones(3, 4)).splitlines()
        assert head.startswith("none of the 2 parameters of the modules that ran requires a gradient")
        assert more == [ADAPTERS] * is_for_inference
