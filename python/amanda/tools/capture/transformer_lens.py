"""The names that TransformerLens gives to activations of GPT-2, for the implementation in transformers.

N. Nanda and J. Bloom: TransformerLens, 2022, https://github.com/TransformerLensOrg/TransformerLens.
"""

from __future__ import annotations

from typing import Final

from .names import Naming

TRANSFORMER_LENS_GPT2: Final = Naming(
    [
        ("hook_embed", "wte:embedding"),
        ("hook_pos_embed", "wpe:embedding"),
        ("blocks.0.hook_resid_pre", "drop:dropout"),
        ("blocks.{}.hook_resid_pre", "h.{-1}:add[1]"),
        ("blocks.{}.attn.hook_k", "h.{}.attn:view"),
        ("blocks.{}.attn.hook_v", "h.{}.attn:view[1]"),
        ("blocks.{}.attn.hook_q", "h.{}.attn:view[2]"),
        ("blocks.{}.attn.hook_attn_scores", "h.{}.attn:add"),
        ("blocks.{}.attn.hook_pattern", "h.{}.attn:softmax"),
        ("blocks.{}.attn.hook_z", "h.{}.attn:transpose[4]"),
        ("blocks.{}.hook_attn_out", "h.{}.attn.resid_dropout:dropout"),
        ("blocks.{}.hook_resid_mid", "h.{}:add"),
        ("blocks.{}.mlp.hook_pre", "h.{}.mlp.c_fc:view[1]"),
        ("blocks.{}.mlp.hook_post", "h.{}.mlp.act:mul[3]"),
        ("blocks.{}.hook_mlp_out", "h.{}.mlp.dropout:dropout"),
        ("blocks.{}.hook_resid_post", "h.{}:add[1]"),
    ]
)
"""For `GPT2Model` and `GPT2LMHeadModel` of transformers 5, with ``attn_implementation="eager"``, without cross-attention.

Values and shapes are those of a HookedTransformer that was loaded without processing of its weights, except that
`hook_attn_scores` has the lowest number of its dtype, not -inf, where attention is masked. The last layer's
`hook_resid_post` is also the `hook_resid_pre` of a layer that does not exist.
"""
