"""Shows the memory in use at the peak of a train step, and which kinds of it grow with the batch."""

import amanda
import torch
from amanda.tools.memory import PeakMemory

WIDTH, TOKENS = 64, 32


def train(batch: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=4 * WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(batch, TOKENS, WIDTH)).square().mean().backward()
        optimizer.step()


def peak_of(batch: int) -> PeakMemory:
    memory = PeakMemory()
    with amanda.apply(memory):
        train(batch)
    return memory


small, large = peak_of(8), peak_of(32)
kinds = {row.kind: row.bytes for row in small.rows("kind")}
for row in large.rows("kind"):
    print(f"{row.kind:17} {kinds.get(row.kind, 0) / 1e6:7.3f} MB at batch 8 {row.bytes / 1e6:7.3f} MB at batch 32")
print(f"{'peak':17} {small.peak_bytes['cpu'] / 1e6:7.3f} MB           {large.peak_bytes['cpu'] / 1e6:7.3f} MB")

largest = next(row for row in large.rows("module") if row.kind == "saved activation")
print(f"\nmost is saved by operators of {largest.name}: {largest.bytes / 1e6:.3f} MB, for {largest.kept_by}")
