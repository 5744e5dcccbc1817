"""MagnitudePruning and VectorwisePruning: masks against torch's and an exhaustive search, training against loops by hand.

Equal means torch.equal, on every tensor.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import copy
import gc
import math
import re
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning, WeightPruning
from equal_tensors import same
from pruned_by_hand import l1_mask, search_of_six
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
each_optimizer = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Masks(amanda.Tool):
    """What the pruning tool left in the contexts, by module."""

    def __init__(self, pruning):
        super().__init__()
        self.masks = {}
        self.depends_on(pruning)
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        if "mask" in context:
            self.masks[context.module_path, context.op.__name__] = context["mask"]


def masks_of(pruning, program):
    tool = Masks(pruning)
    with amanda.apply(tool):
        program()
    return tool.masks


def mask_of(pruning, program):
    (mask,) = masks_of(pruning, program).values()
    return mask


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.995, 1.0])
@pytest.mark.parametrize("shape", [(7, 5), (8, 3, 3, 3), (1, 1)])
def test_magnitude_masks_are_those_of_torchs_prune(shape, sparsity):
    weight = torch.nn.Parameter(torch.randn(shape))
    call = F.conv2d if len(shape) == 4 else F.linear
    x = torch.randn(2, shape[1], 5, 5)[(...,) if len(shape) == 4 else (..., 0, 0)]
    mask = mask_of(MagnitudePruning(sparsity), lambda: call(x, weight))
    assert torch.equal(mask, l1_mask(weight, sparsity))


def test_equal_magnitudes_are_pruned_as_torch_does():
    weight = torch.nn.Parameter(torch.randint(-2, 3, (40, 40)).float())
    mask = mask_of(MagnitudePruning(0.5), lambda: F.linear(torch.ones(1, 40), weight))
    assert torch.equal(mask, l1_mask(weight, 0.5))


def test_the_mask_has_the_weights_dtype_and_layout():
    weight = torch.randn(4, 4, 3, 3).bfloat16().to(memory_format=torch.channels_last)
    for tool in (MagnitudePruning(0.5), VectorwisePruning()):
        mask = mask_of(tool, lambda: F.conv2d(torch.randn(1, 4, 3, 3).bfloat16(), weight))
        assert (mask.dtype, mask.stride()) == (weight.dtype, weight.stride())
        assert mask.sum() == weight.numel() / 2


@pytest.mark.parametrize(
    ("name", "dim", "x", "weight"),
    [
        ("linear", 1, (2, 8), (3, 8)),
        ("linear", 1, (2, 5, 6), (3, 6)),
        ("linear", 1, (2, 1), (3, 1)),
        ("linear", 1, (2, 7), (1, 7)),
        ("conv1d", 1, (2, 6, 9), (4, 6, 3)),
        ("conv2d", 1, (2, 8, 5, 5), (3, 8, 3, 2)),
        ("conv2d", 1, (2, 9, 5, 5), (3, 9, 1, 1)),
        ("conv3d", 1, (1, 5, 3, 3, 3), (2, 5, 2, 2, 2)),
        ("conv_transpose2d", 0, (2, 6, 4, 4), (6, 3, 2, 2)),
        ("matmul", 0, (2, 3, 10), (10, 3)),
        ("matmul", 1, (5, 2, 10), (5, 10, 3)),
        ("mm", 0, (3, 8), (8, 5)),
        ("bmm", 1, (2, 3, 7), (2, 7, 3)),
    ],
)
def test_vectorwise_masks_are_the_best_of_all_six_patterns(name, dim, x, weight):
    x, weight = torch.randn(x), torch.nn.Parameter(torch.randn(weight))
    call = getattr(F, name, None) or getattr(torch, name)
    mask = mask_of(VectorwisePruning(), lambda: call(x, weight))
    assert torch.equal(mask, search_of_six(weight, dim))


def test_vectorwise_masks_of_factors_on_the_left_and_of_addmm():
    left, right = torch.nn.Parameter(torch.randn(3, 6)), torch.nn.Parameter(torch.randn(6, 4))
    x, bias = torch.randn(6, 2), torch.nn.Parameter(torch.randn(5, 4))
    assert torch.equal(mask_of(VectorwisePruning(), lambda: left @ x), search_of_six(left, 1))
    assert torch.equal(mask_of(VectorwisePruning(), lambda: left @ right), search_of_six(right, 0))
    mask = mask_of(VectorwisePruning(), lambda: torch.addmm(bias, torch.randn(5, 6), right))
    assert torch.equal(mask, search_of_six(right, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectorwise_masks_in_other_dtypes(dtype):
    weight = torch.randn(16, 32).to(dtype)
    mask = mask_of(VectorwisePruning(), lambda: F.linear(torch.ones(1, 32, dtype=dtype), weight))
    exact = search_of_six(weight.float() if dtype != torch.float64 else weight, 1)
    assert torch.equal(mask, exact.to(dtype))


def test_ties_and_zeros_keep_the_first_pattern():
    weight = torch.tensor([[0.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 2, -3, 3, 3, 0]])
    mask = mask_of(VectorwisePruning(), lambda: F.linear(torch.ones(1, 16), weight))
    assert mask.tolist() == [[1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0]]


def test_a_mask_of_ones_own():
    class Upper(WeightPruning):
        def get_mask(self, weight, dim):
            return torch.ones_like(weight).triu()

    layer = torch.nn.Linear(4, 4)
    with amanda.apply(Upper()):
        found = layer(torch.eye(4))
    assert torch.equal(found, F.linear(torch.eye(4), layer.weight.triu(), layer.bias))


# ---- training --------------------------------------------------------------------------------------------------------


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, groups=2, bias=False)
        self.fc1 = torch.nn.Linear(8 * 16, 12)
        self.fc2 = torch.nn.Linear(12, 4)

    def forward(self, x):
        x = self.conv2(F.relu(self.norm(self.conv1(x))))
        return self.fc2(F.relu_(self.fc1(x.flatten(1))))


class Sequence(torch.nn.Module):
    """3-D linear, with and without a bias."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 16)
        self.down = torch.nn.Linear(16, 6, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


MODELS = {"conv": (Convolutional, (5, 3, 8, 8)), "sequence": (Sequence, (5, 7, 6))}
each_model = pytest.mark.parametrize(("make_model", "shape"), MODELS.values(), ids=MODELS)


def train(model, shape, make_optimizer, steps=20):
    """Losses of some steps, and the last gradients."""
    generator = torch.Generator().manual_seed(1)
    optimizer, losses = make_optimizer(model.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(model(torch.randn(shape, generator=generator)).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


def results(model):
    """Parameters, gradients and buffers by the names that they had before torch's prune came."""
    named = [*model.named_parameters(), *model.named_buffers()]
    values = {name.removesuffix("_orig"): value for name, value in named if not name.endswith("_mask")}
    gradients = {name.removesuffix("_orig"): parameter.grad for name, parameter in model.named_parameters()}
    return [*(values[name] for name in sorted(values)), *(gradients[name] for name in sorted(gradients))]


@each_optimizer
@each_model
def test_training_is_that_of_torchs_prune(make_model, shape, make_optimizer):
    model = make_model()
    by_torch = copy.deepcopy(model)
    for module in list(by_torch.modules()):
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            prune.l1_unstructured(module, "weight", amount=0.6)
    expected = train(by_torch, shape, make_optimizer)
    with amanda.apply(MagnitudePruning(0.6)):
        losses = train(model, shape, make_optimizer)
    same(losses + results(model), expected + results(by_torch))


@each_optimizer
@each_model
def test_two_of_four_trains_as_a_loop_that_masks_weights_and_gradients_by_hand(make_model, shape, make_optimizer):
    model = make_model()
    by_hand = copy.deepcopy(model)
    layers = [m for m in by_hand.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    masks = [search_of_six(layer.weight, 1) for layer in layers]
    generator, optimizer, expected = torch.Generator().manual_seed(1), make_optimizer(by_hand.parameters()), []
    for _ in range(20):
        optimizer.zero_grad()
        dense = [layer.weight.detach().clone() for layer in layers]
        for layer, mask in zip(layers, masks, strict=True):
            layer.weight.data.mul_(mask)
        expected.append(by_hand(torch.randn(shape, generator=generator)).square().mean())
        expected[-1].backward()
        for layer, mask, weight in zip(layers, masks, dense, strict=True):
            layer.weight.data.copy_(weight)
            layer.weight.grad.mul_(mask)
        optimizer.step()
    with amanda.apply(VectorwisePruning()):
        losses = train(model, shape, make_optimizer)
    same(losses + results(model), [loss.detach() for loss in expected] + results(by_hand))


FUNCTIONAL = {
    "linear": ((4, 6), (3, 6), F.linear),
    "linear 3d": ((4, 2, 6), (3, 6), F.linear),
    "conv2d": ((2, 4, 5, 5), (3, 4, 3, 3), lambda x, w: F.conv2d(x, w, padding="same")),
    "matmul": ((4, 6), (6, 3), torch.matmul),
    "view": ((4, 6), (3, 6), lambda x, w: x @ w.t()),
    "addmm": ((4, 6), (6, 3), lambda x, w: torch.addmm(torch.ones(3), x, w)),
    "conv_transpose1d": ((2, 4, 5), (4, 3, 3), F.conv_transpose1d),
}


@each_optimizer
@pytest.mark.parametrize(("x", "weight", "function"), FUNCTIONAL.values(), ids=FUNCTIONAL)
def test_functional_programs_train_as_their_masked_loop(x, weight, function, make_optimizer):
    x, weight = torch.randn(x), torch.nn.Parameter(torch.randn(weight))
    by_hand = torch.nn.Parameter(weight.detach().clone())
    # flatten() of a transposed view meets ties in another order, but random floats have none
    mask = l1_mask(weight, 0.5)
    optimizer, gradients = make_optimizer([by_hand]), []
    for _ in range(5):
        optimizer.zero_grad()
        masked = (by_hand.detach() * mask).requires_grad_()
        function(x, masked).square().sum().backward()
        by_hand.grad = masked.grad * mask
        gradients.append(by_hand.grad.clone())
        optimizer.step()
    optimizer, found = make_optimizer([weight]), []
    with amanda.apply(MagnitudePruning(0.5)):
        for _ in range(5):
            optimizer.zero_grad()
            function(x, weight).square().sum().backward()
            found.append(weight.grad.clone())
            optimizer.step()
    same([*found, weight], [*gradients, by_hand])


def test_each_user_of_a_tied_weight_masks_its_own_share_of_the_gradient():
    class First(WeightPruning):  # the rows that the first layer prunes are not those of the second
        def get_mask(self, weight, dim):
            return first if len(made) == 0 else second

        def _analyze(self, context):
            super()._analyze(context)
            made.append(context.op_id)

    weight, x, made = torch.nn.Parameter(torch.randn(4, 4)), torch.randn(2, 4), []
    first, second = torch.ones(4, 4).triu(), torch.ones(4, 4).tril()
    with amanda.apply(First()):
        for _ in range(3):
            weight.grad = None
            F.linear(F.linear(x, weight), weight).sum().backward()
    found = weight.grad.clone()
    weight.grad = None
    one, two = ((weight.detach() * mask).requires_grad_() for mask in (first, second))
    F.linear(F.linear(x, one), two).sum().backward()
    assert len(set(made)) == 2
    assert torch.equal(found, two.grad * second + one.grad * first)


def test_a_weight_that_is_computed_is_pruned():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 4))
    x, by_hand = torch.randn(3, 6), copy.deepcopy(layer)
    with amanda.apply(MagnitudePruning(0.5)):
        for _ in range(2):
            layer.zero_grad()
            layer(x).square().sum().backward()
    weight = by_hand.weight
    F.linear(x, weight * l1_mask(weight, 0.5), by_hand.bias).square().sum().backward()
    same([p.grad for p in layer.parameters()], [p.grad for p in by_hand.parameters()])


class MaskedBothWays(amanda.Tool):
    """Listing 1 of the paper: the gradient is masked where the backward operator returns it."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(self.forward, ops="conv2d")
        self.add_inst_for_op(self.backward, ops="conv2d", backward=True, require_outputs=True)

    def forward(self, context):
        context["mask"] = l1_mask(context.inputs[1], 0.5)
        context.insert_before_op(self.apply_mask, inputs=[1], mask=context["mask"])

    def backward(self, context):
        if context.backward_op.__name__ == "ConvolutionBackward0":
            context.insert_after_backward_op(self.apply_mask, grad_inputs=[1], mask=context["mask"])

    def apply_mask(self, tensor, mask):
        return tensor * mask


@each_optimizer
def test_the_papers_tool_that_masks_in_the_backward_operator_does_the_same(make_optimizer):
    model, shape = Convolutional(), (5, 3, 8, 8)
    papers = copy.deepcopy(model)
    with amanda.apply(MaskedBothWays()):
        expected = train(papers, shape, make_optimizer)
    with amanda.apply(MagnitudePruning(0.5, ops="conv2d")):
        losses = train(model, shape, make_optimizer)
    same(losses + results(model), expected + results(papers))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_region_is_recomputed_with_its_mask(use_reentrant):
    model, x = Sequence(), torch.randn(2, 3, 6, requires_grad=True)
    kept = copy.deepcopy(model)
    with amanda.apply(MagnitudePruning(0.5)):
        for _ in range(2):
            model.zero_grad()
            checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
    with amanda.apply(MagnitudePruning(0.5)):
        kept(x).square().sum().backward()
    same(results(model), results(kept))


def test_second_derivatives_are_those_of_the_masked_product():
    x, weight = torch.randn(3, 4), torch.nn.Parameter(torch.randn(2, 4))
    mask = l1_mask(weight, 0.5)

    def norm_of_gradient(linear):
        (gradient,) = torch.autograd.grad(linear(x, weight).pow(3).sum(), weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    expected = norm_of_gradient(lambda x, w: F.linear(x, w * mask))
    with amanda.apply(MagnitudePruning(0.5)):
        same([norm_of_gradient(F.linear)], [expected])


def test_under_torch_func_the_gradient_is_masked():
    layer, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    parameters = dict(layer.named_parameters())
    mask = l1_mask(layer.weight, 0.5)

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    with amanda.apply(MagnitudePruning(0.5)):
        for _ in range(2):
            gradient = torch.func.grad(loss)(parameters, x)["weight"]
            samples = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)["weight"]
    masked = (layer.weight.detach() * mask).requires_grad_()
    F.linear(x, masked, layer.bias).square().sum().backward()
    assert torch.equal(gradient, masked.grad * mask)
    torch.testing.assert_close(samples.sum(0), gradient)


def test_under_autocast_the_mask_is_of_the_parameter():
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(x, layer.weight * l1_mask(layer.weight, 0.5), layer.bias)
        with amanda.apply(MagnitudePruning(0.5)):
            found = [layer(x) for _ in range(2)]
    same(found, [expected] * 2)


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_masks_are_made_once_per_scope_and_the_parameter_stays_dense():
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    scope = amanda.apply(MagnitudePruning(0.5))
    before, mask = layer.weight.detach().clone(), l1_mask(layer.weight, 0.5)
    with scope:
        layer(x)
    assert torch.equal(layer.weight, before)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 8))
    with scope:
        assert torch.equal(layer(x), F.linear(x, layer.weight * mask, layer.bias))
    with amanda.apply(MagnitudePruning(0.5)):
        assert torch.equal(layer(x), F.linear(x, layer.weight * l1_mask(layer.weight, 0.5), layer.bias))
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_the_mask_follows_a_model_to_another_dtype():
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with amanda.apply(MagnitudePruning(0.5)):
        layer(x)
        mask = l1_mask(layer.weight, 0.5).double()
        layer.double()
        assert torch.equal(layer(x.double()), F.linear(x.double(), layer.weight * mask, layer.bias))


def test_no_weight_is_kept_alive():
    layer = torch.nn.Linear(2, 2)
    scope = amanda.apply(MagnitudePruning(0.5))
    with scope:
        layer(torch.ones(1, 2))
    gone = weakref.ref(layer.weight)
    del layer
    gc.collect()
    assert gone() is None


# ---- what is pruned --------------------------------------------------------------------------------------------------


def test_products_of_activations_vectors_and_integers_are_left_alone():
    x, vector = torch.randn(3, 3), torch.nn.Parameter(torch.randn(3))

    def program():
        x @ x, torch.bmm(x[None], x[None]), x @ vector
        F.linear(torch.ones(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.long))

    assert masks_of(MagnitudePruning(0.5), program) == {}


def test_operators_can_be_chosen_by_name_and_by_context():
    model, x = Convolutional(), torch.randn(2, 3, 8, 8)
    assert {path for path, _ in masks_of(MagnitudePruning(0.5, ops="conv2d"), lambda: model(x))} == {"conv1", "conv2"}
    chosen = VectorwisePruning(where=lambda context: context.module_path != "fc2")
    assert {path for path, _ in masks_of(chosen, lambda: model(x))} == {"conv1", "conv2", "fc1"}
    embedding = torch.nn.Embedding(10, 8)
    mask = mask_of(VectorwisePruning(ops="embedding"), lambda: embedding(torch.arange(3)))
    assert torch.equal(mask, search_of_six(embedding.weight, 1))


def test_an_operator_without_a_known_weight_is_refused(says):
    with says(amanda.Error, "[pruning] which input of aten::relu is its weight is not known"):
        with amanda.apply(MagnitudePruning(ops="relu")):
            torch.relu(torch.ones(2))


def test_a_loop_over_views_of_weights_has_a_mask_for_each():
    weights, x = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)], torch.ones(1, 3)
    with amanda.apply(MagnitudePruning()):
        found = [x @ weight.t() for weight in weights]
    same(found, [x @ (weight * l1_mask(weight, 0.5)).t() for weight in weights])


def test_a_loop_over_weights_has_a_mask_for_each():
    weights, x = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)], torch.ones(1, 3)
    with amanda.apply(MagnitudePruning()):
        found = [F.linear(x, weight) for weight in weights]
    same(found, [F.linear(x, weight * l1_mask(weight, 0.5)) for weight in weights])


@pytest.mark.parametrize("sparsity", [-0.1, 1.5, math.nan, "half"])
def test_a_sparsity_is_a_share(sparsity, says):
    with says(ValueError, f"[pruning] sparsity is the share of weights to prune, 0 to 1; got {sparsity!r}"):
        MagnitudePruning(sparsity)


def test_misuse_is_told(says):
    with says(TypeError, "[pruning] where= takes a function of an operator's context, got 'conv'"):
        MagnitudePruning(where="conv")
    with says(NotImplementedError, "[pruning] WeightPruning has no get_mask"):
        with amanda.apply(WeightPruning()):
            F.linear(torch.ones(1, 2), torch.ones(1, 2))


def test_a_layer_that_runs_as_one_operator_is_refused(says):
    layer, x = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    with says(
        amanda.Error,
        "[MagnitudePruning] aten::_transformer_encoder_layer_fwd is a whole layer in one operator, whose weights can't be "
        "edited; call torch.backends.mha.set_fastpath_enabled(False) first",
    ):
        with amanda.apply(MagnitudePruning()), torch.no_grad():
            layer(x)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with amanda.apply(MagnitudePruning()), torch.no_grad():
            edited = layer(x)
        assert not torch.equal(edited, layer(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_examples_network_recovers_from_pruning(run_example):
    printed = run_example("finetune_pruned.py")
    shares = re.findall(r"^(dense|2:4 pruned|fine-tuned) +(\d+\.\d)%$", printed, flags=re.MULTILINE)
    dense, pruned, tuned = (float(share) for _, share in shares)
    assert [name for name, _ in shares] == ["dense", "2:4 pruned", "fine-tuned"]
    assert dense > 90
    assert pruned < dense - 5
    assert tuned > dense - 2
    assert "2048 of 4168 weights are zero" in printed
