"""The rules of Check: each finds what is wrong in its bad program, and no rule finds anything in a good one."""

import contextlib
import datetime
import gc
import json
import textwrap
from pathlib import Path

import amanda
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from amanda.tools.check import RULES, Check
from process_groups import destroy_group
from rank_programs import Ranks
from torch import nn

BY_NAME = {rule.name: rule for rule in RULES if not rule.is_of_tensorflow}
OF_ONE = [name for name, rule in BY_NAME.items() if rule.processes == 1 and not rule.library]
OF_RANKS = [name for name, rule in BY_NAME.items() if rule.processes == 2]


@contextlib.contextmanager
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def run(program, check, rank=0):
    """The programs of rules have a model, its optimizer, examples and labels."""
    torch.manual_seed(0)
    names = {"torch": torch, "nn": nn, "F": F, "one_process": one_process, "rank": rank}
    names |= {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 2, 0])}
    model = names["model"] = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    del model
    with amanda.apply(check):
        exec(compile(textwrap.dedent(program), "program.py", "exec"), names)
        gc.collect()
    assert check.skipped == {}
    return check.findings()


@pytest.mark.filterwarnings("ignore")  # torch's own, about some of these mistakes
@pytest.mark.parametrize("name", OF_ONE)
def test_the_bad_program_has_one_finding(name):
    found = run(BY_NAME[name].bad, Check(only=[name]))
    assert [one.rule for one in found] == [name]
    assert found[0].place.source.startswith("program.py:")
    if not BY_NAME[name].is_advice:
        assert [one.rule for one in run(BY_NAME[name].bad, Check())] == [name]


def in_a_function(program):
    """The program as a function that has the model and the optimizer, which are gone when it returns."""
    names = "model, optimizer, x, labels"
    lines = [f"def main({names}):", textwrap.indent(textwrap.dedent(program), "    ")]
    lines += [f"given = [{names}]", f"del {names}", "main(*(given.pop(0) for _ in range(4)))"]
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in OF_ONE if name != "scheduler-not-stepped"])
def test_the_bad_program_has_its_finding_when_the_model_is_gone(name):
    assert [one.rule for one in run(in_a_function(BY_NAME[name].bad), Check(only=[name]))] == [name]


@pytest.mark.parametrize("name", OF_ONE)
def test_the_good_program_has_none(name):
    assert run(BY_NAME[name].good, Check(only=[name])) == []
    assert run(BY_NAME[name].good, Check()) == []


MADE_IN_FORWARD = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 8)
        def forward(self, x):
            return {layer}(self.body(x))
    net, losses = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(5):
        net.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            net(x)
"""


def test_layers_that_are_made_in_forward():
    (one,) = run(MADE_IN_FORWARD.format(layer="nn.Linear(8, 3)"), Check())
    assert (one.rule, one.place.name) == ("parameter-not-in-optimizer", "aten::linear")
    assert one.evidence == "Linear is made anew in each step, with other weights"
    (one,) = run(MADE_IN_FORWARD.format(layer="nn.Dropout(0.5)"), Check())
    assert (one.rule, one.place.name, one.count) == ("dropout-ignores-mode", "aten::dropout", 5)
    assert one.evidence == "Net.training is False, and the probability is 0.5"
    assert run(MADE_IN_FORWARD.format(layer="nn.Dropout(0.5).train(self.training)"), Check()) == []


LISTED = """
    layers = [nn.Linear(4, 4) for _ in range(6)]
    def run(x):
        for layer in layers:
            x = layer(x)
        return x
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(run(x)), labels).backward()
        optimizer.step()
"""


def test_layers_of_one_line_that_no_optimizer_has_are_one_finding():
    (one,) = run(LISTED, Check())
    assert (one.rule, one.place.source, one.count) == ("parameter-not-in-optimizer", "program.py:5", 1)
    assert one.evidence.endswith(" and 9 more got gradients, and kept their first values")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("{'epoch': 3, 'state_dict': model.state_dict()}", "the tensors are in the entry 'state_dict'"),
        ("torch.compile(model).state_dict()", "'_orig_mod.0.weight' is '0.weight' there, without '_orig_mod.'"),
        ("{'optimizer': 1, **nn.ModuleDict({'net': model}).state_dict()}", "'net.0.weight' is '0.weight' there"),
    ],
)
def test_a_checkpoint_with_other_names(state, said):
    load = (
        "net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\nnet.load_state_dict(STATE, strict=False)\n"
    )
    load = load.replace("STATE", state)
    (one,) = run(load, Check())
    assert (one.rule, one.place.name, one.place.source) == (
        "nothing-loaded",
        "Sequential.load_state_dict",
        "program.py:2",
    )
    assert said in one.evidence
    assert run(f"{load}net.load_state_dict(model.state_dict())", Check()) == []
    assert run(f"{load}nn.Sequential(net).load_state_dict(nn.Sequential(model).state_dict())", Check()) == []


def test_a_checkpoint_with_other_objects():
    """An object has a shape that is None, and a module is empty."""
    load = "import types\nnn.Sequential().load_state_dict({'a': types.SimpleNamespace(shape=None)}, strict=False)"
    load += "\nmodel.load_state_dict({'a': {'0.weight': types.SimpleNamespace(shape=None)}}, strict=False)"
    check = Check()
    assert (run(load, check), check.skipped) == ([], {})


def test_a_checkpoint_whose_names_lack_a_prefix():
    (one,) = run("nn.DataParallel(model).load_state_dict(model.state_dict(), strict=False)", Check())
    assert one.evidence.endswith("'0.weight' is 'module.0.weight' there, with 'module.'")
    assert run("nn.DataParallel(nn.Linear(3, 3)).load_state_dict(model.state_dict(), strict=False)", Check()) == []


def test_the_method_of_modules_is_put_back():
    plain = nn.Module.load_state_dict
    outer, inner = (Check(only=["nothing-loaded"]) for _ in range(2))
    load = "model.load_state_dict({'module.' + k: v for k, v in model.state_dict().items()}, strict=False)"
    with amanda.apply(outer):
        with amanda.apply(inner):
            pass
        assert nn.Module.load_state_dict is not plain
        assert len(run(load, Check(only=["nothing-loaded"]))) == 1
    assert (len(outer.findings()), inner.findings()) == (1, [])
    assert nn.Module.load_state_dict is plain
    with amanda.apply(Check(only=["labels"])):
        assert nn.Module.load_state_dict is plain


ACCUMULATED = """
    for lengths in ((4, 1), (1, 3), (2, 2), (4, 1)):
        optimizer.zero_grad()
        for counted in lengths:
            few = labels.masked_fill(torch.arange(4) >= counted, -100)
            {}.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        ("F.cross_entropy(model(x), few)", 3),
        ("F.cross_entropy(model(x[:counted]), labels[:counted])", 3),
        ("F.nll_loss(model(x).log_softmax(1), few)", 3),
        ("(F.cross_entropy(model(x), few) * counted)", 0),
        ("(F.cross_entropy(model(x), few, reduction='sum') / 5)", 0),
        ("F.cross_entropy(model(x), few, weight=torch.ones(3))", 0),  # their weights count, not their number
        ("(F.cross_entropy(model(x), few) + F.cross_entropy(model(x + 1), few))", 0),  # not known
    ],
)
def test_accumulated_means(loss, count):
    found = run(ACCUMULATED.format(loss), Check(only=["accumulation-uneven"]))
    assert [(one.place.source, one.count) for one in found] == [("program.py:6", count)] * bool(count)
    if found:
        assert found[0].evidence == "in one step, a target of 1 counts 4 times as much as one of 4"


def test_means_of_two_losses_in_a_step():
    """Each has targets of its own."""
    program = """
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        F.cross_entropy(model(x[:1]), labels[:1]).backward()
        optimizer.step()
    """
    assert run(program, Check(only=["accumulation-uneven"])) == []


def test_accumulated_means_over_almost_as_many_targets():
    program = (
        ACCUMULATED.format("F.cross_entropy(model(x), few)").replace("(4, 1)", "(4, 3)").replace("(1, 3)", "(3, 2)")
    )
    assert run(program, Check(only=["accumulation-uneven"])) == []


@pytest.mark.parametrize("path", ["helpers.py", "/usr/lib/python3/dist-packages/trainer.py"])
def test_a_library_that_divides_a_loss_does_so_for_accumulation(path):
    source = "def divided(loss):\n    return loss / 4"
    program = f"""
    exec(compile({source!r}, {path!r}, "exec"))
    for _ in range(3):
        optimizer.zero_grad()
        divided(F.cross_entropy(model(x), labels)).backward()
        optimizer.step()
    """
    found = [one.rule for one in run(program, Check())]
    assert found == ([] if "packages" in path else ["loss-divided-twice"])


DETACHED = """
    for _ in range(3):
        optimizer.zero_grad()
        {}.backward()
        optimizer.step()
"""
CTC = """
    scores, lengths = nn.Linear(4, 3)(torch.randn(10, 2, 4)), torch.tensor([2, 4])
    targets = torch.randint({targets}, (2, 4))
    targets[0, 2:] = 0  # padding
    F.ctc_loss({scores}, targets, torch.tensor([10, 10]), lengths).backward()
"""
SIGNS = """
    for target in (torch.tensor([1, 0, 0, 1]), torch.tensor([0.0, 1.0, 1.0, 1.0])):
        a, b = model(x)[:, 0], model(x)[:, 1]
        {}.backward()
"""
KINDS = [
    ("not-probabilities", CTC.format(scores="scores", targets="1, 3")),
    ("softmax-before-loss", CTC.format(scores="scores.softmax(-1)", targets="1, 3")),
    ("softmax-over-batch", CTC.format(scores="scores.log_softmax(1)", targets="1, 3")),
    ("labels", CTC.format(scores="scores.log_softmax(-1)", targets="0, 2")),
    ("labels", CTC.format(scores="scores.log_softmax(-1)", targets="3, 4")),
    ("zero-for-minus-one", SIGNS.format("F.hinge_embedding_loss(a, target)")),
    ("softmax-before-loss", "F.kl_div(model(x).softmax(-1), torch.full((4, 3), 1 / 3), reduction='sum').backward()"),
    ("not-probabilities", "F.kl_div(model(x), torch.full((4, 3), 1 / 3), reduction='sum').backward()"),
    ("not-probabilities", "F.nll_loss(nn.Conv2d(4, 3, 1)(x.view(1, 4, 2, 2)), torch.ones(1, 2, 2).long()).backward()"),
    ("one-class", "F.binary_cross_entropy(nn.Linear(4, 1)(x).softmax(1), torch.ones(4, 1)).backward()"),
    ("one-class", "F.cross_entropy(nn.Conv2d(4, 1, 1)(x.view(2, 4, 1, 2)), torch.zeros(2, 1, 2).long()).backward()"),
    (
        "batch-axis",
        """
        layer = nn.TransformerEncoderLayer(4, 2, 8)
        for _ in range(2):
            F.mse_loss(layer(torch.randn(4, 5, 4)).mean((1, 2)), torch.zeros(4)).backward()
        """,
    ),
    (
        "clip-after-step",
        """
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model[0].weight, 1.0, foreach=False)
        """,
    ),
    ("gradient-cleared", DETACHED.format("torch.tensor(F.cross_entropy(model(x), labels).item(), requires_grad=True)")),
    (
        "gradient-cleared",
        """
        for _ in range(3):
            F.cross_entropy(model(x), labels).backward()
            optimizer.zero_grad()
            optimizer.step(lambda: None)
        """,
    ),
    (
        "penalty-without-gradient",
        """
        for _ in range(3):
            optimizer.zero_grad()
            t = torch.rand(8, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(model(t).sum(), t)
            residual = F.mse_loss(slope[:, :1], -t[:, :1].detach())
            loss = residual + (model(torch.zeros(1, 4)) - 1).square().mean()
            (0.5 * loss).backward()
            optimizer.step()
        """,
    ),
    ("gradient-cleared", DETACHED.format("F.mse_loss(model(x).argmax(1).float().requires_grad_(), labels.float())")),
    (
        "classes-mixed",
        "F.nll_loss(nn.Conv1d(4, 3, 1)(torch.randn(2, 4, 5)).view(-1, 3).log_softmax(1), torch.ones(10).long())",
    ),
    (
        "tied-by-memory",
        """
        layers = [nn.Linear(4, 4) for _ in range(2)]
        layers[1].weight.data = layers[0].weight.data.t().t()
        optimizer = torch.optim.Adam([one for layer in layers for one in layer.parameters()])
        layers[1](layers[0](x)).sum().backward()
        optimizer.step()
        """,
    ),
    (
        "parameter-not-in-optimizer",
        """
        layers = [nn.Linear(4, 4)]
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(layers[0](x)), labels).backward()
            optimizer.step()
        """,
    ),
]
RIGHT = [
    CTC.format(scores="scores.log_softmax(-1)", targets="1, 3"),
    CTC.format(scores="scores.log_softmax(-1)", targets="0, 2").replace("lengths)", "lengths, blank=2)"),
    CTC.format(scores="scores.log_softmax(-1)", targets="1, 3").replace(
        "targets,", "targets.view(-1)[[0, 1, 4, 5, 6, 7]],"
    ),
    SIGNS.format("F.margin_ranking_loss(a, b, target)"),  # each pair also comes the other way round
    SIGNS.format("F.soft_margin_loss(a, target)"),  # what has 0 is masked
    SIGNS.format("F.cosine_embedding_loss(model(x), model(x), target.clamp(min=1))"),
    """
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step(lambda: None)
    """,
    """
    x.requires_grad_()
    for _ in range(3):  # of an attack, of a loss weighed by norms, of a step that is tried, and of a number for the log
        optimizer.zero_grad()
        slope = torch.autograd.grad(F.cross_entropy(model(x), labels), x)[0]
        first, second = F.cross_entropy(model(x + 0.1 * slope.sign()), labels), model(x).square().mean()
        norms = [torch.autograd.grad(one, model[2].weight, retain_graph=True)[0].norm() for one in (first, second)]
        tried = dict(model.named_parameters())
        steps = torch.autograd.grad(first, list(tried.values()), retain_graph=True)
        tried = {name: one - 0.1 * step for (name, one), step in zip(tried.items(), steps)}
        third = F.cross_entropy(torch.func.functional_call(model, tried, (x,)), labels)
        print((first + norms[0]).item())
        (first + (norms[0] / norms[1]).clamp(0, 10) * second + third).backward()
        optimizer.step()
    """,
    """
    scale = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([scale], 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (x * scale).square().sum().backward()
        nn.utils.clip_grad_norm_([scale], 1.0, foreach=False)
        optimizer.step()
        nn.utils.clip_grad_norm_([scale], 1.0, foreach=False)
    """,
    """
    other = nn.Linear(4, 3)
    of_other = torch.optim.SGD(other.parameters(), 0.1)
    for _ in range(4):
        for one in (optimizer, of_other):
            one.zero_grad()
        (F.cross_entropy(model(x), labels) + F.cross_entropy(other(x), labels)).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        of_other.step()
    """,
    """
    scores = nn.Linear(4, 6)(torch.randn(2, 3, 4)).view(-1, 3)  # two heads, and as many steps as classes
    F.cross_entropy(scores, torch.ones(12).long())
    F.cross_entropy(nn.Linear(4, 3)(torch.randn(2, 5, 4)).view(-1, 3), torch.ones(10).long())
    """,
    """
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    for _ in range(2):
        F.mse_loss(layer(torch.randn(4, 5, 4)).mean((1, 2)), torch.zeros(4)).backward()
    """,
    """
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    for _ in range(2):
        F.mse_loss(layer(torch.randn(5, 4, 4)).mean((0, 2)), torch.zeros(4)).backward()
    """,
    """
    layer, head = nn.LSTM(4, 8), nn.Linear(8, 1)
    for steps in (4, 6):  # as many steps as examples, once
        F.mse_loss(head(layer(torch.randn(steps, 4, 4))[0][-1])[:, 0], torch.zeros(4)).backward()
    """,
]


@pytest.mark.parametrize(("name", "program"), KINDS)
def test_mistakes_of_the_same_kind(name, program):
    assert [one.rule for one in run(program, Check())] == [name]


@pytest.mark.parametrize("program", RIGHT)
def test_right_programs_that_look_alike(program):
    assert run(program, Check()) == []


def run_on_a_rank(rank, path):
    torch.set_num_threads(1)
    found = {}
    for name in OF_RANKS:
        for kind in ("good", "bad"):
            where, timeout = f"file://{path}/{name}.{kind}", datetime.timedelta(seconds=60)
            torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timeout)
            program = getattr(BY_NAME[name], kind)
            found[f"{name}.{kind}"] = [one.rule for one in run(program, Check(), rank)]
            destroy_group()
    Path(path, f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def of_ranks(preloaded, tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    Ranks(preloaded, path).function(run_on_a_rank, 2, str(path))
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", OF_RANKS)
def test_programs_of_several_processes(name, of_ranks):
    """The rank that is last to look sees the notes of the other one."""
    assert {tuple(rank[f"{name}.bad"]) for rank in of_ranks} | {()} == {(name,), ()}
    assert [rank[f"{name}.good"] for rank in of_ranks] == [[], []]
