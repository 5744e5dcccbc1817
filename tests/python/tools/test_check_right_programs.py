"""Check finds nothing in programs that are right, and look like mistakes."""

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from right_trainings import TRAININGS, net, sgd
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint


def adversarial_networks():
    """The generator's loss leaves gradients in the discriminator, which clears them before its own step."""
    generator, discriminator = net(3, 8, 4), net(4, 8, 1)
    of_generator, of_discriminator = (
        torch.optim.Adam(generator.parameters()),
        torch.optim.Adam(discriminator.parameters()),
    )
    real, fake = torch.ones(6, 1), torch.zeros(6, 1)
    for _ in range(5):
        of_discriminator.zero_grad(set_to_none=False)
        made = generator(torch.randn(6, 3))
        loss = F.binary_cross_entropy_with_logits(discriminator(torch.randn(6, 4)), real)
        loss = loss + F.binary_cross_entropy_with_logits(discriminator(made.detach()), fake)
        loss.backward()
        of_discriminator.step()
        of_generator.zero_grad(set_to_none=False)
        F.binary_cross_entropy_with_logits(discriminator(made), real).backward()
        of_generator.step()


def alternating_optimizers_of_one_loss():
    """Each steps in every second iteration; gradients of both are cleared in each."""
    encoder, head = net(4, 8, 4), nn.Linear(4, 3)
    optimizers = [sgd(encoder), sgd(head)]
    for i in range(8):
        for one in optimizers:
            one.zero_grad()
        F.cross_entropy(head(encoder(torch.randn(6, 4))), torch.randint(3, (6,))).backward()
        optimizers[i % 2].step()


def wrapped_optimizer():
    """The optimizer in it steps, with the same groups, and the wrapper has the scheduler."""
    model = net(4, 8, 3)
    inner = sgd(model)
    wrapper = sgd(model)
    wrapper.param_groups = inner.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(wrapper, 2)
    wrapper.step()
    for _ in range(5):
        inner.zero_grad()
        F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
        inner.step()
        scheduler.step()


def layers_that_are_made_in_forward():
    """An augmentation with random weights, activations, and a layer that is kept after it was made."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.kept = nn.Linear(4, 4), []

        def forward(self, x):
            x = nn.ReLU()(self.body(nn.Linear(4, 4)(x)))
            if not self.kept:
                self.kept.append(nn.Linear(4, 3).requires_grad_(False))
            return self.kept[0](x)

    model = Lazy()
    optimizer = sgd(model)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
        optimizer.step()


def half_precision_that_learns():
    """A warm-up from a rate that is rounded away, to one that is not."""
    model = net(4, 8, 3).bfloat16()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-9 if step < 4 else 1.0)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(4, 4).bfloat16()), torch.randint(3, (4,))).backward()
        optimizer.step()
        schedule.step()


def closures():
    model, x, y = nn.Linear(4, 1), torch.randn(6, 4), torch.randn(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


def clipped_accumulation():
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for i in range(12):
        loss = F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))) / 4  # 4 passes; 4 examples, too
        loss.backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def cleared_by_hand():
    model, x = nn.Linear(4, 1), torch.randn(6, 4)
    optimizer = sgd(model)
    for way in ("none", "zero", "fill", "data", "scaled", "copied", "none", "zero"):
        model(x).square().mean().backward()
        optimizer.step()
        for one in model.parameters():
            if way == "none":
                one.grad = None
            elif way == "zero":
                one.grad.zero_()
            elif way == "fill":
                one.grad.fill_(0)
            elif way == "data":
                one.grad.data.zero_()
            elif way == "scaled":
                one.grad.mul_(0.5)  # a moving sum
            else:
                one.grad.copy_(torch.zeros_like(one.grad))


def sharpness_aware():
    """Two backward passes and two moves of the weights for each step."""
    model, x, y = net(4, 8, 3), torch.randn(6, 4), torch.randint(3, (6,))
    optimizer = sgd(model)
    for _ in range(4):
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            moves = [one.grad * 0.05 for one in model.parameters()]
            for one, move in zip(model.parameters(), moves, strict=True):
                one.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


def target_networks():
    """Actor and critic; the targets follow them, are in training mode, and get no gradient."""
    actor, critic = net(4, 8, 2), net(6, 8, 1)
    targets = copy.deepcopy((actor, critic))
    of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
    for _ in range(4):
        state, action, reward = torch.randn(6, 4), torch.randn(6, 2), torch.randn(6, 1)
        with torch.no_grad():
            goal = reward + 0.9 * targets[1](torch.cat([state, targets[0](state)], 1))
        of_critic.zero_grad()
        F.mse_loss(critic(torch.cat([state, action], 1)), goal).backward()
        of_critic.step()
        of_actor.zero_grad()
        (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
        of_actor.step()
        with torch.no_grad():
            for model, target in zip((actor, critic), targets, strict=True):
                for one, other in zip(model.parameters(), target.parameters(), strict=True):
                    other.lerp_(one, 0.01)


def momentum_encoder():
    online = net(4, 8, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = sgd(online)
    for _ in range(4):
        x = torch.randn(6, 4)
        with torch.no_grad():
            goal = F.normalize(target(x), dim=-1)
        optimizer.zero_grad()
        (2 - 2 * (F.normalize(online(x), dim=-1) * goal).sum(-1)).mean().backward()
        optimizer.step()
        for one, other in zip(online.parameters(), target.parameters(), strict=True):
            other.data.mul_(0.9).add_(one.data, alpha=0.1)


def monte_carlo_dropout():
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()
        model.eval()
        model[3].train()
        with torch.no_grad():
            torch.stack([model(torch.randn(6, 4)).softmax(-1) for _ in range(5)]).std(0)


def averaged_weights():
    model, batches = net(4, 8, 3), [torch.randn(6, 4) for _ in range(3)]
    optimizer = sgd(model)
    averaged = AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, 0.05)
    for x in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(3, (6,))).backward()
        optimizer.step()
        averaged.update_parameters(model)
        schedule.step()
    update_bn(batches, averaged)
    update_bn(batches, model)


def checkpoints(use_reentrant):
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(6, 4, requires_grad=True)
        F.cross_entropy(checkpoint(model, x, use_reentrant=use_reentrant), torch.randint(3, (6,))).backward()
        optimizer.step()


def attacks():
    """Gradients of inputs by a model in evaluation mode; training in between."""
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        model.eval()
        for _ in range(2):
            moved = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            x = x + 0.1 * gradient.sign()
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def an_image_is_optimized():
    """A frozen model, in evaluation mode, and a gradient of each of its parameters that nobody uses."""
    model, image = net(4, 8, 3).eval(), torch.randn(6, 4, requires_grad=True)
    model.requires_grad_(False)
    optimizer = torch.optim.Adam([image], 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (-model(image)[:, 0].mean()).backward()
        optimizer.step()


def finetuning():
    """The head first, then all; frozen statistics."""
    body, head = net(4, 8, 4), nn.Linear(4, 3)
    body.requires_grad_(False)
    for modules in ([head], [body, head]):
        for module in modules:
            module.requires_grad_(True)
        optimizer = sgd(*modules)
        for _ in range(3):
            body[1].eval()
            optimizer.zero_grad()
            F.cross_entropy(head(body(torch.randn(6, 4))), torch.randint(3, (6,))).backward()
            optimizer.step()


def unused_experts():
    """In most steps only one of three experts has a gradient; each has an optimizer, and all of them step."""
    experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
    optimizers = [sgd(one) for one in experts]
    for i in range(9):
        for one in optimizers:
            one.zero_grad()
        experts[i % 3](torch.randn(6, 4)).square().mean().backward()
        for one in optimizers:
            one.step()


def pairs():
    """Broadcasts that are meant."""
    points, centers, scores = nn.Linear(4, 8)(torch.randn(8, 4)), nn.Parameter(torch.randn(8, 8)), nn.Linear(4, 1)
    distances = (points[:, None] - centers[None]).square().sum(-1)
    offsets = points.norm(dim=-1)[:, None] - torch.linspace(0, 1, 8)[None, :]
    unaligned = points.norm(dim=-1).unsqueeze(-1) - torch.linspace(0, 1, 5)
    ranks = scores(torch.randn(8, 4)).squeeze(-1)
    ranking = F.softplus(ranks[None, :] - ranks[:, None])
    centred = points - points.mean(0)
    (distances.mean() + offsets.mean() + unaligned.mean() + ranking.mean() + centred.square().mean()).backward()


def losses():
    x, y = nn.Linear(4, 3)(torch.randn(6, 4)), torch.tensor([0, 1, 2, -100, 1, 0])
    scores = nn.Linear(4, 3)(torch.randn(6, 4))
    loss = F.cross_entropy(x, y) + F.cross_entropy(x / 0.5, scores.detach().softmax(-1))
    loss = loss + F.kl_div(x.log_softmax(-1), scores.softmax(-1), reduction="batchmean")
    loss = loss + F.nll_loss(x.log_softmax(-1), y) + F.mse_loss(x.softmax(-1), torch.ones(6, 3))
    loss = loss + F.cross_entropy(torch.randn(2, 3, 5, requires_grad=True), torch.randint(3, (2, 5)))
    loss = loss + F.cross_entropy(x, y, reduction="sum") / 6 + F.binary_cross_entropy_with_logits(x, torch.ones(6, 3))
    loss.mean().backward()


def folds():
    """Weights that are initialized again, each time with a new optimizer."""
    model = net(4, 8, 3)
    for _ in range(3):
        for part in model:
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
            optimizer.step()


def a_row_of_an_embedding_is_zeroed():
    model = nn.Embedding(5, 4)
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([0, 1, 2])).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model.weight[0].zero_()
            model.weight[1].normal_()


def half_precision():
    model, scaler = net(4, 8, 3), torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        warm.step()


def resumed():
    """Optimizer and scheduler go on from a checkpoint."""
    model = nn.Linear(4, 3)
    saved = None
    for _ in range(2):
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        if saved is not None:
            optimizer.load_state_dict(saved[0])
            schedule.load_state_dict(saved[1])
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
            optimizer.step()
            schedule.step()
        saved = optimizer.state_dict(), schedule.state_dict()


def weights_are_read_by_numpy():
    """float64 on both sides, and metrics in float64."""
    model = nn.Linear(4, 3)
    optimizer = sgd(model)
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        total += model(torch.randn(6, 4)).detach().double().sum(0)
    precise = nn.Linear(4, 3).double()
    F.mse_loss(precise(torch.randn(6, 4, dtype=torch.float64)), torch.zeros(6, 3, dtype=torch.float64)).backward()


def evaluation_without_no_grad():
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for _ in range(3):
        model.train()
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
            optimizer.step()
        model.eval()
        for _ in range(2):
            F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).item()


def shapes_are_tried_first():
    model = net(4, 8, 3)
    with torch.no_grad():
        width = model(torch.zeros(2, 4)).shape[1]
    model.append(nn.Linear(width, 2))
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(2, (6,))).backward()
        optimizer.step()


def weights_by_hand():
    """No optimizer at all, and one beside: the hand's parameter is written to."""
    by_hand, model = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        model(by_hand(torch.randn(6, 4))).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for one in by_hand.parameters():
                one -= 0.1 * one.grad
                one.grad = None


class Accumulating(torch.optim.SGD):
    """Updates in each third step, and one parameter by `data`."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups if self.calls % 3 == 0 else ():
            for one in group["params"]:
                one.data -= group["lr"] * one.grad


def optimizers_that_wait():
    """For other steps, for a warm-up that begins at zero, and for a gradient that is zero."""
    for make in (Accumulating, torch.optim.SGD):
        model = net(4, 8, 3)
        optimizer = make(model.parameters(), 0.1)
        warm = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step, make=make: float(step > 3 or make is Accumulating)
        )
        for i in range(10):
            optimizer.zero_grad()
            (F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))) * (i > 5)).backward()
            optimizer.step()
            warm.step()


class Regularized(nn.Module):
    """Its first dropout is on in evaluation, and says so."""

    def forward(self, x):
        x = F.dropout(x, 0.5, training=True)
        x = F.dropout(F.relu(x), 0.1, self.training)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)


def dropout_that_is_meant():
    model = Regularized()
    for mode in (True, False):
        model.train(mode)(torch.randn(2, 5, 4))


def loaders_with_workers():
    """A batch that is used twice, loaders of one batch, and examples that are all the same."""
    model = nn.Linear(4, 3)
    same, few, many = torch.ones(12, 4), torch.randn(4, 4), torch.randn(12, 4)
    for data in (same, few, many):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), 4, num_workers=2)
        for _ in range(2):
            for (x,) in loader:
                model(x), model(x)


def half_precision_in_parts():
    """Evaluation in float32 first, autocast then, and a part without it."""
    model, head = net(4, 8, 4), nn.Linear(4, 3)
    optimizer = sgd(model, head)
    F.cross_entropy(head(model(torch.randn(6, 4))), torch.randint(3, (6,))).item()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model(torch.randn(6, 4))
            with torch.autocast("cpu", enabled=False):
                loss = F.cross_entropy(head(hidden.float()), torch.randint(3, (6,)))
        loss.backward()
        optimizer.step()


def activations_and_their_losses():
    x, missing = torch.randn(6, 4), torch.tensor([-1.0, 0.0, 1.0]).expand(6, 3)
    nn.Linear(4, 1)(torch.randn(6, 1, 4)).softmax(1)  # attention over one step
    nn.Linear(4, 1)(x[:1]).softmax(0)
    torch.nested.nested_tensor([x[:2], x[2:]]).softmax(-1)
    each = F.binary_cross_entropy_with_logits(nn.Linear(4, 3)(x), missing, reduction="none")
    mixture = nn.Linear(4, 3)(x).softmax(-1) / 2 + 1 / 6
    loss = each[missing >= 0].mean() + F.nll_loss(mixture.log(), torch.randint(3, (6,)))
    loss = loss + F.mse_loss(nn.Linear(4, 3)(x).relu(), torch.rand(6, 3))
    (loss + F.l1_loss(nn.Linear(4, 3)(x).tanh(), missing)).backward()


PROGRAMS = [
    activations_and_their_losses,
    *(optimizers_that_wait, dropout_that_is_meant, loaders_with_workers, half_precision_in_parts),
    *(adversarial_networks, alternating_optimizers_of_one_loss, closures, clipped_accumulation, cleared_by_hand),
    *(sharpness_aware, target_networks, momentum_encoder, monte_carlo_dropout, averaged_weights, attacks, finetuning),
    *(an_image_is_optimized, unused_experts, pairs, losses, folds, a_row_of_an_embedding_is_zeroed, half_precision),
    *TRAININGS,
    wrapped_optimizer,
    layers_that_are_made_in_forward,
    half_precision_that_learns,
    *(resumed, weights_are_read_by_numpy, evaluation_without_no_grad, shapes_are_tried_first, weights_by_hand),
]


def found(program, *arguments):
    torch.manual_seed(0)
    check = Check()
    with amanda.apply(check):
        program(*arguments)
    assert check.skipped == {}
    assert "amanda.disabled" not in check.answer()
    return [str(one) for one in check.findings()]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_is_found(program):
    assert found(program) == []


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_nothing_is_found_in_checkpoints(use_reentrant):
    assert found(checkpoints, use_reentrant) == []
