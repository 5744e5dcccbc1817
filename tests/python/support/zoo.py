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


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        **SMALL,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,  # draws from numpy
        layerdrop=0.0,
    )
    return transformers.Wav2Vec2Model(config), dict(input_values=torch.randn(2, 800))


def mixtral():
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1)
    return transformers.MixtralForCausalLM(config), dict(input_ids=ids(), labels=ids())


def mamba():
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=99, state_size=4)
    return transformers.MambaForCausalLM(config), dict(input_ids=ids(), labels=ids())


def swin():
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return transformers.SwinModel(config), dict(pixel_values=pixels())


def distilbert():
    config = transformers.DistilBertConfig(vocab_size=99, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    return transformers.DistilBertModel(config), dict(input_ids=ids())


def deberta():
    config = transformers.DebertaV2Config(
        **SMALL, relative_attention=True, max_relative_positions=8, pos_att_type=["p2c", "c2p"], pad_token_id=0
    )
    return transformers.DebertaV2Model(config), dict(input_ids=ids())


def opt():
    config = transformers.OPTConfig(
        vocab_size=99, hidden_size=16, word_embed_proj_dim=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32
    )
    return transformers.OPTForCausalLM(config), dict(input_ids=ids(), labels=ids())


def gemma():
    config = transformers.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8)
    return transformers.GemmaForCausalLM(config), dict(input_ids=ids(), labels=ids())


def bart():
    config = transformers.BartConfig(
        vocab_size=99,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        decoder_start_token_id=2,
        **TOKENS,
    )
    return transformers.BartForConditionalGeneration(config), dict(input_ids=ids(), labels=ids())


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=99,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        max_target_positions=16,
        decoder_start_token_id=1,
        **TOKENS,
    )
    return transformers.WhisperForConditionalGeneration(config), dict(
        input_features=torch.randn(2, 8, 40), labels=ids()
    )


def convnext():
    config = transformers.ConvNextConfig(image_size=32, patch_size=2, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config), dict(pixel_values=pixels())
