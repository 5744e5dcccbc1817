"""Check finds nothing in right programs that look like the mistakes of loaders, schedules, heads and adversaries."""

import copy
import functools
import gc
import itertools
import sysconfig

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from amanda.tools.check.rules import optimizer_made_anew
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def net(*sizes):
    layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def adam(*models):
    return torch.optim.Adam([one for model in models for one in model.parameters()])


def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()


def a_head_on_a_frozen_model_in_evaluation_mode():
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(body, nn.Linear(8, 3)).eval()
    train(model, adam(model[1]))


def critic_and_actor_share_an_encoder():
    """The encoder, in the optimizer of the critic, is trained by both losses."""
    encoder, actor, critic = net(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    of_actor, of_critic = adam(actor), adam(encoder, critic)
    for _ in range(5):
        hidden = encoder(torch.randn(6, 4))
        F.cross_entropy(actor(hidden.relu()), torch.randint(3, (6,))).backward(retain_graph=True)
        of_actor.step()
        of_actor.zero_grad()
        critic(hidden).square().mean().backward()
        of_critic.step()
        of_critic.zero_grad()


def several_steps_of_a_critic():
    generator, critic = net(3, 8, 4), net(4, 8, 1)
    of_generator, of_critic = adam(generator), adam(critic)
    for step in range(12):
        of_critic.zero_grad()
        made = generator(torch.randn(6, 3))
        (critic(made.detach()).mean() - critic(torch.randn(6, 4)).mean()).backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        of_critic.step()
        if step % 3 == 2:
            of_generator.zero_grad()
            critic(made).mean().neg().backward()
            of_generator.step()


def one_loss_and_two_optimizers():
    encoder, head = net(4, 8, 4), nn.Linear(4, 3)
    both = adam(encoder), adam(head)
    for _ in range(5):
        F.cross_entropy(head(encoder(torch.randn(6, 4))), torch.randint(3, (6,))).backward()
        for one in both:
            nn.utils.clip_grad_norm_(one.param_groups[0]["params"], 1.0)
            one.step()
            one.zero_grad()


def a_part_is_clipped_that_has_no_gradient():
    model, other = net(4, 8, 3), nn.Linear(4, 4)
    optimizer = adam(model)
    for _ in range(4):
        optimizer.zero_grad()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()


def gradients_are_unscaled_by_the_program():
    model = net(4, 8, 3)
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for by_hand in (False, True, False, True, True, False):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
        scaler.scale(loss).backward()
        if by_hand:
            for one in model.parameters():
                one.grad.div_(1024.0)
        else:
            scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update(1024.0)


def batches_of_loaders():
    """A pass in the same order over each epoch's data, a look at one batch, and one batch that is learned by heart."""
    data = TensorDataset(torch.randn(12, 4), torch.randint(3, (12,)))
    loader, shown = DataLoader(data, 4), DataLoader(data, 6)
    model = net(4, 8, 3)
    optimizer = adam(model)
    x, y = next(iter(loader))
    for _ in range(6):
        for batch, labels in loader:
            optimizer.zero_grad()
            (F.cross_entropy(model(batch), labels) + F.cross_entropy(model(x), y)).backward()
            optimizer.step()
        with torch.no_grad():
            model(next(iter(shown))[0])


def random_batches():
    """Each is the first one of a new order."""
    loader = DataLoader(TensorDataset(torch.randn(12, 4)), 4, shuffle=True)
    model = net(4, 8, 3)
    for _ in range(6):
        model(next(iter(loader))[0])


def samplers_of_ranks():
    data = TensorDataset(torch.randn(12, 4), torch.randint(3, (12,)))
    sampler, in_order = DistributedSampler(data, 2, 0), DistributedSampler(data, 2, 0, shuffle=False)
    model = net(4, 8, 3)
    optimizer = adam(model)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for each in (DataLoader(data, 3, sampler=sampler), DataLoader(data, 3, sampler=in_order)):
            for batch, labels in each:
                optimizer.zero_grad()
                F.cross_entropy(model(batch), labels).backward()
                optimizer.step()
        for batch, _ in DataLoader(data, 3, sampler=sampler):  # how well it has learned
            model(batch)


def evaluation_by_samplers_that_shuffle():
    data = TensorDataset(torch.randn(12, 4), torch.randint(3, (12,)))
    sampler, for_evaluation = DistributedSampler(data, 1, 0), DistributedSampler(data, 1, 0)
    kept = DataLoader(data, 4, sampler=for_evaluation, num_workers=1, persistent_workers=True)
    model = net(4, 8, 3)
    optimizer = adam(model)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, 4, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
        for loader in (DataLoader(data, 4, sampler=for_evaluation), kept):
            with torch.no_grad():
                for batch, _ in loader:
                    model(batch)


def one_batch_for_a_look_at_each_step():
    data = TensorDataset(torch.randn(12, 4), torch.randint(3, (12,)))
    loader, model = DataLoader(data, 4), net(4, 8, 3)
    optimizer = adam(model)
    for _ in range(6):
        train(model, optimizer, 1)
        with torch.no_grad():
            model(next(iter(loader))[0])


def optimizers_with_a_scaler_and_without():
    """The other one steps first; steps of the scaler are left out; gradients are unscaled by hand, and clipped."""
    for scale in (1024.0, 1e38):
        model, other = net(4, 8, 3), net(4, 8, 3)
        optimizer, of_other, scaler = adam(model), adam(other), torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer.zero_grad()
        optimizer.step()
        for number in range(6):
            optimizer.zero_grad()
            of_other.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = 1000 * F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
            scaler.scale(loss).backward()
            F.cross_entropy(other(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
            steps = [of_other.step, functools.partial(scaler.step, optimizer)]
            for step in steps if number < 3 else reversed(steps):
                step()
            scaler.update()


def gradients_of_a_scaled_loss_are_set():
    model = net(4, 8, 3)
    optimizer, scaler, weights = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0), [*model.parameters()]
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
        for weight, gradient in zip(weights, torch.autograd.grad(scaler.scale(loss), weights), strict=True):
            weight.grad = gradient / 1024.0
        optimizer.step()


def models_one_after_another():
    """Python gives the ids of one that is gone to the next."""
    for _ in range(6):
        model = net(4, 8, 3)
        train(model, adam(model), 2)
        del model
        gc.collect()
        other = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Linear(8, 3))
        with torch.no_grad():
            other(torch.randn(6, 4))  # is never trained
        other.load_state_dict(other.state_dict())
        del other


def all_models_get_the_state_of_one():
    models = [net(4, 8, 3) for _ in range(3)]
    for _ in range(2):
        for model in models:
            train(model, adam(model), 2)
        for model in models:
            model.load_state_dict(models[0].state_dict())


def layers_that_are_tied():
    model = nn.Sequential(*[nn.Linear(4, 4)] * 3, nn.Linear(4, 3))
    train(model, adam(model))


class Frequencies(nn.Module):
    def __init__(self, is_buffer):
        super().__init__()
        self.gate, self.last = nn.Linear(4, 1), nn.Linear(6, 3)
        if is_buffer:
            self.register_buffer("frequencies", torch.arange(6.0))
        else:
            self.frequencies = torch.arange(6.0)

    def forward(self, x):
        return self.last((self.gate(x) * self.frequencies).sin() + (self.gate(x) - self.frequencies).cos())


def as_many_frequencies_as_examples():
    for model in (Frequencies(True), Frequencies(False)):
        train(model, adam(model))
    torch.outer(nn.Linear(4, 1)(torch.randn(6, 4)).squeeze(1), torch.randn(6)).sum().backward()


def schedules():
    """Warm-ups whose first factor is the rate, one that ends near zero, and one of steps that are rare."""
    for make in (
        lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: min(1.0, (step + 1) / 1000)),
        lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1e-3 if step < 100 else 1.0),
        lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 40),
        lambda one: torch.optim.lr_scheduler.ExponentialLR(one, 0.7),
    ):
        model = net(4, 8, 3)
        optimizer = adam(model)
        scheduler = make(optimizer)
        for _ in range(40):
            train(model, optimizer, 1)
            scheduler.step()


def states_are_loaded():
    """Of the best epoch, of a part, and of another model."""
    model, other = net(4, 8, 3), net(4, 8, 3)
    best = copy.deepcopy(model.state_dict())
    train(model, adam(model))
    part = model.state_dict()
    part.update({"2.bias": torch.zeros(3)})
    model.load_state_dict(part)
    other.load_state_dict(model.state_dict())
    model.load_state_dict(best)


def layers_that_are_shared_on_purpose():
    """Heads of one module, as of DETR, an activation, and a layer that is called in a loop."""
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    model = nn.ModuleDict({"heads": nn.ModuleList([head] * 3), "acts": nn.Sequential(*[nn.ReLU()] * 2), "body": body})
    model["body"].requires_grad = True
    optimizer = adam(model)
    for _ in range(3):
        optimizer.zero_grad()
        hidden, labels, loss = torch.randn(6, 4), torch.randint(3, (6,)), 0
        for one in model["heads"]:
            hidden = model["acts"](body(hidden)) + hidden
            loss = loss + F.cross_entropy(one(hidden), labels)
        loss.backward()
        optimizer.step()


def losses_of_pairs():
    """A temperature, also of 1; a soft target that is learned; two views; a mean that is weighted as a whole."""
    model = net(4, 8, 5)
    one, other = (F.normalize(model(torch.randn(9, 4)), dim=1) for _ in range(2))
    labels = torch.arange(9)
    loss = sum(F.cross_entropy(one @ other.T / each, labels) for each in (0.1, 1.0))
    loss = loss + F.cross_entropy(model(torch.randn(6, 4)), model(torch.randn(6, 4)).softmax(1))
    loss = loss + F.mse_loss(model(torch.randn(6, 4)), 0.9 * model(torch.randn(6, 4)))
    (loss * torch.tensor([0.5])).sum().backward()


def ordered_classes_that_are_not_learned_in_order():
    """Those of an evaluation that autograd records; five domains for each step; and one example of a rare class."""
    model, data, labels = net(4, 8, 5), torch.randn(30, 4), torch.arange(30) // 10
    optimizer = adam(model)
    for _ in range(3):
        optimizer.zero_grad()
        for domain in range(5):
            F.cross_entropy(model(torch.randn(6, 4)), torch.full((6,), domain)).backward()
        optimizer.step()
        for part in range(0, 30, 5):
            F.cross_entropy(model(data[part : part + 5]), labels[part : part + 5]).item()
    for step in range(14):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, int(step == 9)])).backward()
        optimizer.step()


def classes_of_batches():
    """In order in each batch, as in few-shot learning; real and made examples in turns; one class alone."""
    model = net(4, 8, 3)
    for step in range(16):
        F.cross_entropy(model(torch.randn(9, 4)), torch.arange(3).repeat_interleave(3)).backward()
        F.cross_entropy(model(torch.randn(9, 4)), torch.full((9,), step % 2)).backward()
        F.cross_entropy(model(torch.randn(9, 4)), torch.full((9,), 2)).backward()


def shapes_that_are_meant():
    """Labels of pairs, products of pairs, one-hot by comparison, and views that keep examples apart."""
    model, labels = net(4, 8, 3), torch.tensor([0, 1, 2])
    scores = model(torch.randn(3, 4))
    predicted = scores.argmax(1)
    assert (labels[:, None] == labels).shape == (predicted[:, None] == labels).shape == (3, 3)
    assert (predicted == labels).shape == (scores.argmax(1, keepdim=True) == labels[:, None]).squeeze().shape
    weights = nn.Parameter(torch.randn(3)).exp()
    (
        scores.sum() + (scores.logsumexp(1) * torch.randn(3)[:, None]).sum() + (weights * torch.randn(3, 1)).sum()
    ).backward()
    _, (state, _) = nn.LSTM(4, 8, num_layers=2, bidirectional=True)(torch.randn(5, 3, 4))
    state.view(2, 2, 3, 8)[-1].transpose(0, 1).reshape(3, 16), state.view(12, 8)
    _, (state, _) = nn.LSTM(4, 8, num_layers=2, bidirectional=True)(torch.randn(5, 2, 4))  # as many examples as layers
    state.view(2, 2, 2, 8)[:, 0]
    nn.GRU(4, 8)(torch.randn(5, 3, 4))[1].view(3, 8)
    torch.randn(2, 9, 10, 3).view(2, 90, 3), torch.randn(2, 9, 10, 3).permute(0, 3, 1, 2).reshape(2, 3, 9, 10)


def values_of_a_target_network():
    """Of a network that is frozen, and of the same one without gradients. And an equation that holds for two points."""
    value = net(4, 8, 3)
    target = copy.deepcopy(value).requires_grad_(False)
    optimizer = adam(value)
    for _ in range(4):
        optimizer.zero_grad()
        mine = value(torch.randn(6, 4)).gather(1, torch.randint(3, (6, 1))).squeeze(1)
        theirs = target(torch.randn(6, 4)).max(1)[0]
        loss = F.smooth_l1_loss(mine, torch.randn(6) + 0.9 * theirs)
        (loss + F.mse_loss(mine, torch.randn(6) + 0.9 * value(torch.randn(6, 4)).max(1)[0].detach())).backward()
        F.mse_loss(value(torch.randn(6, 4)), 0.9 * value(torch.randn(6, 4)) + torch.randn(6, 3)).backward()
        optimizer.step()


PROGRAMS = [
    *(a_head_on_a_frozen_model_in_evaluation_mode, critic_and_actor_share_an_encoder, several_steps_of_a_critic),
    *(one_loss_and_two_optimizers, a_part_is_clipped_that_has_no_gradient, gradients_are_unscaled_by_the_program),
    *(batches_of_loaders, random_batches, samplers_of_ranks, schedules, states_are_loaded),
    *(layers_that_are_shared_on_purpose, losses_of_pairs, classes_of_batches, shapes_that_are_meant),
    *(values_of_a_target_network, evaluation_by_samplers_that_shuffle, one_batch_for_a_look_at_each_step),
    *(optimizers_with_a_scaler_and_without, gradients_of_a_scaled_loss_are_set, models_one_after_another),
    *(all_models_get_the_state_of_one, layers_that_are_tied, as_many_frequencies_as_examples),
    ordered_classes_that_are_not_learned_in_order,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_is_found(program):
    torch.manual_seed(0)
    with amanda.apply(Check()) as check:
        program()
    assert check.skipped == {}
    assert [str(one) for one in check.findings()] == []


def test_loaders_are_left_as_they_were():
    plain = DataLoader.__iter__
    with amanda.apply(Check(only=["labels"])):
        assert DataLoader.__iter__ is plain  # no rule asks for passes
    first, second = Check(only=["epoch-not-set"]), Check(only=["first-batch-only"])
    with amanda.apply(first), amanda.apply(second):
        assert DataLoader.__iter__ is not plain
        assert [one.tolist() for (one,) in DataLoader(TensorDataset(torch.arange(4)), 2)] == [[0, 1], [2, 3]]
    assert DataLoader.__iter__ is plain


def test_a_library_may_take_one_batch_of_each_pass():
    """As trainers do that are asked for a short run."""
    loader = DataLoader(TensorDataset(torch.arange(12)), 4)
    code = "for _ in range(6): next(iter(loader))"
    for file, count in ((f"{sysconfig.get_path('purelib')}/trainer.py", 0), ("program.py", 1)):
        with amanda.apply(Check(only=["first-batch-only"])) as check:
            exec(compile(code, file, "exec"), {"loader": loader})
        assert len(check.findings()) == count


def test_copies_that_take_one_step(monkeypatch):
    """Of meta-learning. The parameters of one copy may be where those of another were."""
    monkeypatch.setattr(optimizer_made_anew, "id", lambda one: 7, raising=False)
    model, check = net(4, 8, 3), Check(only=["optimizer-made-anew"])
    with amanda.apply(check):
        for _ in range(16):
            copied = copy.deepcopy(model)
            train(copied, adam(copied), steps=1)
            del copied
    assert check.findings() == []
