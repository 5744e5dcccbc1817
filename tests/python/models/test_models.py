"""Whole models: under a tool that looks at everything, results, gradients and random state are bit for bit the same."""

import amanda

# ruff: noqa: C408 -- configurations read better so
import pytest
import torch
from torch.utils._pytree import tree_leaves
from zoo import bert, clip, gpt2, llama, mamba, mixtral, pixels, resnet, swin, t5, vit, wav2vec2


def mlp():
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return model, dict(input=torch.randn(3, 4))


def encoder():
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), dict(src=torch.randn(2, 3, 8))


def lstm():
    return torch.nn.LSTM(4, 8, num_layers=2, bidirectional=True, dropout=0.5), dict(input=torch.randn(5, 2, 4))


def convnet():
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
    )
    return model, dict(input=pixels())


MODELS = [bert, resnet, mamba, mlp, encoder, lstm, convnet]
MORE = [gpt2, llama, t5, vit, clip, wav2vec2, mixtral, swin]  # test_zoo.py trains one of each kind


def tensors(result):
    return [
        leaf
        for leaf in tree_leaves(dict(result) if isinstance(result, dict) else result)
        if isinstance(leaf, torch.Tensor)
    ]


def train(model, inputs):
    """Everything that one step leaves behind."""
    torch.manual_seed(1)
    model.zero_grad()
    outputs = tensors(model(**inputs))
    sum(output.float().sum() for output in outputs if output.requires_grad).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*(output.detach() for output in outputs), *gradients, torch.get_rng_state()]


def infer(model, inputs):
    model.eval()
    with torch.inference_mode():
        return [*tensors(model(**inputs)), torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "make", [*MODELS, *(pytest.param(make, marks=pytest.mark.slow) for make in MORE)], ids=lambda make: make.__name__
)
def test_looking_changes_not_one_bit(make, recorder):
    model, inputs = make()
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def all_of(step):
        model.load_state_dict(state)
        return step(model, inputs)

    outermost, nested = recorder(), recorder(nested=True)
    for step in (train, infer):
        expected = all_of(step)
        with amanda.apply(outermost, nested):
            results = [all_of(step) for _ in range(2)]
        for got in results:
            assert len(got) == len(expected)
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert len(nested.ran) > len(outermost.ran) > 0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", [gpt2, llama, t5], ids=lambda make: make.__name__)
def test_generated_text_is_the_same(make, recorder):
    model, inputs = make()
    model.eval()
    arguments = dict(input_ids=inputs["input_ids"], attention_mask=torch.ones_like(inputs["input_ids"]))
    arguments |= dict(max_new_tokens=4, do_sample=True, pad_token_id=0, eos_token_id=2)

    def generate():
        torch.manual_seed(0)
        return model.generate(**arguments)

    expected = generate()
    with amanda.apply(recorder()):
        assert torch.equal(generate(), expected)


def test_module_paths_name_the_modules_of_the_model():
    model, inputs = bert()
    paths = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: paths.append(c.module_path), ops="linear")
    with amanda.apply(tool):
        model(**inputs)
    linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    assert sorted(paths) == sorted(linears)
