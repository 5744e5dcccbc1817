"""Models with attention for the tests of CascadePruning and HeadPruning, and CascadePruning's rule in a module."""

import math

import torch
import torch.nn.functional as F
import transformers

TOKENS, HEADS = [0.9, 0.7, 0.45], [1, 0.7, 0.4]


def share(shares, layer):
    return shares if isinstance(shares, float) else shares[min(layer, len(shares) - 1)]


SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 99,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert(**options):
    return transformers.BertModel(transformers.BertConfig(**SIZES, **options)).double()


def albert(**options):
    config = transformers.AlbertConfig(**SIZES, embedding_size=12, **options)
    return transformers.AlbertModel(config).double()


def used(model):
    return [parameter for name, parameter in model.named_parameters() if "pooler" not in name]


class Attention(torch.nn.Module):
    def __init__(self, fused, causal):
        super().__init__()
        self.fused, self.causal = fused, causal
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def heads(self, x):
        return (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.heads(x)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT * 0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
            y = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Encoder(torch.nn.Module):
    """Layers of attention, each its own or all the same one."""

    def __init__(self, fused=True, shared=False, causal=False, layers=4):
        super().__init__()
        made = [Attention(fused, causal) for _ in range(1 if shared else layers)]
        self.layers = torch.nn.ModuleList(made * layers if shared else made)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class PrunedEncoder(Encoder):
    """The oracle: the rule of CascadePruning, written into the module."""

    def forward(self, x):
        batch, count, _ = x.shape
        tokens, heads = torch.ones(batch, count).bool(), torch.ones(batch, 4).bool()
        attended, magnitude = torch.zeros(batch, count), torch.zeros(batch, 4)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.heads(x)
            scores = q @ k.mT * 0.5
            triangle = torch.ones(count, count).tril().bool()
            visible = tokens[:, None, None, :] & (triangle if layer.causal else torch.ones(1, 1).bool())
            if layer.causal:
                scores = scores.masked_fill(~triangle, -math.inf)
            if index:
                scores = scores.masked_fill(~tokens[:, None, None, :], torch.finfo(torch.float32).min / 2)
            probabilities = scores.softmax(-1)
            if not layer.fused:
                y = F.dropout(probabilities, 0.1, self.training) @ v
            elif index:
                y = F.scaled_dot_product_attention(q, k, v, visible)
            else:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=layer.causal)
            there = tokens[:, None, :, None] & heads[:, :, None, None]
            attended = attended + probabilities.detach().where(there, 0).sum((1, 2))
            magnitude = magnitude + y.detach().abs().where(tokens[:, None, :, None], 0).sum((2, 3))
            y = y.where(heads[:, :, None, None], 0)
            tokens = self.best(attended, tokens, math.ceil(share(TOKENS, index) * count))
            heads = self.best(magnitude, heads, math.ceil(share(HEADS, index) * 4))
            x = x + layer.out(y.transpose(1, 2).flatten(2))
        self.tokens = tokens
        return x

    def best(self, importance, living, count):
        kept = torch.zeros_like(living)
        for sample, row in enumerate(importance):
            there = living[sample].nonzero()[:, 0].tolist()
            for one in sorted(there, key=lambda one, row=row: -row[one].item())[:count]:
                kept[sample, one] = True
        return kept


def pair(**options):
    model = Encoder(**options)
    oracle = PrunedEncoder(**options)
    oracle.load_state_dict(model.state_dict())
    return model, oracle


def train(run, model, inputs):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for x in inputs:
        torch.manual_seed(len(losses))
        optimizer.zero_grad()
        losses.append(run(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


def gradients_of(model, run, *inputs):
    model.zero_grad()
    sum(run(x).square().sum() for x in inputs).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]
