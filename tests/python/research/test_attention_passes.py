"""Passes of the tools that prune attention: recomputation, models inside others, exceptions, threads and scopes."""

import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.pruning import CascadePruning
from attention_models import HEADS, TOKENS, Encoder, bert, gradients_of, used
from equal_tensors import same
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


class Checkpointed(Encoder):
    """Each layer is a checkpoint, or two layers, with one inside the other."""

    reentrant = False
    nested = False

    def forward(self, x):
        for one, two in zip(self.layers[::2], self.layers[1::2], strict=True):
            if self.nested:
                x = self.checkpointed(
                    lambda x, one=one, two=two: self.step(two, self.checkpointed(self.step, one, x)), x
                )
            else:
                x = self.checkpointed(self.step, two, self.checkpointed(self.step, one, x))
        return x

    def step(self, layer, x):
        return x + layer(x)

    def checkpointed(self, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=self.reentrant)


@pytest.mark.parametrize("nested", [False, True], ids=["side by side", "nested"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("shared", [False, True], ids=["own layers", "one layer"])
def test_a_layer_is_recomputed_with_its_tokens(shared, reentrant, nested):
    model = Encoder(shared=shared)
    recomputing = Checkpointed(shared=shared)
    recomputing.load_state_dict(model.state_dict())
    recomputing.reentrant, recomputing.nested = reentrant, nested
    inputs = [torch.randn(3, 9, 16).requires_grad_() for _ in range(2)]  # two passes before the first is recomputed
    with amanda.apply(CascadePruning(TOKENS, HEADS)):
        expected = gradients_of(model, model, *inputs)
        found = gradients_of(recomputing, recomputing, *inputs)
    same(found, expected)


def test_a_graph_that_runs_backward_twice_is_recomputed_twice():
    model = Checkpointed(shared=True)
    x = torch.randn(3, 9, 16)
    with amanda.apply(CascadePruning(TOKENS, HEADS)):
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        first = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        loss.backward()
    same([parameter.grad for parameter in model.parameters()], first)


def test_library_models_with_gradient_checkpointing():
    model, ids, found = bert(), torch.randint(3, 99, (2, 8)), []  # ALBERT has none
    for reentrant in (None, False, True):
        model.zero_grad()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        with amanda.apply(CascadePruning(TOKENS, HEADS)):
            model.train()(ids).last_hidden_state.square().sum().backward()
        found.append([parameter.grad for parameter in used(model)])
    same(found[1], found[0])
    same(found[2], found[0])


def test_a_model_that_is_called_twice_inside_another_is_named():
    class Siamese(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder(shared=True)

        def forward(self, pair):
            return [self.encoder(x) for x in pair]

    siamese, x, y = Siamese(), torch.randn(2, 9, 16), torch.randn(2, 9, 16)
    with amanda.apply(CascadePruning(TOKENS)):
        expected = [siamese.encoder(x), siamese.encoder(y)]
    pruning = CascadePruning(TOKENS, model=siamese.encoder)
    with amanda.apply(pruning):
        same(siamese((x, y)), expected)
    assert [row.layer for row in pruning.rows()] == [0, 1, 2, 3]
    assert pruning.kept_tokens.sum(1).tolist() == [5, 5]
    merged = CascadePruning(TOKENS)
    with amanda.apply(merged):
        assert not torch.equal(siamese((x, y))[1], expected[1])
    assert [row.layer for row in merged.rows()] == list(range(8))


def test_without_modules_a_pass_is_an_entry_of_the_scope():
    def program(x):
        for _ in range(3):
            x = F.scaled_dot_product_attention(x, x, x)
        return x

    x, pruning = torch.randn(2, 2, 5, 4), CascadePruning(0.5)
    with amanda.apply(pruning):
        first = program(x)
    with amanda.apply(pruning):
        same([program(x)], [first])
    assert [(row.layer, row.tokens_kept) for row in pruning.rows()] == [(0, 20), (1, 12), (2, 12)]


def test_an_exception_ends_a_pass():
    model, x = Encoder(shared=True), torch.randn(2, 9, 16)
    with amanda.apply(CascadePruning(TOKENS)):
        expected = model(x)
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 9, 15))
        handle = model.layers[0].out.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x)
        handle.remove()
        same([model(x)], [expected])


def test_threads_and_scopes_do_not_mix():
    model, inputs = Encoder(shared=True).eval(), torch.randn(4, 2, 9, 16)
    pruning, found, barrier = CascadePruning(TOKENS, HEADS), {}, threading.Barrier(4)
    with amanda.apply(pruning):
        expected = [model(x) for x in inputs]

    def run(index):
        with amanda.apply(pruning), torch.no_grad():
            barrier.wait()
            for _ in range(5):
                found[index] = model(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same([found[index] for index in range(4)], expected)
    with amanda.apply(pruning), amanda.apply(pruning):
        same([model(inputs[0])], expected[:1])
        with amanda.apply(pruning):
            same([model(inputs[1])], expected[1:2])
    assert sum(row.samples for row in pruning.rows()) == 4 * (8 + 40 + 4)
