"""Models with random weights: nothing is downloaded."""

# ruff: noqa: C408 -- configurations read better so
import torch
import transformers
from torch import nn

TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
SMALL = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)


def bert_base():
    return transformers.BertForSequenceClassification(transformers.BertConfig())


def small_bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024, vocab_size=256
        )
    )


def resnet50():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def small_llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=2, vocab_size=256)
    )


def token_batch(batch, length, vocabulary=250):
    return torch.randint(3, vocabulary, (batch, length))


def six_families():
    """Name, model and keyword arguments with a loss in their result, for the table of coverage. Small but for ResNet-50."""
    labels, pixels, ids = torch.zeros(2, dtype=torch.long), torch.randn(2, 3, 32, 32), token_batch(2, 8)
    vit = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    gpt2 = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=256, n_positions=32, **TOKENS)
    bert = transformers.BertConfig(**SMALL, vocab_size=256)
    yield "CNN", Cnn(), dict(pixel_values=pixels, labels=labels)
    yield "ResNet-50", resnet50(), dict(pixel_values=pixels, labels=labels)
    yield "BERT", transformers.BertForSequenceClassification(bert), dict(input_ids=ids, labels=labels)
    yield "GPT-2", transformers.GPT2LMHeadModel(gpt2), dict(input_ids=ids, labels=ids)
    yield "LLaMA-style", small_llama(), dict(input_ids=ids, labels=ids)
    yield "ViT", transformers.ViTForImageClassification(vit), dict(pixel_values=pixels, labels=labels)


class Cnn(nn.Module):
    """Two convolutions as tutorials write them: activations and pooling are function calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(16 * 6 * 6, 10)

    def forward(self, pixel_values, labels):
        x = nn.functional.max_pool2d(nn.functional.relu(self.norm(self.first(pixel_values))), 2)
        x = nn.functional.max_pool2d(nn.functional.relu(self.second(x)), 2)
        return {"loss": nn.functional.cross_entropy(self.last(x.flatten(1)), labels)}
