"""HookCoverage: counts by hand, and those of module hooks that are really there."""

import amanda
import torch
import transformers
from amanda.tools.hook_coverage import HookCoverage
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.sigmoid(self.body(x))).sum()


def counted(model, *inputs, **keywords):
    coverage = HookCoverage(model)
    with amanda.apply(coverage):
        result = model(*inputs, **keywords)
        (result if isinstance(result, torch.Tensor) else result.loss).backward()
    return coverage.rows()


def test_operators_outside_leaf_modules_are_those_that_hooks_miss():
    forward, _ = counted(Net(), torch.randn(3, 4))
    # linear, relu, sigmoid, linear, sum, and the ones_like that backward() starts from
    assert (forward.operators, forward.in_leaf_modules, forward.leaf_modules) == (6, 3, 3)


def test_backward_operators_belong_to_the_module_of_their_forward_operator():
    _, backward = counted(Net(), torch.randn(3, 4))
    # Two linears: Addmm, T and two AccumulateGrad each, all in a leaf; relu's node; sigmoid's and sum's outside.
    assert (backward.operators, backward.in_leaf_modules, backward.leaf_modules) == (11, 9, 3)


def test_a_second_iteration_adds_nothing():
    model, x = Net(), torch.randn(3, 4)
    coverage = HookCoverage(model)
    with amanda.apply(coverage):
        seen = []
        for _ in range(3):
            model(x).backward()
            seen.append(coverage.rows())
    assert seen[0] == seen[1] == seen[2]


def test_leaf_modules_are_those_whose_hooks_run():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=99))
    ids, hooked = torch.arange(3, 17).reshape(2, 7), set()
    for path, module in model.named_modules():
        if not any(module.children()):
            module.register_forward_hook(lambda module, inputs, output, path=path: hooked.add(path))
    forward, _ = counted(model, input_ids=ids, labels=torch.zeros(2, dtype=torch.long))
    assert forward.leaf_modules == len(hooked)
    assert forward.leaf_modules <= forward.in_leaf_modules < forward.operators


def test_gradients_are_untouched():
    model, x = Net(), torch.randn(3, 4)
    model(x).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    counted(model, x)
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
