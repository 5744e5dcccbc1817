"""Measures how far each step of the optimizer moves each parameter, relative to its size.

A rule of thumb is one part in a thousand: far less, and a layer hardly learns; far more, and training is unstable. The tool
looks at the optimizer's operators. `context.parameter_names` says which parameters they write to, so it needs neither the
model nor the optimizer. `@amanda.root` gives the step the same operators in both loops that call it: they are analyzed
once.
"""

import amanda
import torch


class UpdateSizes(amanda.Tool):
    """Keeps the largest relative update of every parameter."""

    def __init__(self):
        super().__init__()
        self.largest = {}
        self.analyses = 0
        self.add_inst_for_op(self.analyze, ops=["add_", "addcdiv_", "_foreach_add_", "_foreach_addcdiv_"])

    def analyze(self, context):
        self.analyses += 1
        written = context.parameter_names[0]
        names = written if isinstance(written, tuple) else (written,)  # _foreach_ operators take lists
        if any(names):  # else it writes to the optimizer's own state
            context.insert_before_op(self.keep, inputs=[0], with_run=True)
            context.insert_after_op(self.compare, outputs=[], with_run=True, names=names)

    def keep(self, written, run):
        parameters = written if isinstance(written, list) else [written]
        run["before"] = [(parameter, parameter.detach().clone()) for parameter in parameters]

    def compare(self, run, names):
        for name, (parameter, before) in zip(names, run["before"], strict=True):
            if name is not None:
                size = ((parameter - before).norm() / before.norm()).item()
                self.largest[name] = max(size, self.largest.get(name, 0.0))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
model.append(torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.rand(256, 2) * 4 - 2
y = torch.sin(3 * x[:, :1]) + x[:, 1:] ** 2


@amanda.root
def step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def warm_up(steps=3):
    for _ in range(steps):
        step()


tool = UpdateSizes()
with amanda.apply(tool):
    warm_up()
    analyses = tool.analyses
    for _ in range(100):
        step()
for name, size in tool.largest.items():
    print(f"{name:10} {size:.4f}")
print(f"analyses: {analyses} in the first loop, {tool.analyses - analyses} in the second")
