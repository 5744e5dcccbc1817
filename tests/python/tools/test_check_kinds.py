"""Check finds the kinds of silent errors on which TrainCheck (OSDI 2025) was evaluated, and nothing in their right twins.

Each file of `check_kinds` is one of its 18 errors, rebuilt: `wrong`, whose faulty line ends in "# wrong", and `right`.
`UNSEEN` names the others. https://github.com/OrderLab/TrainCheck-Evaluation-Workloads has the originals.
"""

import datetime
import functools
import importlib.util
import inspect
import json
from pathlib import Path

import amanda
import pytest
import torch
from amanda.tools.check import Check
from process_groups import destroy_group
from rank_programs import Ranks

FOLDER = Path(__file__).parent / "check_kinds"
KINDS = sorted(path.stem for path in FOLDER.glob("*.py"))
STANDS_FOR = {"data_loss": ("pytorch_84803", "pytorch_96600", "baichuan2_86")}
UNSEEN = {
    "transformers_23723": "the limit of generated tokens is a number in Python, and no operator has it",
    "transformers_34204": "several images for one text are right for this model, and a batch of one text is",
}
RANKS = 2


@functools.cache
def kind(name):
    spec = importlib.util.spec_from_file_location(f"check_kinds_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OF_RANKS = [name for name in KINDS if "RANKS = 2" in (FOLDER / f"{name}.py").read_text()]
OF_ONE = [name for name in KINDS if name not in OF_RANKS]


def findings(program):
    torch.manual_seed(0 if not torch.distributed.is_initialized() else torch.distributed.get_rank())
    check = Check(advice=True)
    with amanda.apply(check):
        program()
    assert check.skipped == {}
    left_out = {"weight-decay-on-norms"}
    return [(one.rule, one.place.source, one.evidence) for one in check.findings() if one.rule not in left_out]


def is_named(module, found):
    """The rule, in the line that is marked, or with this line of another rank; no other rule."""
    lines = inspect.getsource(module).splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("# wrong"))
    rules = {rule for rule, _, _ in found}
    right = [one for one in found if one[0] == module.FINDS and f"{module.__file__}:{line}" in " ".join(one[1:])]
    assert right, found
    assert rules <= {module.FINDS, getattr(module, "ALSO", "")}
    assert getattr(module, "SAYS", "") in right[0][2]


@pytest.mark.parametrize("name", OF_ONE)
def test_the_error_is_named_with_its_line(name):
    is_named(kind(name), findings(kind(name).wrong))


@pytest.mark.parametrize("name", OF_ONE)
def test_nothing_is_found_in_the_right_twin(name):
    assert findings(kind(name).right) == []


def accumulation():
    """The first pass of each step is not averaged."""
    model = torch.nn.Linear(4, 3)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(torch.randn(6, 4)).square().mean().backward()
        ddp(torch.randn(6, 4)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def sharded_optimizer():
    """Each rank steps its own part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        ddp(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


RIGHT = {"accumulation": accumulation, "sharded optimizer": sharded_optimizer}


def find_on_a_rank(rank, path):
    torch.set_num_threads(1)
    found = {}
    for name in OF_RANKS:
        for twin in ("right", "wrong"):
            where, timeout = f"file://{path}/{name}.{twin}", datetime.timedelta(seconds=60)
            torch.distributed.init_process_group(
                "gloo", init_method=where, rank=rank, world_size=RANKS, timeout=timeout
            )
            found[f"{name}.{twin}"] = findings(getattr(kind(name), twin))
            destroy_group()
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/right", rank=rank, world_size=RANKS)
    found |= {f"{name}.right": findings(program) for name, program in RIGHT.items()}
    destroy_group()
    Path(path, f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def of_ranks(preloaded, tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    Ranks(preloaded, path).function(find_on_a_rank, RANKS, str(path))
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", OF_RANKS)
def test_the_error_of_several_ranks_is_named_on_one_of_them(name, of_ranks):
    found = [one for one in (rank[f"{name}.wrong"] for rank in of_ranks) if one]
    assert found
    for of_rank in found:
        is_named(kind(name), of_rank)


@pytest.mark.parametrize("name", [*OF_RANKS, *RIGHT])
def test_nothing_is_found_on_any_rank_in_the_right_twin(name, of_ranks):
    assert [rank[f"{name}.right"] for rank in of_ranks] == [[]] * RANKS


def test_sixteen_of_eighteen_are_named():
    named = [error for name in KINDS for error in STANDS_FOR.get(name, (name,))]
    assert (len(named), len(named) + len(UNSEEN)) == (16, 18)
