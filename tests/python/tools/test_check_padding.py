"""Check finds padding that reaches the result for a text: by its last step, by a mean, or by causal attention."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

STEPS = (12, 9)  # of the batches


class Classifier(nn.Module):
    """`reads` makes the features of a text: of the layer's result, its state, and the mask."""

    def __init__(self, reads, *, layer=nn.LSTM, batch_first=True, packs=False, **options):
        super().__init__()
        self.reads, self.batch_first, self.packs = reads, batch_first, packs
        self.embedding = nn.Embedding(30, 8, padding_idx=0)
        self.layer = layer(8, 16, batch_first=batch_first, **options)
        self.head = nn.LazyLinear(3)

    def forward(self, ids):
        mask = ids != 0
        vectors = self.embedding(ids if self.batch_first else ids.T)
        if self.packs:
            vectors = pack_padded_sequence(vectors, mask.sum(1), self.batch_first, enforce_sorted=False)
        out, state = self.layer(vectors)
        if self.packs:
            out, _ = pad_packed_sequence(out, self.batch_first)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(self.reads(out, state, mask))


def texts(steps, at_end=True):
    """Ids of 5 texts, padded to the longest."""
    ids = torch.randint(1, 30, (5, steps))
    for row in range(1, 5):
        padding = ids[row, steps - row :] if at_end else ids[row, :row]
        padding.zero_()
    return ids


def found(model, batches):
    """Findings of a training, whose losses are those without `Check`, to the bit."""
    losses = []
    for tools in ([], [Check()]):
        torch.manual_seed(0)
        own = model()
        own(batches[0])
        optimizer = torch.optim.AdamW(own.parameters(), 0.001)
        losses.append([])
        with amanda.apply(*tools) if tools else torch.enable_grad():
            for batch in batches:
                optimizer.zero_grad()
                loss = F.cross_entropy(own(batch), torch.arange(5) % 3)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert tools[0].skipped == {}
    return [(one.rule, one.place.name, one.evidence, one.count) for one in tools[0].findings()]


def of_steps(reads, at_end=True, steps=STEPS, **options):
    return found(lambda: Classifier(reads, **options), [texts(one, at_end) for one in steps])


LAST = "the last of 12 steps is padding in 4 of 5 texts of a batch"
MEAN = "the mean over 12 steps counts padding: 10 of 60 tokens of a batch"


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_step_of_padded_texts(layer, batch_first):
    def last(out, state, mask):
        return out[:, -1] if batch_first else out[len(out) - 1]

    one = ("padding-in-result", "aten::select", LAST, 2)
    assert of_steps(last, layer=layer, batch_first=batch_first) == [one]
    assert of_steps(last, layer=layer, batch_first=batch_first, packs=True) == [one]  # zeros stand there
    assert of_steps(last, layer=layer, batch_first=batch_first, at_end=False) == []
    assert of_steps(last, layer=layer, batch_first=batch_first, steps=STEPS[:1]) == []


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_state_of_padded_texts(layer, batch_first):
    options = {"layer": layer, "batch_first": batch_first}
    assert of_steps(lambda out, h, mask: h[-1], **options) == [("padding-in-result", "aten::select", LAST, 2)]
    assert of_steps(lambda out, h, mask: h.squeeze(0), **options) == [("padding-in-result", "aten::squeeze", LAST, 2)]
    both = of_steps(lambda out, h, mask: torch.cat([h[-2], h[-1]], 1), bidirectional=True, **options)
    assert both == [("padding-in-result", "aten::select", LAST, 2)]
    assert of_steps(lambda out, h, mask: h[-1], packs=True, **options) == []
    assert of_steps(lambda out, h, mask: h[-1], at_end=False, **options) == []
    assert of_steps(lambda out, h, mask: h[-1], bidirectional=True, **options) == []  # it ends at the first step


@pytest.mark.parametrize("at_end", [True, False])
def test_a_mean_over_padded_texts(at_end):
    assert of_steps(lambda out, h, mask: out.mean(1), at_end) == [("padding-in-result", "aten::mean", MEAN, 2)]
    first = of_steps(lambda out, h, mask: out.mean(dim=0), at_end, batch_first=False)
    assert first == [("padding-in-result", "aten::mean", MEAN, 2)]


def masked_mean(out, state, mask):
    return (out * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


RIGHT = [
    masked_mean,
    lambda out, h, mask: (out * mask[..., None]).mean(1),
    lambda out, h, mask: out[torch.arange(len(out)), mask.sum(1) - 1],
    lambda out, h, mask: out.masked_fill(~mask[..., None], -1e9).amax(1),
    lambda out, h, mask: sum(out[:, step] * mask[:, step, None] for step in range(out.shape[1])),
    lambda out, h, mask: out[:, 0],
    lambda out, h, mask: (out * out.mean(2, keepdim=True)).sum(1),
]


@pytest.mark.parametrize("reads", RIGHT)
def test_nothing_is_found_where_padding_is_left_out(reads):
    assert of_steps(reads) == []


def test_nothing_is_found_without_padding():
    batches = [torch.randint(1, 30, (5, steps)) for steps in STEPS]
    assert found(lambda: Classifier(lambda out, h, mask: out.mean(1) + out[:, -1] + h[-1]), batches) == []


def test_a_mean_of_texts_that_all_have_one_length():
    """Other texts do not change it."""
    assert of_steps(lambda out, h, mask: out.mean(1), steps=(12, 12)) == []


def test_a_mean_of_rows_of_the_embedding():
    """The row of the pad token is zero."""

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 3)

        def forward(self, ids):
            return self.head(self.embedding(ids).mean(1))

    assert found(Bag, [texts(steps) for steps in STEPS]) == []


# ---- models of transformers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mean_over_the_tokens_of_bert(implementation):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}

    class Sentences(nn.Module):
        def __init__(self, reads):
            super().__init__()
            config = transformers.BertConfig(vocab_size=30, attn_implementation=implementation, **size)
            self.bert, self.reads = transformers.BertModel(config, add_pooling_layer=False), reads
            self.head = nn.Linear(16, 3)

        def forward(self, ids):
            mask = ids != 0
            hidden = self.bert(ids, attention_mask=mask.long()).last_hidden_state
            return self.head(self.reads(hidden, None, mask))

    batches = [texts(steps) for steps in STEPS]
    wrong = found(lambda: Sentences(lambda out, h, mask: out.mean(1)), batches)
    assert wrong == [("padding-in-result", "aten::mean", MEAN, 2)]
    assert found(lambda: Sentences(masked_mean), batches) == []
    assert found(lambda: Sentences(lambda out, h, mask: out[:, 0]), batches) == []


def scored(at_end, has_mask, implementation, grad=False):
    """Findings where a decoder scores the next token of padded texts."""
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    options = {"pad_token_id": 0, "attn_implementation": implementation}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=30, **size, **options)).eval()
    check = Check()
    with torch.set_grad_enabled(grad), amanda.apply(check):
        for steps in (12, 9, 10):
            ids = texts(steps, at_end)
            model(ids, attention_mask=(ids != 0).long() if has_mask else None)
    assert check.skipped == {}
    return [(one.rule, one.evidence) for one in check.findings()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_before_a_text_that_causal_attention_sees(implementation):
    seen = "10 of 60 tokens of a batch are padding, with the id 0, and none is hidden, in 2 layers"
    assert scored(False, False, implementation) == [("padding-seen", seen)]
    assert scored(False, False, implementation, grad=True) == [("padding-seen", seen)]
    assert scored(False, True, implementation) == []
    assert scored(True, False, implementation) == []  # no token of a text sees what comes after it
    assert scored(True, True, implementation) == []
