"""One tool, eager and compiled: a network is pruned in eager mode, then compiled, and fine-tuned as it will be deployed.

It learns to read handwritten digits. The masks are made in eager mode. In the compiled network they are the same, since
its operators have the same ids: the accuracy is the same, and training goes on with the zeros in place. Compiled code
without the masks is a call away.

    python examples/python/prune_compiled.py              # compiled by inductor
    python examples/python/prune_compiled.py aot_eager    # or another backend of torch.compile
"""

import sys

import amanda
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.tools.statistics import OpStatistics


class Pruning(amanda.Tool):
    """Holds all but the largest tenth of each weight at zero."""

    def __init__(self):
        super().__init__()
        self.masks = {}  # by the operator's id, which is the same in eager mode and compiled
        self.add_inst_for_op(self.analyze, ops="linear")

    def analyze(self, context):
        weight = context.inputs[1].detach()  # a parameter has values in each analysis, compiled or not
        if context.op_id not in self.masks:
            self.masks[context.op_id] = weight.abs() > weight.abs().quantile(0.9)
        mask = self.masks[context.op_id]
        context.insert_before_op(lambda weight: weight * mask, inputs=["weight"], differentiable=True, traceable=True)


def train(network, images, labels, epochs, learning_rate):
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for batch in torch.randperm(len(images) // 64 * 64).split(64):  # of one size: each size is compiled by itself
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(network, images, labels):
    return (network(images).argmax(1) == labels).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
training, test = ((images[part], labels[part]) for part in (order[:1200], order[1200:]))

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
train(network, *training, epochs=20, learning_rate=3e-3)
print(f"dense, eager         {accuracy(network, *test):6.1%}")

pruning = Pruning()
with amanda.apply(pruning):
    print(f"pruned, eager        {accuracy(network, *test):6.1%}")

compiled = torch.compile(network, backend=sys.argv[1] if len(sys.argv) > 1 else "inductor")
with amanda.apply(pruning, compiled="graph"):
    print(f"pruned, compiled     {accuracy(compiled, *test):6.1%}")
    train(compiled, *training, epochs=10, learning_rate=1e-3)
    print(f"fine-tuned, compiled {accuracy(compiled, *test):6.1%}")
assert len(pruning.masks) == 2  # none was made a second time
with amanda.apply(pruning):
    print(f"fine-tuned, eager    {accuracy(network, *test):6.1%}")

statistics = OpStatistics()
with amanda.apply(statistics, compiled="graph"):
    accuracy(compiled, *test)
rows = {row.name: row for row in statistics.rows("op")}
print(f"of what relu returns in the compiled network, {rows['aten::relu'].sparsity:.0%} is zero")
