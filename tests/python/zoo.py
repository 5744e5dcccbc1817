"""Small models of well-known architectures, with random weights: each maker returns a model and its keyword arguments."""

# ruff: noqa: C408 -- configurations read better so
import torch
import transformers

SMALL = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=99)
VISION = dict(SMALL, image_size=32, patch_size=8)
VISION.pop("vocab_size")
TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


def ids():
    return torch.arange(3, 17).reshape(2, 7)


def pixels():
    return torch.randn(2, 3, 32, 32)


def bert():
    return transformers.BertModel(transformers.BertConfig(**SMALL)), dict(input_ids=ids())


def gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=99, n_positions=32, **TOKENS)
    return transformers.GPT2LMHeadModel(config), dict(input_ids=ids(), labels=ids())


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config), dict(input_ids=ids(), labels=ids())


def t5():
    config = transformers.T5Config(
        vocab_size=99, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), dict(input_ids=ids(), labels=ids())


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**VISION)), dict(pixel_values=pixels())


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    return transformers.ResNetModel(config), dict(pixel_values=pixels())


def clip():
    config = transformers.CLIPConfig(
        text_config=dict(SMALL, max_position_embeddings=16, **TOKENS), vision_config=VISION, projection_dim=8
    )
    return transformers.CLIPModel(config), dict(input_ids=ids(), pixel_values=pixels())
