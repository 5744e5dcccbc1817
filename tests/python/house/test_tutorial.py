"""The tools of the paper's notebook, as docs/tutorials/paper.md has them, on more than its cells run them on."""

import amanda
import amanda.core.tool
import pytest
import torch
import torch.nn as nn
from tutorials import PAGES, cells, run_cell

PAGE = next(page for page in PAGES if page.stem == "paper")
NAMES, COUNTERS = {}, []
for line, code in cells(PAGE):
    if code.startswith(("class ", "def ", "import amanda", "from amanda")):  # a cell of definitions
        run_cell(PAGE, line, code, NAMES)
        COUNTERS += [NAMES["CountOPTool"]] if "class CountOPTool" in code else []

# The notebook defines three classes of one name, one after the other.
CountOPTool, BackwardCountOPTool, MappedCountOPTool = COUNTERS
ConvNeuralNet, PruningTool = NAMES["FunctionalConvNeuralNet"], NAMES["PruningTool"]
compute_mask, add_module_hooks = NAMES["compute_mask"], NAMES["add_module_hooks"]


def counts(tool, model, x, output=lambda y: y):
    """What the tool counts in a forward and a backward pass, as the tutorial runs them."""
    with amanda.tool.apply(tool):
        y = output(model(x))
        y.backward(torch.rand_like(y))
    return tool.counter, tool.backward_counter


both_tools = pytest.mark.parametrize("count", [BackwardCountOPTool, MappedCountOPTool])


@both_tools
def test_a_convolutional_network_has_4_of_both(count):
    tool = count(op_name="conv2d", backward_op_name="Conv")
    assert counts(tool, ConvNeuralNet(10), torch.rand((1, 3, 32, 32))) == (4, 4)


def test_a_second_iteration_counts_the_same_again():
    tool, model = BackwardCountOPTool(op_name="conv2d", backward_op_name="Conv"), ConvNeuralNet(10)
    with amanda.tool.apply(tool):
        for _ in range(3):
            model(torch.rand((1, 3, 32, 32))).sum().backward()
    assert (tool.counter, tool.backward_counter) == (12, 12)


@both_tools
def test_a_functional_relu_is_seen_where_module_hooks_see_nothing(count):
    model, tool, hooked = ConvNeuralNet(num_classes=10), count(op_name="relu", backward_op_name="Relu"), []
    add_module_hooks(model, "ReLU", lambda m, i, o: hooked.append(m))
    assert counts(tool, model, torch.rand((1, 3, 32, 32))) == (1, 1)
    assert hooked == []


# The tutorial counts "mul", of which the rnn of its torch made 16. Today's makes none: the 16 are those of its weights
# and biases, 4 in each of 4 layers.
@both_tools
def test_an_rnn_is_one_operator_with_many_backward_operators(count):
    model = nn.RNN(input_size=128, hidden_size=128, num_layers=4, batch_first=False)
    tool = count(op_name="rnn", backward_op_name="AccumulateGrad")
    assert counts(tool, model, torch.rand(16, 2, 128), lambda y: y[0]) == (1, 16)


def test_pruning_equals_a_model_whose_weights_were_pruned_by_hand():
    model, x = ConvNeuralNet(num_classes=10), torch.rand((2, 3, 32, 32))
    dense = model(x)
    with amanda.apply(PruningTool()):
        pruned = [model(x) for _ in range(2)]
    assert torch.equal(model(x), dense)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(compute_mask(parameter))
                assert (parameter == 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    by_hand = model(x)
    assert not torch.equal(by_hand, dense)
    assert all(torch.equal(result, by_hand) for result in pruned)


def test_pruned_weights_still_train():
    model, x = ConvNeuralNet(num_classes=10), torch.rand((2, 3, 32, 32))
    with amanda.apply(PruningTool()):
        model(x).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


# ---- on models that stay compiled -----------------------------------------------------------------------------------


def compiled_counts(tool, model, x, **how):
    with amanda.apply(tool, **how):
        y = model(x)
        y.backward(torch.ones_like(y))
    return tool.counter, tool.backward_counter


def compiled(model):
    return torch.compile(model, backend="aot_eager")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return ConvNeuralNet(num_classes=10)


@both_tools
@pytest.mark.parametrize(("op", "backward"), [("conv2d", "Conv"), ("relu", "Relu")])
def test_a_compiled_network_counts_what_an_eager_one_does(network, count, op, backward):
    x = torch.rand(1, 3, 32, 32)
    expected = compiled_counts(count(op, backward), network, x)
    assert compiled_counts(count(op, backward), compiled(network), x, compiled="graph") == expected
    assert expected == ((4, 4) if op == "conv2d" else (1, 1))


def test_a_second_compiled_run_counts_the_same_again(network):
    tool, call = CountOPTool("conv2d"), compiled(network)
    with amanda.apply(tool, compiled="graph"):
        for _ in range(3):
            call(torch.ones(1, 3, 32, 32))
    assert tool.counter == 12


@both_tools
def test_compiled_bert_has_one_backward_operator_for_each_linear(count):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50))
    call, ids = compiled(model), torch.randint(0, 10, (1, 8))
    tool = count(op_name="linear", backward_op_name="Addmm")
    assert compiled_counts(tool, lambda ids: call(ids)[0], ids, compiled="graph") == (
        13,
        13,
    )  # with the pooler's


@both_tools
def test_compiled_resnet_has_one_backward_operator_for_each_convolution(count):
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 4, "hidden_sizes": [8, 8], "depths": [1, 1], "num_labels": 2}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).eval()
    call, x = compiled(model), torch.rand(1, 3, 32, 32)
    made = sum(isinstance(module, torch.nn.Conv2d) for module in model.modules())
    tool = count(op_name="conv2d", backward_op_name="Conv")
    assert compiled_counts(tool, lambda x: call(x).logits, x, compiled="graph") == (made, made)


def test_pruning_prunes_a_compiled_network_as_an_eager_one(network):
    x = torch.rand(2, 3, 32, 32)
    with amanda.apply(PruningTool()):
        expected = network(x)
    with amanda.apply(PruningTool(), compiled="graph"):
        found = compiled(network)(x)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, network(x))
