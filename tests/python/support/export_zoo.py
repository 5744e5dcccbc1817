"""Models of transformers to export, small and with random weights, by architecture. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

_TEXT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
_LLAMA = {**_TEXT, "num_key_value_heads": 2, "use_cache": False}
_IMAGE = {
    **{key: value for key, value in _TEXT.items() if key != "vocab_size"},
    **{"image_size": 32, "patch_size": 8, "num_channels": 3},
}


class Architecture(NamedTuple):
    model: str
    config: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, torch.Tensor]]


def _ids() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return {"input_ids": torch.randint(3, 99, (2, 7), generator=drawn), "attention_mask": torch.ones(2, 7).long()}


def _pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))}


ARCHITECTURES = {
    "bert": Architecture("BertModel", "BertConfig", _TEXT, _ids),
    "distilbert": Architecture(
        "DistilBertModel",
        "DistilBertConfig",
        {"n_layers": 2, "dim": 32, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99},
        _ids,
    ),
    "roberta": Architecture("RobertaModel", "RobertaConfig", _TEXT, _ids),
    "albert": Architecture("AlbertModel", "AlbertConfig", {**_TEXT, "embedding_size": 16}, _ids),
    "electra": Architecture("ElectraModel", "ElectraConfig", {**_TEXT, "embedding_size": 16}, _ids),
    "gpt2": Architecture(
        "GPT2Model", "GPT2Config", {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 99, "use_cache": False}, _ids
    ),
    "opt": Architecture(
        "OPTModel",
        "OPTConfig",
        {
            **{key: value for key, value in _TEXT.items() if key != "intermediate_size"},
            **{"ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False},
        },
        _ids,
    ),
    "llama": Architecture("LlamaModel", "LlamaConfig", _LLAMA, _ids),
    "qwen2": Architecture("Qwen2Model", "Qwen2Config", _LLAMA, _ids),
    "gemma": Architecture("GemmaModel", "GemmaConfig", {**_LLAMA, "head_dim": 8}, _ids),
    "vit": Architecture("ViTModel", "ViTConfig", _IMAGE, _pixels),
    "deit": Architecture("DeiTModel", "DeiTConfig", _IMAGE, _pixels),
    "swin": Architecture(
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        _pixels,
    ),
    "resnet": Architecture(
        "ResNetModel", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, _pixels
    ),
    "convnext": Architecture(
        "ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}, _pixels
    ),
    "mobilenet_v2": Architecture(
        "MobileNetV2Model", "MobileNetV2Config", {"image_size": 32, "depth_multiplier": 0.35}, _pixels
    ),
    "clip": Architecture("CLIPVisionModel", "CLIPVisionConfig", _IMAGE, _pixels),
}


def named(*slow: str) -> list[Any]:
    """The names as parameters of a test: `slow`, and the others in the long run."""
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else pytest.mark.long) for name in ARCHITECTURES]


def made(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model and its arguments."""
    import transformers

    kind = ARCHITECTURES[name]
    config = getattr(transformers, kind.config)(**kind.options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind.model)(config).eval().requires_grad_(False), kind.inputs()
