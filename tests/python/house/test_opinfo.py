"""PyTorch's operator database in a scope: some of its operators. `make sweep` takes them all, and says what it compares."""

import amanda
import pytest
import torch

STEP = 59  # prime, so that the sample is of all kinds: about 12 of 700 operators


@pytest.fixture(scope="module")
def sweep():
    """Imported here: PyTorch's database takes seconds."""
    import sweep

    return sweep


@pytest.mark.long  # `.ci/run` takes all operators
def test_every_call_is_the_same_to_the_last_bit(sweep, capsys):
    found, sample = sweep.Findings(), sweep.operators(20, STEP)
    for op in sample:
        of_op = sweep.sweep(op)
        assert of_op.samples or of_op.excluded, sweep.name_of(op)
        found.add(of_op)
    with capsys.disabled():
        print("\n\n" + found.table())  # what was compared and what was left out
    assert not found.failures
    assert found.operators == len(sample) > 10
    assert found.samples > 400


# ---- would the sweep notice? -----------------------------------------------------------------------------------------


class Meddler(amanda.Tool):
    """Does something that it must not do, to operators of one name."""

    def __init__(self, ops, **routines):
        super().__init__()
        self.routines = routines
        self.add_inst_for_op(self.analyse, ops=ops)
        self.add_inst_for_op(self.analyse_backward, ops=ops, backward=True)

    def analyse(self, context):
        if "after" in self.routines:
            context.insert_after_op(self.routines["after"])
        if "mutating" in self.routines:
            context.may_mutate()
            context.insert_before_op(self.routines["mutating"])

    def analyse_backward(self, context):
        if "backward" in self.routines and context.backward_op.__name__ != "AccumulateGrad":
            context.insert_after_backward_op(self.routines["backward"])


def negative_zero(tensor):
    return torch.where(tensor == 0, -0.0, tensor)


def draw(*values):
    torch.rand(1)


def other_strides(tensor):
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def write_and_put_back(tensor):
    tensor.add_(0)  # the same bits, but a version that autograd sees


@pytest.mark.parametrize(
    ("ops", "routines", "said"),
    [
        ("relu", {"after": negative_zero}, "bits"),
        ("exp", {"after": other_strides}, "stride"),
        ("exp", {"after": draw}, "random state"),
        ("sin", {"mutating": write_and_put_back}, "version"),
        ("sin", {"backward": lambda gradient: gradient * (1 + 2**-22)}, "bits"),
    ],
)
def test_the_sweep_notices(sweep, ops, routines, said, monkeypatch):
    monkeypatch.setattr(sweep, "DTYPES", (torch.float32,))
    name = "nn.functional.relu" if ops == "relu" else ops
    op = next(op for op in sweep.operators() if sweep.name_of(op) == name)
    found = sweep.sweep(op, {"meddle": lambda: Meddler(ops, **routines)})
    assert any(said in failure for failure in found.failures), found.failures[:3]
