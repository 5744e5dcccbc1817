"""The PyTorch part of the original tutorial, its tool classes word for word."""

import amanda
import amanda.tool
import pytest
import torch
import torch.nn as nn
from amanda.tools.mapping import MappingTool

# fmt: off
# ruff: noqa: B007, UP008, W293 -- as printed


class ConvNeuralNet(nn.Module):
    def __init__(self, num_classes):
        super(ConvNeuralNet, self).__init__()
        self.conv_layer1 = nn.Conv2d(in_channels=3, out_channels=32, kernel_size=3)
        self.conv_layer2 = nn.Conv2d(in_channels=32, out_channels=32, kernel_size=3)
        self.max_pool1 = nn.MaxPool2d(kernel_size = 2, stride = 2)
        
        self.conv_layer3 = nn.Conv2d(in_channels=32, out_channels=64, kernel_size=3)
        self.conv_layer4 = nn.Conv2d(in_channels=64, out_channels=64, kernel_size=3)
        self.max_pool2 = nn.MaxPool2d(kernel_size = 2, stride = 2)
        
        self.fc1 = nn.Linear(1600, 128)
        self.fc2 = nn.Linear(128, num_classes)
    
    def forward(self, x):
        out = self.conv_layer1(x)
        out = self.conv_layer2(out)
        out = self.max_pool1(out)
        
        out = self.conv_layer3(out)
        out = self.conv_layer4(out)
        out = self.max_pool2(out)
                
        out = out.reshape(out.size(0), -1)
        
        out = self.fc1(out)
        out = torch.relu(out)
        out = self.fc2(out)
        return out


class CountOPTool(amanda.Tool):
    def __init__(self, op_name: str):
        super().__init__()
        self.counter = 0
        self.op_name = op_name
        self.add_inst_for_op(self.callback)

    # analysis routine, filter conv2d operators
    def callback(self, context: amanda.OpContext):
        op = context.get_op()
        if self.op_name in op.__name__:
            context.insert_before_op(self.counter_op)

    # instrumentation routine: op for counting
    def counter_op(self, *inputs):
        self.counter += 1
        return inputs


# The tutorial prints three classes of one name, one after the other; the later two are renamed here.
class BackwardCountOPTool(amanda.Tool):
    def __init__(self, op_name: str, backward_op_name: str):
        super().__init__()
        self.counter = 0
        self.backward_counter = 0
        self.op_name = op_name
        self.backward_op_name = backward_op_name
        self.add_inst_for_op(self.callback)
        self.add_inst_for_op(self.backward_callback, backward=True, require_outputs=True)

    # analysis routine, filter conv2d operators
    def callback(self, context: amanda.OpContext):
        op = context.get_op()
        if self.op_name in op.__name__:
            context.insert_before_op(self.counter_op)

    # analysis routine, filter conv2d operators
    def backward_callback(self, context: amanda.OpContext):
        op = context.get_backward_op()
        if self.backward_op_name in op.__name__:
            context.insert_after_backward_op(self.counter_backward_op)

    # instrumentation routine: op for counting
    def counter_op(self, *inputs):
        self.counter += 1
        return inputs
    
    def counter_backward_op(self, *inputs):
        self.backward_counter += 1
        return inputs


def torch_op_name_rule(context: amanda.OpContext):
    context["op_name"] = context.get_op().__name__
    context["backward_op_name"] = context.get_backward_op().__name__ if context.get_backward_op() is not None else None


def tf_op_name_rule(context: amanda.OpContext):
    context["op_name"] = context.get_op().name if context.get_op() is not None else None
    context["backward_op_name"] = context.get_backward_op().name if context.get_backward_op() is not None else None

mapping_tool = MappingTool(
    rules=[
        ["pytorch", torch_op_name_rule],
        ["tensorflow", tf_op_name_rule],
    ]
)


class MappedCountOPTool(amanda.Tool):
    def __init__(self, op_name: str, backward_op_name: str):
        super().__init__()

        # specify tool dependencies
        self.depends_on(mapping_tool)

        self.counter = 0
        self.backward_counter = 0
        self.op_name = op_name
        self.backward_op_name = backward_op_name
        self.add_inst_for_op(self.callback)
        self.add_inst_for_op(self.backward_callback, backward=True, require_outputs=True)

    # analysis routine, filter conv2d operators
    def callback(self, context: amanda.OpContext):
        if self.op_name in context["op_name"]:
            context.insert_before_op(self.counter_op)

    # analysis routine, filter conv2d operators
    def backward_callback(self, context: amanda.OpContext):
        if self.backward_op_name in context["backward_op_name"]:
            context.insert_after_backward_op(self.counter_backward_op)

    # instrumentation routine: op for counting
    def counter_op(self, *inputs):
        self.counter += 1
        return inputs
    
    def counter_backward_op(self, *inputs):
        self.backward_counter += 1
        return inputs


# The printed compute_mask does not run; this one does what its text says.
def compute_mask(tensor, sparsity=0.5):
    flat = tensor.abs().flatten()
    mask = torch.ones_like(flat)
    mask[torch.topk(flat, int(len(flat) * sparsity), largest=False).indices] = 0
    return mask.view(tensor.size())


class PruningTool(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.add_inst_for_op(self.callback)

    # analysis routine
    def callback(self, context: amanda.OpContext):
        op = context.get_op()
        if op.__name__ not in ["conv2d", "linear"]:
            return
        weight = context.get_inputs()[1]
        mask = compute_mask(weight)
        context["mask"] = mask
        context.insert_before_op(self.prune_weight, inputs=[1], mask=mask)

    # instrumentation routine
    def prune_weight(self, weight, mask):
        return torch.mul(weight, mask)


def add_module_hooks(model, op_name, hook):
    if model.__class__.__name__ == op_name:
        model.register_forward_hook(hook)

    if isinstance(model, nn.Module):
        for child_name, child in model.named_children():
            add_module_hooks(child, op_name, hook)
# fmt: on


def test_a_convolutional_network_has_4_conv2d():
    model, tool = ConvNeuralNet(num_classes=10), CountOPTool("conv2d")
    with amanda.apply(tool):
        model(torch.rand((1, 3, 32, 32)))
    assert tool.counter == 4


def test_apply_is_also_found_where_the_original_had_it():
    model, tool = ConvNeuralNet(num_classes=10), CountOPTool("conv2d")
    with amanda.tool.apply(tool):
        model(torch.rand((1, 3, 32, 32)))
    assert tool.counter == 4


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


@pytest.fixture(scope="module")
def resnet50():
    transformers = pytest.importorskip("transformers")
    return transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()


@both_tools
def test_resnet50_has_53_of_both(resnet50, count):
    tool = count(op_name="conv2d", backward_op_name="Conv")
    assert counts(tool, resnet50, torch.rand(1, 3, 64, 64), lambda y: y.logits) == (53, 53)


# "Mm" in the tutorial: today's linear is one AddmmBackward0, and MmBackward0 where there is no bias. The pooler's result
# takes no part in the backward pass.
@both_tools
def test_bert_base_has_73_linear_and_72_backward(count):
    transformers = pytest.importorskip("transformers")
    model, tool = transformers.BertModel(transformers.BertConfig()), count(op_name="linear", backward_op_name="Addmm")
    assert counts(tool, model, torch.randint(0, 10, (1, 8)), lambda y: y[0]) == (73, 72)


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
