"""Programs that look at what SubgraphRewriting skips, which must not notice.

Equal means torch.equal, on every tensor.
"""

import copy
import gc
import io
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.rewriting import SubgraphRewriting
from equal_tensors import same
from rewritten_layers import LINEAR_GELU, Layer, gelu_of

LOOKS = {
    "an operator": lambda h, y: y * h,
    "an operator alone": lambda h, y: h.neg(),
    "in place": lambda h, y: h.mul_(2) if not h.requires_grad else h.clone().mul_(2) + y,
    "a view that is written to": lambda h, y: (h.view(-1).add_(1), h * 1)[1],
    "a number": lambda h, y: y * h.detach().sum().item(),
    "a list": lambda h, y: y * h.tolist()[0][0],
    "numpy": lambda h, y: y * float(h.detach().numpy().sum()),
    "repr": lambda h, y: y * len(repr(h.detach())),
    "an address": lambda h, y: y * (h.data_ptr() != 0),
    "a comparison": lambda h, y: y * (h > 0),
    "a list of tensors": lambda h, y: torch.cat([h, y]),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("records", [True, False], ids=["recorded", "not recorded"])
def test_a_program_that_looks_at_what_was_skipped_does_not_notice(look, records):
    looks = False  # in the first run nobody does, and the layer is a match
    layer = Layer(lambda h, y: look(h, y) if looks else y)
    x, rewriting = torch.randn(3, 4, requires_grad=records), SubgraphRewriting(LINEAR_GELU, gelu_of)
    layer.requires_grad_(records)

    def step():
        layer.zero_grad()
        y = layer(x)
        return [y, *(torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) if records else [])]

    with amanda.apply(rewriting):
        step()
        looks = True
        found = [step() for _ in range(3)]
    expected = step()
    torch.testing.assert_close(found[0], expected)  # two gradients, of the function and of what was read, are summed
    for each in found[1:]:
        same(each, expected)
    (row,) = rewriting.rows()
    assert (row.rewritten, row.kept) == (1, 2)
    assert row.why.startswith("the result of aten::linear is read by aten::")
    (left_out,) = rewriting.evidence().unseen
    assert (left_out.reason, left_out.count) == ("unhandled", 1)
    assert left_out.text == f"1 operator ran as without the tool: {row.name} ({row.source}): {row.why}"


def test_what_is_known_without_the_elements_does_not_compute_them():
    def look(h, y):
        assert (h.shape, h.stride(), h.dtype, h.device.type, h.dim()) == ((3, 5), (5, 1), torch.float32, "cpu", 2)
        assert h.is_contiguous()
        assert h.requires_grad == y.requires_grad
        assert (h.grad_fn is None) == (y.grad_fn is None)
        assert isinstance(h, torch.Tensor)
        return y

    layer, rewriting = Layer(look), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(3):
            layer(torch.randn(3, 4))
            with torch.no_grad():
                layer(torch.randn(3, 4))
    (row,) = rewriting.rows()
    assert (row.rewritten, row.kept, row.why) == (4, 0, "")
    assert rewriting.evidence().is_complete


def test_what_was_returned_is_computed_when_it_is_read_even_outside_the_scope():
    layer, x = Layer(lambda h, y: (h, y)), torch.randn(3, 4, requires_grad=True)
    rewriting = SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        layer(x)
        h, _ = layer(x)
    assert rewriting.rows()[0].why == ""
    plain, _ = layer(x)
    same(
        torch.autograd.grad(h.sin().sum(), [x, layer.linear.weight]),
        torch.autograd.grad(plain.sin().sum(), [x, layer.linear.weight]),
    )
    with torch.no_grad(), amanda.apply(rewriting):
        layer(x)
        rewriting.reset()
        layer(x)
        h, _ = layer(x)
    stored = io.BytesIO()
    torch.save(h, stored)
    stored.seek(0)
    for found in (torch.load(stored), copy.deepcopy(h), h.cpu().clone(), torch.as_tensor(h.numpy())):
        assert type(found) is torch.Tensor
        assert torch.equal(found, plain)


def test_what_is_read_later_is_computed_in_the_modes_of_its_operator():
    layer, x, rewriting = Layer(lambda h, y: (h, y)), torch.randn(3, 4), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                h, _ = layer(x)
            with torch.no_grad():
                k, _ = layer(x)
    with torch.no_grad():
        found = h * 1
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, layer(x)[0])
        found = k * 1
    assert torch.equal(found, layer(x)[0])
    assert not found.requires_grad


def test_hooks_and_second_derivatives_of_what_was_skipped():
    looks, seen = False, []

    def look(h, y):
        if looks:
            h.register_hook(seen.append)
        return y * h if looks else y

    layer, x, rewriting = Layer(look), torch.randn(3, 4, requires_grad=True), SubgraphRewriting(LINEAR_GELU, gelu_of)

    def derivatives():
        y = layer(x)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return [y, first, *torch.autograd.grad(first.square().sum(), [x, layer.linear.weight])]

    with amanda.apply(rewriting):
        layer(x)
        looks = True
        found = derivatives()
    hooked, h = seen[0], F.linear(x, layer.linear.weight, layer.linear.bias)
    torch.testing.assert_close(found, derivatives())
    leaf = h.detach().requires_grad_()
    (2 * F.gelu(h).detach().square() * leaf.square() / 2).sum().backward()  # with the other factor held
    torch.testing.assert_close(hooked, leaf.grad)


def test_inputs_that_depend_on_each_other_have_their_gradients_once():
    x = torch.randn(3, 4, requires_grad=True)

    @amanda.root
    def gradient():
        left = x * 2
        h = left @ (left + 1).t()  # the right factor is made of the left one
        (found,) = torch.autograd.grad((torch.relu(h) + (h.sin() if looks else 0)).sum(), x)
        return found

    looks, rewriting = False, SubgraphRewriting(["matmul", "relu"], lambda h, y: torch.relu(h.self @ h.other))
    with amanda.apply(rewriting):
        gradient()
        looks = True
        found = gradient()
    assert rewriting.rows()[0].rewritten == 1
    torch.testing.assert_close(found, gradient())


CHAINS = {
    "both are read": lambda h, k, y: h.sin() + k.sin() + y,
    "the first one is read before": lambda h, k, y: (h * 2 + k) * y,
    "the first one is written to": lambda h, k, y: h.mul_(2) + k + y,
    "the second one is written to": lambda h, k, y: k.mul_(2) + h + y,
    "a view of the first one is written to": lambda h, k, y: h.view(-1).add_(1).view(3, 5) + h + k + y,
}


@pytest.mark.parametrize("look", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("early", [True, False], ids=["before the last one", "after it"])
def test_a_longer_chain_of_skipped_operators(look, early):
    looks = False

    def written(x, weight):
        h = x @ weight
        k = torch.neg(h)
        if looks and early:
            seen = look(h, k, 1)
            return torch.tanh(k) + seen
        y = torch.tanh(k)
        return look(h, k, y) if looks else y

    @amanda.root
    def step():
        x, weight = torch.ones(3, 4).cumsum(0).requires_grad_(), torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        left = x * 1
        y = written(left, weight)
        return [y, *torch.autograd.grad(y.square().sum(), [x, left, weight])]

    rewriting = SubgraphRewriting(["matmul", "neg", "tanh"], lambda m, n, t: torch.tanh(-(m.self @ m.other)))
    with amanda.apply(rewriting):
        step()
        looks = True
        found = step()
    torch.testing.assert_close(found, step())
    assert rewriting.rows()[0].why


def test_module_hooks_get_tensors():
    layer, seen, rewriting = Layer(), [], SubgraphRewriting(LINEAR_GELU, gelu_of)
    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x)
        handle = layer.linear.register_forward_hook(lambda module, inputs, output: seen.append(output.mean()))
        found = layer(x)
    handle.remove()
    assert torch.equal(seen[0], layer.linear(x).mean())
    assert torch.equal(found, layer(x))


def test_before_an_input_is_written_to_what_needs_it_is_computed():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    writes = False

    @amanda.root
    def program():
        x = torch.ones(3, 4)
        h = layer.linear(x)
        if writes:
            x[1:].zero_()
        return F.gelu(h)

    for mode in (torch.no_grad, torch.inference_mode):
        writes = False
        rewriting.reset()
        with amanda.apply(rewriting), mode():
            program()
            writes = True
            found = program()
            assert torch.equal(found, F.gelu(layer.linear(torch.ones(3, 4))))
        assert (
            rewriting.rows()[-1].why
            == "the result of aten::linear is read by nobody yet, but aten::zero_ writes to an input"
        )


def test_a_write_that_nobody_saw_is_an_error_not_a_wrong_result():
    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.ones(3, 4)
    writes = False

    @amanda.root
    def program():
        h = layer.linear(x)
        if writes:
            with amanda.disabled():
                x.zero_()
        return F.gelu(h)

    with amanda.apply(rewriting):
        program()
        writes = True
        with pytest.raises(
            amanda.Error, match=r"\[rewriting\] an input of aten::linear was written to after the operator"
        ):
            program()


def test_memory_of_what_was_skipped_is_freed():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=True)
            gone = weakref.ref(x)
            layer(x).sum().backward()
            del x
    gc.collect()
    assert gone() is None
    assert len(rewriting._pending) == 0
