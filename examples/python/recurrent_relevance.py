"""Finds the steps of a recurrent network that matter, by gradient times activation, on one cell that runs 16 times.

One place of the program runs many times here, so a value must meet the gradient of its own execution: both are in the
`run` of that execution.
"""

import amanda
import torch


class Relevance(amanda.Tool):
    """The sum of |gradient * state| of each step."""

    def __init__(self):
        super().__init__()
        self.of_step = {}
        self.add_inst_for_op(lambda context: context.insert_after_op(self.keep, with_run=True), ops="tanh")
        self.add_inst_for_op(self.analyze_backward, ops="tanh", backward=True)

    def analyze_backward(self, context):
        if context.backward_op.__name__ == "TanhBackward0":
            context.insert_before_backward_op(self.meet, grad_outputs=[0], with_run=True)

    def keep(self, state, run):
        run["state"] = state

    def meet(self, gradient, run):
        self.of_step[run.index] = (gradient * run["state"]).abs().sum().item()


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input, self.hidden, self.head = torch.nn.Linear(1, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, steps):
        state = torch.zeros(steps.shape[1], 8)
        for step in steps:
            state = torch.tanh(self.input(step) + self.hidden(state))
        return self.head(state)


torch.manual_seed(0)
torch.set_num_threads(1)
cell = Cell()
optimizer = torch.optim.Adam(cell.parameters(), lr=0.02)
for _ in range(100):  # learn to repeat the input of six steps before the end
    x = torch.randn(16, 64, 1)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(cell(x), x[10]).backward()
    optimizer.step()

tool = Relevance()
with amanda.apply(tool):
    cell(torch.randn(16, 64, 1)).square().sum().backward()
most = max(tool.of_step.values())
for step in sorted(tool.of_step):
    print(f"step {step:2}: {'#' * round(40 * tool.of_step[step] / most)}")
