"""Check compares targets with ids: labels of language models that are shifted wrongly, and padding that a loss counts."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from torch import nn

transformers = pytest.importorskip("transformers")

VOCABULARY, PAD = 40, 0


def gpt2(**options):
    size = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    special = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": PAD}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **size, **special, **options))


def llama(**options):
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **size, **options))


def bert(kind=transformers.BertForMaskedLM):
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    return kind(transformers.BertConfig(vocab_size=VOCABULARY, **size))


def t5():
    size = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "d_kv": 8}
    options = {"decoder_start_token_id": PAD, "pad_token_id": PAD}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCABULARY, **size, **options))


class Recurrent(nn.Module):
    def __init__(self, classes=VOCABULARY, batch_first=True):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8, padding_idx=PAD), nn.Linear(8, classes)
        self.layer = nn.LSTM(8, 8, batch_first=batch_first)

    def forward(self, ids):
        return self.head(self.layer(self.embedding(ids))[0])


class Decoder(nn.Module):
    """With causal attention; a first token without an id, if `begins`; and with a second head."""

    def __init__(self, begins=False):
        super().__init__()
        self.embedding, self.head, self.ahead = (
            nn.Embedding(VOCABULARY, 16),
            nn.Linear(16, VOCABULARY),
            nn.Linear(16, 40),
        )
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.begin = nn.Parameter(torch.zeros(1, 1, 16)) if begins else None

    def hidden(self, ids):
        hidden = self.embedding(ids)
        if self.begin is not None:
            hidden = torch.cat([self.begin.expand(len(ids), -1, -1), hidden[:, :-1]], 1)
        return self.layer(hidden, nn.Transformer.generate_square_subsequent_mask(ids.shape[1]))

    def forward(self, ids):
        return self.head(self.hidden(ids))


def batch(steps=12):
    return torch.randint(3, VOCABULARY, (4, steps))


def padded(pad=PAD, steps=12):
    """Ids and a mask: of 12, 9, 6 and 3 tokens."""
    ids, mask = batch(steps), torch.ones(4, steps, dtype=torch.long)
    for row in range(4):
        mask[row, steps - 3 * row :] = 0
    return ids.masked_fill(mask == 0, pad), mask


def loss(scores, target, **options):
    return F.cross_entropy(scores.flatten(0, 1), target.flatten(), **options)


def found(model, step):
    """Findings in three steps, whose losses are those without `Check`, to the bit."""
    losses = []
    for tools in ([], [Check()]):
        torch.manual_seed(0)
        own = model()
        own.train()
        optimizer = torch.optim.AdamW(own.parameters(), 0.001)
        losses.append([])
        with amanda.apply(*tools) if tools else torch.enable_grad():
            for _ in range(3):
                optimizer.zero_grad()
                result = step(own)
                result.backward()
                optimizer.step()
                losses[-1].append(result.item())
    assert losses[0] == losses[1]
    assert tools[0].skipped == {}
    return [(one.rule, one.evidence) for one in tools[0].findings()]


def rules(model, step):
    return [rule for rule, _ in found(model, step)]


# ---- labels that are shifted --------------------------------------------------------------------------------------------


def shifted_twice(model):
    ids = batch(13)
    return model(ids[:, :-1], labels=ids[:, 1:]).loss


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [gpt2, llama])
def test_labels_that_the_program_and_the_model_shift(kind, implementation):
    ((rule, evidence),) = found(lambda: kind(attn_implementation=implementation), shifted_twice)
    assert rule == "label-shift"
    compared = 3 * 4 * 10  # losses, sequences; labels have ids up to t = 11, and 12 ids are read
    assert evidence == f"the target of each position t is the id at t + 2, in all {compared} that were compared"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [gpt2, llama])
def test_labels_that_nobody_shifts(kind, implementation):
    def step(model):
        ids = batch()
        return loss(model(ids).logits, ids)

    ((rule, evidence),) = found(lambda: kind(attn_implementation=implementation), step)
    assert rule == "label-shift"
    assert evidence.startswith("the target of each position t is the id at t, which attention sees, in all 144")


def rolled_the_wrong_way(model):
    ids = batch()
    labels = ids.roll(1, 1)
    labels[:, 0] = -100
    return loss(model(ids), labels)


def first_position_of_scores_left_out(model):
    ids = batch()
    return loss(model(ids)[:, 1:], ids[:, 1:])


def windows_that_are_two_apart(model):
    text = torch.randint(VOCABULARY, (200,))
    return loss(model(text[:64].view(4, 16)), text[2:66].view(4, 16))


def in_autocast(model):
    ids = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(model(ids), ids)


def of_log_probabilities(model):
    ids = batch()
    return F.nll_loss(model(ids).log_softmax(-1).flatten(0, 1), ids.flatten())


WRONG = [
    *(rolled_the_wrong_way, first_position_of_scores_left_out, windows_that_are_two_apart, in_autocast),
    of_log_probabilities,
]


@pytest.mark.parametrize("step", WRONG, ids=lambda step: step.__name__)
def test_other_wrong_shifts(step):
    assert rules(Decoder, step) == ["label-shift"]


@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers(batch_first):
    def step(apart, model):
        ids = batch(14) if batch_first else batch(14).t()
        axis = 1 if batch_first else 0
        return loss(model(ids.narrow(axis, 0, 12)), ids.narrow(axis, apart, 12))

    for apart, expected in ((1, []), (2, ["label-shift"])):
        assert rules(lambda: Recurrent(batch_first=batch_first), lambda model, by=apart: step(by, model)) == expected


def test_a_decoder_that_gets_its_labels():
    def step(model):
        ids = batch(9)
        return model(batch(), labels=ids, decoder_input_ids=ids).loss

    assert rules(t5, step) == ["label-shift"]


def shifted_by_the_model(model):
    ids = batch()
    return model(ids, labels=ids).loss


def shifted_by_the_program(model):
    ids = batch()
    return loss(model(ids).logits[:, :-1], ids[:, 1:])


def after_a_prompt(model):
    ids = batch()
    return loss(model(ids).logits[:, 1:-1], ids[:, 2:])  # the prompt has two ids


def constant(model):
    ids = torch.full((4, 12), 7)
    return loss(model(ids).logits, ids)


def periodic(model):
    ids = torch.tensor([5, 6]).repeat(4, 7)
    return loss(model(ids[:, :-1]).logits, ids[:, 1:])


def counting(model):
    ids = torch.arange(12) + torch.tensor([[3], [9], [20], [1]])
    return loss(model(ids).logits, ids + 1)


@pytest.mark.parametrize("kind", [gpt2, llama])
@pytest.mark.parametrize(
    "step", [shifted_by_the_model, shifted_by_the_program, after_a_prompt, constant, periodic, counting]
)
def test_nothing_is_found_in_language_models(kind, step):
    assert rules(kind, step) == []


def test_nothing_is_found_where_the_input_begins_with_another_token():
    ids = batch()
    assert rules(lambda: Decoder(begins=True), lambda model: loss(model(ids), ids)) == []


@pytest.mark.parametrize("heads", [(1, 2), (2, 3)])
def test_nothing_is_found_in_heads_for_several_tokens(heads):
    def step(model):
        ids = batch()
        hidden = model.hidden(ids)
        pairs = zip(heads, (model.head, model.ahead), strict=True)
        return sum(loss(head(hidden)[:, :-by], ids[:, by:]) for by, head in pairs)

    assert rules(Decoder, step) == []


def masked(model, counts_all=False):
    ids = batch()
    is_masked = torch.rand(ids.shape) < 0.3
    labels = ids if counts_all else ids.masked_fill(~is_masked, -100)
    return model(ids.masked_fill(is_masked, 2), labels=labels).loss


def test_nothing_is_found_in_masked_language_models():
    assert rules(bert, masked) == []
    assert rules(bert, lambda model: masked(model, counts_all=True)) == []
    assert rules(bert, lambda model: loss(model(ids := batch()).logits, ids)) == []


def test_nothing_is_found_in_other_models_that_reproduce_their_input():
    def denoise(model):
        ids = batch()
        return loss(model(ids.masked_fill(torch.rand(ids.shape) < 0.15, 2)), ids)

    assert rules(Decoder, denoise) == []
    assert rules(Recurrent, lambda model: loss(model(ids := batch()), ids)) == []
    assert rules(t5, lambda model: model(ids := batch(), labels=ids).loss) == []


# ---- attention that sees what is to be predicted, or padding only ----------------------------------------------------


class Encoder(nn.Module):
    """Its attention is as the mask says."""

    def __init__(self, classes=VOCABULARY):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16, padding_idx=PAD), nn.Linear(16, classes)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids, **masks):
        return self.head(self.layer(self.embedding(ids), **masks))


def next_tokens(model, counted=slice(None), **masks):
    ids = batch(13)
    labels = torch.full((4, 12), -100)
    labels[:, counted] = ids[:, 1:][:, counted]
    return loss(model(ids[:, :-1], **masks), labels)


def test_a_language_model_without_a_causal_mask():
    ((rule, evidence),) = found(Encoder, next_tokens)
    assert rule == "target-seen"
    assert (
        evidence
        == "the target of each position t is the id at t + 1, which position t sees, in all 132 that were compared"
    )
    ((rule, _),) = found(lambda: bert(transformers.BertLMHeadModel), shifted_by_the_model)
    assert rule == "target-seen"


def test_nothing_is_found_in_causal_attention():
    mask = nn.Transformer.generate_square_subsequent_mask(12)
    assert rules(Encoder, lambda model: next_tokens(model, src_mask=mask)) == []
    prefix = mask.clone()
    prefix[:, :4] = 0  # all positions see the first four
    assert rules(Encoder, lambda model: next_tokens(model, slice(3, 12), src_mask=prefix)) == []
    assert rules(Encoder, lambda model: next_tokens(model, src_mask=prefix)) == []  # three of eleven see their targets


def test_nothing_is_found_in_a_decoder_that_attends_to_as_long_a_text():
    assert rules(t5, lambda model: model(batch(), labels=batch()).loss) == []


def test_a_text_that_sees_its_padding():
    """All layers are one finding; padding of one length in all rows changes nothing, and empty fields are no padding."""

    def classify(model, ids, **options):
        return model(ids, labels=torch.tensor([0, 1, 0, 1]), **options).loss

    def make():
        return bert(transformers.BertForSequenceClassification)

    ((rule, evidence),) = found(make, lambda model: classify(model, padded()[0]))
    assert rule == "padding-seen"
    assert evidence == "18 of 48 tokens of a batch are padding, with the id 0, and none is hidden, in 2 layers"
    ids, mask = padded()
    equal = batch()
    equal[:, 9:] = PAD
    fields = batch()
    fields[:, 1::2] = PAD
    fields[0] = 5
    for right in ((ids, {"attention_mask": mask}), (equal, {}), (fields, {}), (batch(), {})):
        assert rules(make, lambda model, given=right: classify(model, given[0], **given[1])) == []
    assert rules(gpt2, lambda model: model(ids, labels=ids.masked_fill(mask == 0, -100)).loss) == []


@pytest.mark.parametrize("is_masked", [True, False])
def test_padding_where_sequences_and_heads_are_on_one_axis(is_masked):
    """As in `nn.MultiheadAttention` that returns weights. The first sequence has no padding."""
    torch.manual_seed(0)
    embedding, layer = nn.Embedding(VOCABULARY, 8, padding_idx=PAD), nn.MultiheadAttention(8, 2, batch_first=True)
    with amanda.apply(Check()) as check:
        for _ in range(3):
            ids = torch.randint(1, VOCABULARY, (4, 12))
            ids[1, 6:] = ids[3, 9:] = PAD
            h = embedding(ids)
            mask = (ids == PAD) if is_masked else None
            nn.functional.cross_entropy(layer(h, h, h, key_padding_mask=mask)[0].mean(1), ids[:, 0] % 8).backward()
    assert [one.rule for one in check.findings()] == ([] if is_masked else ["padding-seen"])


def test_a_mask_that_hides_the_tokens():
    def classify(model, hides):
        ids = batch()
        ids[:, 9:] = PAD
        scores = model(ids, src_key_padding_mask=hides(ids))
        return F.cross_entropy(scores.mean(1), torch.tensor([0, 1, 0, 1]))

    ((rule, evidence),) = found(lambda: Encoder(2), lambda model: classify(model, lambda ids: ids != PAD))
    assert rule == "mask-inverted"
    assert evidence == "36 tokens of a batch are hidden, and 12 of padding are seen, which have the id 0"
    for right in (lambda ids: ids == PAD, lambda ids: torch.rand(ids.shape) < 0.2, lambda ids: None):
        assert rules(lambda: Encoder(2), lambda model, hides=right: classify(model, hides)) == []


# ---- padding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [gpt2, llama])
def test_padding_of_language_models(kind, side, implementation):
    def step(model, ignored):
        ids, mask = padded() if side == "right" else [one.flip(1) for one in padded()]
        return model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, ignored)).loss

    def model():
        return kind(attn_implementation=implementation)

    assert rules(model, lambda model: step(model, PAD)) == ["pad-in-loss"]
    assert rules(model, lambda model: step(model, -100)) == []


def test_the_numbers_of_padding():
    def step(model):
        ids, mask = padded()
        return model(ids, attention_mask=mask, labels=ids).loss

    ((_, evidence),) = found(llama, step)
    padding, counted = 3 * (3 + 6 + 9), 3 * 4 * 11
    assert evidence == f"{padding} of {counted} targets that it counts are those of padding, which has the id 0"


def test_a_pad_token_that_also_ends_the_text():
    def step(model):
        ids, mask = padded(pad=1)
        last = mask.cumsum(1) == mask.sum(1, keepdim=True)
        ids = ids.masked_fill(last, 1)
        return model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss

    assert rules(gpt2, step) == []


def test_padding_of_a_decoder():
    def step(model, ignored):
        ids, mask = padded()
        target, of_target = padded(steps=13)
        return model(ids, attention_mask=mask, labels=target.masked_fill(of_target == 0, ignored)).loss

    assert rules(t5, lambda model: step(model, PAD)) == ["pad-in-loss"]
    assert rules(t5, lambda model: step(model, -100)) == []


def test_padding_of_taggers():
    def step(model, ignored, types):
        ids, mask = padded()
        given = {"token_type_ids": (torch.arange(12) > 2).long() * mask} if types else {}
        return model(ids, attention_mask=mask, labels=(ids % 2).masked_fill(mask == 0, ignored), **given).loss

    def tagger():
        return bert(transformers.BertForTokenClassification)

    for types in (False, True):
        assert rules(tagger, lambda model, types=types: step(model, 0, types)) == ["pad-in-loss"]
        assert rules(tagger, lambda model, types=types: step(model, -100, types)) == []


def test_padding_of_recurrent_layers():
    def tag(model, **options):
        ids, mask = padded()
        return loss(model(ids), (ids % 2 + 1) * mask, **options)

    def tagger():
        return Recurrent(3)

    assert rules(tagger, tag) == ["pad-in-loss"]
    assert rules(tagger, lambda model: tag(model, ignore_index=0)) == []
    assert rules(tagger, lambda model: tag(model, weight=torch.tensor([0.0, 1.0, 1.0]))) == []
    assert rules(tagger, lambda model: tag(model, reduction="none").mean()) == []  # a mask may be multiplied


def test_nothing_is_found_in_targets_of_other_sequences():
    """As long as the input, and not padded where it is; or classes of sequences; or random ids with the pad token."""
    assert rules(Recurrent, lambda model: loss(model(padded()[0]), batch())) == []
    assert rules(Recurrent, lambda model: F.cross_entropy(model(padded()[0]).mean(1), torch.zeros(4).long())) == []
    assert rules(Recurrent, lambda model: loss(model(ids := torch.randint(6, (8, 12)))[:, :-1], ids[:, 1:])) == []


def test_nothing_is_found_where_attention_hides_what_is_to_be_guessed():
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

        def forward(self, ids, hidden):
            return self.head(self.layer(self.embedding(ids), src_key_padding_mask=hidden))

    def step(model):
        ids = batch()
        hidden = torch.rand(ids.shape) < 0.3
        return loss(model(ids.masked_fill(hidden, 2), hidden), ids)

    assert rules(Hiding, step) == []


def test_a_program_that_reads_no_losses_any_more():
    """Later losses are not looked at, and lookups without a loss neither."""
    check = Check(only=["label-shift"])
    model = Decoder()
    with amanda.apply(check):
        for _ in range(20):
            ids = batch(13)
            loss(model(ids[:, :-1]), ids[:, 1:]).backward()
        for _ in range(20):
            ids = batch()
            loss(model(ids), ids).backward()
    assert check.findings() == []
