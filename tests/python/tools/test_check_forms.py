"""Check finds other forms of a mistake than those of the rule's own program."""

import textwrap

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from amanda.tools.check.rules import RULES
from torch import nn

FORMS = [
    ("loss-broadcast", "(torch.topk(model(x), 1)[1] == labels).sum()"),
    ("loss-broadcast", "((model(x)[:, :1].sigmoid() > 0.5).float() == labels.float()).sum()"),
    ("loss-broadcast", "(model(x)[:, :1].sigmoid().round().long() == labels).sum()"),
    ("loss-broadcast", "(model(x).logsumexp(1).exp().clamp(0, 2) * torch.randn(4, 1)).mean().backward()"),
    ("clip-after-step", "loop(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))"),
    ("learning-rate-zero", "loop(after=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.01).step)"),
    ("relu-before-loss", "F.binary_cross_entropy_with_logits(model(x).relu(), torch.ones(4, 3)).backward()"),
    ("loss-operands-swapped", "F.binary_cross_entropy(torch.ones(4, 3), model(x).sigmoid()).backward()"),
    ("loss-operands-swapped", "F.cross_entropy(torch.eye(3)[labels], model(x).softmax(1)).backward()"),
    ("cosines-without-scale", "z = F.normalize(model(data)); F.cross_entropy((z @ z.T).T, torch.arange(9)).backward()"),
    ("weights-of-a-mean", "(F.mse_loss(model(x), torch.ones(4, 3)) * torch.rand(4, 3)).mean().backward()"),
    ("freeze-without-effect", "model[0].weight.require_grad = False; loop()"),
    ("axes-by-view", "torch.rand(2, 9, 10, 3).view(2, 3, 9, 10)"),
    ("axes-by-view", "nn.LSTM(4, 8, bidirectional=True)(torch.randn(5, 3, 4))[1][0].reshape(3, -1)"),
    ("state-not-copied", "best = dict(model.state_dict()); loop(); model.load_state_dict(best)"),
    (
        "target-with-gradient",
        "F.mse_loss(2 + 0.9 * model(x + 1).amax(1), model(x).gather(1, labels[:, None])[:, 0]).backward()",
    ),
    ("momentum-of-normalization", "nn.BatchNorm2d(4, momentum=0.9)(torch.randn(2, 4, 3, 3))"),
    ("layers-are-one", "stack = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8)] * 3); loop(also=stack)"),
]

ADVICE = [rule.name for rule in RULES if rule.is_advice]


@pytest.mark.filterwarnings("ignore")  # torch's own, about some of these mistakes
@pytest.mark.parametrize(("rule", "program"), FORMS, ids=lambda text: text[:40])
def test_a_form_of_a_mistake_is_found(rule, program):
    torch.manual_seed(0)
    x, labels, data = torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), torch.randn(9, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(between=lambda: None, after=lambda: None, also=None):
        if also is not None:
            optimizer.add_param_group({"params": list(also.parameters())})
        for _ in range(12):
            optimizer.zero_grad()
            between()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            after()

    names = {"torch": torch, "nn": nn, "F": F, "model": model, "optimizer": optimizer, "loop": loop}
    names |= {"x": x, "labels": labels, "data": data}
    with amanda.apply(Check(only=[rule] if rule in ADVICE else ())) as check:
        exec(compile(textwrap.dedent(program), "program.py", "exec"), names)
    assert check.skipped == {}
    assert [one.rule for one in check.findings()] == [rule]
