"""Libraries that look into models: they hook, patch and wrap what Amanda does, too."""

from __future__ import annotations

from typing import Any

import captum.attr
import torch
import torchlens
import transformer_lens
from library import left_of
from torch import nn


def convnet() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def captum_attributions() -> dict[str, Any]:
    model, images = convnet(), torch.randn(2, 1, 8, 8)
    baseline = torch.zeros_like(images)
    attr = captum.attr
    return {
        "integrated": attr.IntegratedGradients(model).attribute(images, target=1, n_steps=4),
        "saliency": attr.Saliency(model).attribute(images, target=1),
        "deep lift": attr.DeepLift(model).attribute(images, baseline, target=1),
        "guided": attr.GuidedBackprop(model).attribute(images, target=1),
        "shap": attr.GradientShap(model).attribute(images, baseline, n_samples=2, target=1),
        "cam": attr.LayerGradCam(model, model[2]).attribute(images, target=1),
        "conductance": attr.LayerConductance(model, model[2]).attribute(images, target=1, n_steps=4),
        "occlusion": attr.Occlusion(model).attribute(images, (1, 4, 4), target=1),
    }


def torchlens_log() -> dict[str, Any]:
    model, images = convnet(), torch.randn(2, 1, 8, 8)
    model(images).square().sum().backward()
    log = torchlens.trace(model, images)
    return left_of(model) | {layer: log[layer].out for layer in log.layer_labels}


def transformer_lens_hooks() -> dict[str, Any]:
    config = transformer_lens.HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=8, d_head=8, n_heads=2, d_vocab=20, act_fn="gelu", device="cpu", seed=0
    )
    model = transformer_lens.HookedTransformer(config)
    ids = torch.randint(0, 20, (2, 6))
    logits, cache = model.run_with_cache(ids)

    def ablate(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value[:, :, 0] = 0.0
        return value

    changed = model.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.hook_z", ablate)])
    gradients: dict[str, Any] = {}
    model.add_hook(lambda name: "hook_resid" in name, lambda g, hook: gradients.update({hook.name: g.clone()}), "bwd")
    model(ids, return_type="loss").backward()
    model.reset_hooks()
    return {"logits": logits, "changed": changed, "cache": dict(cache), "gradients": gradients, **left_of(model)}


PROGRAMS = [captum_attributions, torchlens_log, transformer_lens_hooks]
