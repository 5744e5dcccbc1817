"""Tools that must change nothing, on what is out of the ordinary: found by PyTorch's own tests and by `make sweep`."""

import amanda
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from faithful import Look, RunOriginal


def after_only():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda *values: None), nested=True)
    return tool


@pytest.mark.parametrize("look", [Look, after_only])
def test_assignment_to_a_part_of_a_parameter(look):
    x = torch.ones(3, 2, requires_grad=True)
    with amanda.apply(look()), torch.no_grad():
        x[0] = torch.zeros(2)
    assert x.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert x.is_leaf


def test_an_in_place_operator_under_a_mode_of_the_program():
    a = torch.ones(2, requires_grad=True)
    with amanda.apply(Look()), torch.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        loss = (b**2).sum()
        b.sin_()
        loss.backward()
    assert a.grad.tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_in_place_operator_on_a_nested_tensor():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    with amanda.apply(Look()):
        x = nested.clone()
        x.add_(x)
    assert [part.tolist() for part in x.unbind()] == [[2.0] * 2, [2.0] * 3]


def test_forward_mode_under_the_older_vmap():
    def hessian():
        options = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
        return torch.autograd.functional.hessian(lambda x: (3 * x**2).sum(), torch.ones(2), **options)

    with amanda.apply(Look()):
        assert torch.equal(hessian(), 6 * torch.eye(2))


def test_gradcheck_in_forward_mode():
    x = torch.rand(2, 2, dtype=torch.complex128, requires_grad=True)
    with amanda.apply(Look()):
        assert torch.autograd.gradcheck(torch.diagonal, (x,), check_forward_ad=True)


def test_forward_mode():
    with amanda.apply(Look()), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.full((2,), 3.0))
        primal, tangent = forward_ad.unpack_dual(dual.mul(2).add_(1).sin_())
    assert torch.equal(tangent, torch.cos(torch.full((2,), 3.0)) * 6)
    assert torch.equal(primal, torch.sin(torch.full((2,), 3.0)))


def test_a_hook_that_a_node_gets_while_it_runs():
    """The engine keeps a node's inputs if there is a hook after it; while an analysis is pending none is needed."""
    inputs_were_kept = []

    class WhileUnpacking(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self):
            super().__init__(lambda tensor: tensor, self.unpack)

        def unpack(self, tensor):
            node = torch._C._current_autograd_node()
            node.register_hook(lambda _, inputs: inputs_were_kept.append(any(i is not None for i in inputs)))
            return tensor

    before_only = amanda.Tool()
    before_only.add_inst_for_op(lambda c: c.insert_before_backward_op(lambda *values: None), backward=True)
    x = torch.rand(3, requires_grad=True)
    with amanda.apply(before_only), WhileUnpacking():
        x.sin().sum().backward()
    assert inputs_were_kept == [False]


def test_a_backward_operator_that_copy_slices_leads_to_replaced_by_itself():
    x = torch.ones(1, 2, 4, requires_grad=True)
    with amanda.apply(RunOriginal()):
        for _ in range(2):  # decided in the first, put in in the second
            torch.nn.functional.pad(x, (1, 1), mode="circular").sum().backward()
    assert x.grad[0, 0].tolist() == [4.0, 2.0, 2.0, 4.0]


def test_an_in_place_operator_between_views_of_one_tensor_replaced_by_itself():
    base = torch.arange(4.0)
    with amanda.apply(RunOriginal()):
        base[:2].copy_(base[2:])
    assert base.tolist() == [2.0, 3.0, 2.0, 3.0]


@pytest.mark.parametrize("value", [True, 3, 2.5, 1 + 2j])
def test_a_number_replaced_by_itself(value):
    with amanda.apply(RunOriginal()):
        got = torch.tensor(value).item()
    assert (type(got), got) == (type(value), value)


def test_an_in_place_operator_without_a_formula_on_a_view_of_a_leaf():
    library = torch.library.Library("amanda_test_looking", "FRAGMENT")
    library.define("zero_out(Tensor(a!) x) -> Tensor(a!)")
    library.impl("zero_out", torch.no_grad()(lambda x: x.zero_()), "CPU")
    x = torch.ones(3, requires_grad=True)
    with amanda.apply(Look()):
        y = torch.ops.amanda_test_looking.zero_out(x[:])  # autograd would refuse an operator that it knows
    assert y.tolist() == [0.0] * 3
    assert y.grad_fn.name() == "AsStridedBackward0"


class Keep(amanda.Tool):
    """Keeps all gradients that it is shown, and copies of them as they were then."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.add_inst_for_op(self.analyse, backward=True)

    def analyse(self, context):
        self.keep(*context.grad_outputs)
        context.insert_before_backward_op(self.keep)
        context.insert_after_backward_op(self.keep)

    def keep(self, *gradients):
        self.kept += [(each, each.clone()) for each in gradients if each is not None]


def test_a_gradient_that_a_tool_keeps_stays_as_it_was():
    """AccumulateGrad takes over a gradient without other references, and adds to it in the next pass."""

    def train(leaf):
        for _ in range(3):
            ((leaf * leaf).sum() + leaf.exp().sum()).backward()
        return leaf.grad

    start = torch.rand(5)
    expected = train(start.clone().requires_grad_())
    tool = Keep()
    with amanda.apply(tool):
        assert torch.equal(train(start.clone().requires_grad_()), expected)
    assert len(tool.kept) > 20
    assert all(torch.equal(kept, then) for kept, then in tool.kept)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:The PyTorch API of nested tensors")
def test_nested_tensors_under_vmap():
    batch = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    expected = torch.vmap(torch.sin)(batch)
    with amanda.apply(Look()):
        got = torch.vmap(torch.sin)(batch)
    assert got.is_nested
    assert all(torch.equal(a, b) for a, b in zip(got.unbind(), expected.unbind(), strict=True))
