"""ChannelPruning: training of weights and gates against modules written by hand, bit for bit; where it acts; its gates.

Equal means torch.equal, on every tensor.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import contextlib
import copy
import math
import re
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.research.pruning import ChannelPruning
from equal_tensors import same
from tool_regimes import REGIMES, in_regime

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


class FBSConv(torch.nn.Module):
    """The oracle: a convolution with its gate, in place of it; and of the normalization that follows, if one does."""

    def __init__(self, conv, gate, density, norm=None):
        super().__init__()
        self.conv, self.gate, self.density, self.norm = conv, gate, density, norm
        self.saliency = None

    def forward(self, x):
        spatial = self.conv.weight.dim() - 2
        means = x.abs().mean(tuple(range(-spatial, 0)))
        self.saliency = torch.relu(F.linear(means, self.gate.weight, self.gate.bias))
        kept = torch.zeros_like(self.saliency)
        for sample, row in enumerate(self.saliency.detach()):
            best = sorted(range(len(row)), key=lambda channel, row=row: -row[channel].item())
            for channel in best[: math.ceil(self.density * len(row))]:
                kept[sample, channel] = 1
        y = self.conv(x)
        y = y if self.norm is None else self.norm(y)
        return y * (self.saliency * kept).to(y.dtype).reshape(*self.saliency.shape, *[1] * spatial)


class Plain(torch.nn.Module):
    """Followed by batch normalization, by relu, and grouped."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3)
        self.conv3 = torch.nn.Conv2d(8, 12, 1, groups=2, bias=False)
        self.head = torch.nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = self.conv3(F.relu_(self.conv2(x)))
        return self.head(x.mean((2, 3)))


def by_hand(model, pruning):
    """A copy of a Plain with oracles, and their gates."""
    made, gates = copy.deepcopy(model), copy.deepcopy(pruning.gates)
    made.conv1 = FBSConv(made.conv1, gates["conv1"], pruning.density, made.norm)
    made.norm = torch.nn.Identity()
    for name in ("conv2", "conv3"):
        setattr(made, name, FBSConv(getattr(made, name), gates[name], pruning.density))
    return made, gates


def penalty_by_hand(model):
    saliencies = [module.saliency for module in model.modules() if isinstance(module, FBSConv)]
    return torch.stack([saliency.sum(1).mean() for saliency in saliencies]).sum()


def train(model, parameters, inputs, penalty=lambda: 0.0):
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []
    for x in inputs:
        optimizer.zero_grad()
        losses.append(model(x).square().mean() + penalty())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


def prepared(model, x, density=0.5, **options):
    pruning = ChannelPruning(density, **options)
    pruning.prepare(model, x)
    return pruning


def weights(model):
    """Parameters and buffers of a Plain, or of its oracle, in the order of the former."""
    conv1 = getattr(model.conv1, "conv", model.conv1)
    norm = getattr(model.conv1, "norm", model.norm)
    rest = [getattr(getattr(model, name), "conv", getattr(model, name)) for name in ("conv2", "conv3", "head")]
    return [value for module in (conv1, norm, *rest) for value in module.state_dict().values()]


# ---- against the oracle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1e-3], ids=["no penalty", "penalty"])
@pytest.mark.parametrize("density", [0.3, 0.55, 1.0])
def test_twenty_steps_of_weights_and_gates_are_those_of_modules_by_hand(density, scale):
    model, inputs = Plain(), torch.randn(20, 5, 3, 9, 9)
    pruning = prepared(model, inputs[0], density)
    oracle, gates = by_hand(model, pruning)
    expected = train(oracle, oracle.parameters(), inputs, lambda: scale * penalty_by_hand(oracle))
    with amanda.apply(pruning):
        parameters = [*model.parameters(), *pruning.parameters()]
        losses = train(model, parameters, inputs, lambda: scale * pruning.penalty())
    same(losses, expected)
    same(weights(model), weights(oracle))
    same(pruning.state_dict().values(), gates.state_dict().values())
    same([gate.grad for gate in pruning.parameters()], [gate.grad for gate in gates.parameters()])
    with torch.inference_mode():
        expected = oracle.eval()(inputs[0])
        with amanda.apply(pruning):
            same([model.eval()(inputs[0])], [expected])


def test_a_resnet_trains_as_one_with_modules_by_hand():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1])
    model, inputs = transformers.ResNetModel(config), torch.randn(20, 2, 3, 32, 32)
    pruning = prepared(model, inputs[0])
    oracle, gates = copy.deepcopy(model), copy.deepcopy(pruning.gates)
    for name, module in list(oracle.named_modules()):
        if hasattr(module, "convolution"):
            gate = gates[f"{name}.convolution".replace(".", "/")]
            module.convolution = FBSConv(module.convolution, gate, 0.5, module.normalization)
            module.normalization = torch.nn.Identity()
    expected = train(lambda x: oracle(x).last_hidden_state, oracle.parameters(), inputs)
    with amanda.apply(pruning):
        parameters = [*model.parameters(), *pruning.parameters()]
        losses = train(lambda x: model(x).last_hidden_state, parameters, inputs)
    same(losses, expected)
    same(pruning.state_dict().values(), gates.state_dict().values())
    assert len(pruning.gates) == sum(isinstance(module, torch.nn.Conv2d) for module in model.modules())


@pytest.mark.parametrize("name", REGIMES)
def test_it_works_in_every_regime(name):
    model, x = Plain(), torch.randn(4, 3, 9, 9)
    pruning = prepared(model, x)
    oracle, gates = by_hand(model, pruning)
    eager = contextlib.nullcontext(oracle)  # in a scope, compiled code runs eagerly
    with eager if name == "compiled code" else in_regime(name, oracle) as run:
        expected = run(x)
        expected.float().square().sum().backward()
    with in_regime(name, model) as run, amanda.apply(pruning):
        found = run(x)
        found.float().square().sum().backward()
    same([found], [expected])
    same([gate.grad for gate in pruning.parameters()], [gate.grad for gate in gates.parameters()])
    same([model.conv1.weight.grad, model.head.weight.grad], [oracle.conv1.conv.weight.grad, oracle.head.weight.grad])
    assert [row.samples for row in pruning.rows()] == [4, 4, 4]  # a recomputation does not count


def test_the_penalty_of_a_checkpointed_region_is_differentiated():
    model, x = Plain(), torch.randn(4, 3, 9, 9)
    pruning = prepared(model, x)
    gradients = []
    for name in ("checkpointing", None):
        with amanda.apply(pruning):
            if name:
                with in_regime(name, model) as run:
                    loss = run(x).sum() + pruning.penalty()
            else:
                loss = model(x).sum() + pruning.penalty()
            gradients.append(torch.autograd.grad(loss, list(pruning.parameters())))
    same(*gradients)


def test_gates_that_are_a_part_of_the_model_are_those_that_ddp_synchronizes():
    model, x = Plain(), torch.randn(4, 3, 9, 9)
    pruning = prepared(model, x)
    model.gates = pruning.gates
    with in_regime("distributed training", model) as run, amanda.apply(pruning):
        reduced = []
        run.register_comm_hook(None, lambda state, bucket: reduced.extend(bucket.parameters()) or done(bucket))
        run(x).sum().backward()
    assert {id(gate) for gate in pruning.parameters()} <= {id(parameter) for parameter in reduced}
    assert all(gate.grad.count_nonzero() for gate in pruning.parameters())


def done(bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# ---- where it acts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "weight", "call"),
    [
        ((2, 4, 9), (6, 4, 3), F.conv1d),
        ((2, 4, 9, 9), (6, 2, 3, 3), lambda x, w: F.conv2d(x, w, groups=2)),
        ((1, 2, 5, 5, 5), (3, 2, 3, 3, 3), F.conv3d),
        ((4, 9, 9), (6, 4, 3, 3), F.conv2d),
    ],
    ids=["1d", "grouped", "3d", "one sample"],
)
def test_functional_convolutions_of_any_rank_are_gated(x, weight, call):
    x, weight = torch.randn(x), torch.nn.Parameter(torch.randn(weight))
    pruning = ChannelPruning(0.4)
    with amanda.apply(pruning):
        found = call(x, weight)
    (gate,) = pruning.gates.values()
    channel = x.dim() - weight.dim() + 1
    means = x.abs().mean([d for d in range(x.dim()) if d > channel])
    saliency = torch.relu(gate(means))
    limit = saliency.sort(descending=True).values[..., math.ceil(0.4 * weight.shape[0]) - 1, None]
    factors = torch.where(saliency >= limit, saliency, 0)
    torch.testing.assert_close(found, call(x, weight) * factors.reshape(*factors.shape, *[1] * (weight.dim() - 2)))
    assert not torch.equal(found, call(x, weight))


def test_gates_start_as_in_the_paper():
    conv = torch.nn.Conv2d(64, 512, 1)
    pruning = prepared(torch.nn.Sequential(conv), torch.randn(1, 64, 2, 2))
    gate = pruning.gates["0"]
    assert (gate.bias == 1).all()
    assert gate.weight.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.05)


def test_a_module_that_is_called_twice_has_one_gate():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            x = F.relu(self.conv(x))
            return self.conv(x)

    model, inputs = Twice(), torch.randn(20, 3, 4, 6, 6)
    pruning = prepared(model, inputs[0])
    oracle, gates = copy.deepcopy(model), copy.deepcopy(pruning.gates)
    oracle.conv = FBSConv(oracle.conv, gates["conv"], 0.5)
    expected = train(oracle, oracle.parameters(), inputs)
    with amanda.apply(pruning):
        losses = train(model, [*model.parameters(), *pruning.parameters()], inputs)
        model(inputs[0])
    same(losses, expected)
    same(pruning.state_dict().values(), gates.state_dict().values())
    assert len(pruning.gates) == 1
    assert len(pruning.rows("id")) == 2
    saliencies, x = [], inputs[0]
    for _ in range(2):
        x = oracle.conv(F.relu(x) if saliencies else x)
        saliencies.append(oracle.conv.saliency.sum(1).mean())
    assert torch.equal(pruning.penalty(), torch.stack(saliencies).sum())


def test_only_the_output_itself_is_gated_after_batch_normalization():
    conv, norm, x = torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.randn(4, 3, 6, 6)
    model = torch.nn.ModuleDict({"conv": conv, "norm": norm})
    pruning = prepared(lambda x: conv(x), x)
    (gate,) = pruning.gates.values()
    gated = FBSConv(conv, gate, 0.5)
    after_norm = FBSConv(conv, gate, 0.5, norm)

    def changed(conv):
        y = conv(x)
        return model["norm"](y.relu_())

    def used_twice(conv):
        y = conv(x)
        return model["norm"](y), y.exp()

    def with_another_between(conv):
        y, z = conv(x), conv(-x)
        return model["norm"](y), model["norm"](z)

    with amanda.apply(pruning):
        found = [changed(conv), *used_twice(conv), *with_another_between(conv), model["norm"](conv(x) * 1)]
        with torch.no_grad():
            kept = conv(x)
            del kept
            found.append(model["norm"](torch.randn(4, 6, 4, 4, generator=torch.Generator().manual_seed(0))))
    expected = [
        changed(gated),
        after_norm(x),
        gated(x).exp(),
        after_norm(x),
        after_norm(-x),
        norm(gated(x)),
        norm(torch.randn(4, 6, 4, 4, generator=torch.Generator().manual_seed(0))),
    ]
    same(found, expected)


def test_convolutions_can_be_left_alone():
    model, x = Plain(), torch.randn(2, 3, 9, 9)
    pruning = prepared(model, x, where=lambda context: context.module_path != "conv1")
    assert list(pruning.gates) == ["conv2", "conv3"]


def test_under_torch_func_each_sample_has_its_gradient():
    model, x = Plain().eval(), torch.randn(3, 3, 9, 9)
    pruning = prepared(model, x)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

    with amanda.apply(pruning):
        found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)["conv2.weight"].sum(0)
        model(x).square().sum().backward()
    torch.testing.assert_close(found, model.conv2.weight.grad)
    assert len(pruning.gates) == 3


# ---- gates -----------------------------------------------------------------------------------------------------------


def test_preparing_changes_nothing_else():
    model, x = Plain(), torch.randn(2, 3, 9, 9)
    before, state = copy.deepcopy(model), torch.get_rng_state()
    pruning = prepared(model, x)
    same(model.state_dict().values(), before.state_dict().values())
    assert torch.equal(torch.get_rng_state(), state)
    assert pruning.rows() == []


def test_gates_move_to_a_new_tool_and_scopes_share_them():
    model, x = Plain().eval(), torch.randn(2, 3, 9, 9)
    first = ChannelPruning(0.5)
    with amanda.apply(first), torch.inference_mode():
        expected = model(x)
    second = ChannelPruning(0.5)
    second.load_state_dict(first.state_dict())
    assert list(second.gates) == ["conv1", "conv2", "conv3"]
    for pruning in (first, second):
        with amanda.apply(pruning):
            same([model(x)], [expected])
    assert all(parameter.requires_grad for parameter in first.parameters())


def test_gates_of_a_computed_weight_have_the_name_of_its_module():
    model = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(3, 4, 1)))
    assert list(prepared(model, torch.randn(1, 3, 2, 2)).gates) == ["0"]


def test_convolutions_may_be_named_as_methods_of_containers():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values, self.keys = (torch.nn.Parameter(torch.randn(3, 3, 1, 1)) for _ in range(2))

        def forward(self, x):
            return F.conv2d(F.conv2d(x, self.values), self.keys)

    pruning, x = ChannelPruning(), torch.randn(1, 3, 2, 2)
    pruning.prepare(Named(), x)
    other = ChannelPruning()
    other.load_state_dict(pruning.state_dict())
    assert list(other.gates) == ["values", "keys"]
    assert len(list(pruning.parameters())) == 4


def test_each_thread_has_its_penalty():
    model, x = Plain().eval(), torch.randn(2, 3, 9, 9)
    pruning = prepared(model, x)
    found = {}

    def run(scale):
        with amanda.apply(pruning), torch.no_grad():
            model(x * scale)
            barrier.wait()
            found[scale] = pruning.penalty()

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=run, args=(scale,)) for scale in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scale in (1, 3):
        with amanda.apply(pruning), torch.no_grad():
            model(x * scale)
            assert torch.equal(pruning.penalty(), found[scale])
    assert not torch.equal(found[1], found[3])


# ---- results ---------------------------------------------------------------------------------------------------------


def test_rows_count_the_channels_that_were_kept():
    model, x = Plain(), torch.randn(5, 3, 9, 9)
    pruning = prepared(model, x, 0.3)
    with amanda.apply(pruning):
        for _ in range(2):
            model(x)
    rows = [(row.module_path, row.samples, row.channels, row.kept) for row in pruning.rows()]
    assert rows == [("conv1", 10, 80, 30), ("conv2", 10, 80, 30), ("conv3", 10, 120, 40)]
    (row,) = pruning.rows("op")
    assert (row.channels, row.kept, row.density) == (280, 100, 100 / 280)
    pruning.reset()
    assert pruning.rows() == []
    assert len(pruning.gates) == 3


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0, -0.5, 1.5, math.nan, "half"])
def test_a_density_is_a_share(density, says):
    with says(
        ValueError, f"[pruning] density is the share of channels that stays, above 0 and up to 1; got {density!r}"
    ):
        ChannelPruning(density)


def test_misuse_is_told(says):
    with says(TypeError, "[pruning] where= takes a function of an operator's context, got 'conv'"):
        ChannelPruning(where="conv")
    with says(amanda.Error, "[pruning] there are no gates yet; make them by prepare(model, x)"):
        ChannelPruning().parameters()
    message = "[pruning] penalty() is of the last pass, and no gated convolution ran in it on this thread"
    with says(amanda.Error, message):
        ChannelPruning().penalty()


def test_a_gate_that_comes_too_late_for_the_optimizer_is_refused(says):
    class Longer(torch.nn.Sequential):
        count = 1

        def forward(self, x):
            for layer in list(self)[: self.count]:
                x = layer(x)
            return x

    model = Longer(torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 4, 1))
    pruning = prepared(model, torch.ones(1, 3, 2, 2))
    pruning.parameters()
    model.count = 2
    message = (
        "[pruning] aten::conv2d with '1' has no gate, and parameters() has handed out the gates; before that, call prepare "
        "with inputs that reach all convolutions"
    )
    with says(amanda.Error, message):
        with amanda.apply(pruning):
            model(torch.ones(1, 3, 2, 2))


def test_another_model_is_refused(says):
    pruning = prepared(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1)), torch.ones(1, 3, 2, 2))
    message = "[pruning] gate '0' is for 3 channels to 4, and aten::conv2d has 2 to 5; use a tool for each model"
    with says(amanda.Error, message):
        with amanda.apply(pruning):
            torch.nn.Sequential(torch.nn.Conv2d(2, 5, 1))(torch.ones(1, 2, 2, 2))


def test_inputs_that_cannot_be_read_are_skipped():
    pruning = ChannelPruning()
    with amanda.apply(pruning):
        F.conv2d(torch.ones(1, 2, 3, 3, device="meta"), torch.ones(4, 2, 1, 1, device="meta"))
    assert pruning.skipped == {"meta": 1}
    assert len(pruning.gates) == 0


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_examples_network_reads_with_half_of_its_channels(run_example):
    printed = run_example("prune_channels.py")
    shares = re.findall(r"^(\d.*?) +(\d+\.\d)%$", printed, flags=re.MULTILINE)
    assert [name for name, _ in shares] == ["12 channels", "24 channels", "24 channels, half kept"]
    narrow, whole, gated = (float(share) for _, share in shares)
    assert min(narrow, whole, gated) > 94
    assert re.search(r"conv2 +597 +14328 +71\d\d +\d\d\.\d%", printed)
