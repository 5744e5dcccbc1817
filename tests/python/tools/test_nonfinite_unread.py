"""NaNSentinel where it cannot read what an operator was given: it does not say that the operator produced the NaN."""

import re
import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteWarning
from torch.utils._pytree import tree_map

NEGATIVE = -torch.eye(2)


class Wrapper(torch.Tensor):
    """Has its elements in another tensor. The sum is none."""

    @staticmethod
    def __new__(cls, elements):
        return torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype)

    def __init__(self, elements):
        self.elements = elements

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = tree_map(lambda value: value.elements if isinstance(value, Wrapper) else value, (args, kwargs or {}))
        result = function(*plain[0], **plain[1])
        if function is torch.ops.aten.sum.default:
            return result
        return tree_map(lambda value: Wrapper(value) if isinstance(value, torch.Tensor) else value, result)


def nested():
    parts = [torch.tensor([1.0, -1.0]), torch.tensor([2.0])]
    torch.nested.nested_tensor(parts, layout=torch.jagged).log().to_padded_tensor(0.0)


def batched():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = x.sqrt() * torch.tensor([0.0, 1.0])
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)


# what runs, the operator that could be read, what could not, and who made that
HIDDEN = {
    "sparse": (lambda: NEGATIVE.to_sparse().sqrt().to_dense(), "aten::to_dense", "a sparse tensor", "aten::sqrt"),
    "csr": (
        lambda: NEGATIVE.to_sparse_csr().sqrt() @ torch.ones(2, 2),
        "aten::matmul",
        "a sparse tensor",
        "aten::sqrt",
    ),
    "in place": (lambda: NEGATIVE.to_sparse().sqrt_().to_dense(), "aten::to_dense", "a sparse tensor", "aten::sqrt_"),
    "nested": (nested, "aten::to_padded_tensor", "a nested tensor", "aten::log"),
    "subclass": (
        lambda: Wrapper(NEGATIVE).log().sum(),
        "aten::sum",
        "a tensor subclass with its own __torch_dispatch__",
        "aten::log",
    ),
    "batched": (
        batched,
        "aten::_remove_batch_dim",
        "a tensor under an older vmap, such as is_grads_batched=True",
        "SqrtBackward0 of aten::sqrt",
    ),
}


def looked(run, *, waits=True, **options):
    sentinel = NaNSentinel(action="warn", **options)
    sentinel._waits = waits
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        run()
    return sentinel


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("waits", [True, False], ids=["at once", "on a device"])
@pytest.mark.parametrize("case", HIDDEN)
def test_the_operator_that_reads_it_is_not_said_to_have_produced_it(case, waits):
    run, name, what, maker = HIDDEN[case]
    (found,) = looked(run, waits=waits).findings()
    assert (found.kind, found.name, found.cause) == ("unread", name, "")
    unread = rf"input self, which could not be read \({re.escape(what)}, made by {maker} \(.*\.py:\d+\), \w+\)"
    assert re.fullmatch(unread, found.unread)
    head = str(found).splitlines()[0]
    assert re.fullmatch(
        rf"the first NaN was seen in the result of {name} \(.*\), forward; it may come from {unread}", head
    )


def test_a_finite_value_that_cannot_be_read_is_no_finding():
    assert looked(lambda: torch.eye(2).to_sparse().sqrt().to_dense(), inf=True).findings() == []


def test_what_was_seen_before_and_went_through_it_is_passed_on():
    def run():
        (NEGATIVE.sqrt() * 1).to_sparse().mul(2).to_dense()

    sentinel = looked(run)
    assert [(one.name, one.kind) for one in sentinel.findings()] == [("aten::sqrt", "produced")]
    assert sentinel.propagated == 2  # mul and to_dense
    assert looked(run, allow_ops=["sqrt"]).findings() == []


def test_a_number_that_the_program_writes_is_made_by_the_operator_that_writes_it():
    def at_an_index(x):
        x[0] = torch.nan

    def to_a_part(x):
        x[1:2] = torch.nan

    def by_a_mask(x):
        x[x == 0] = torch.nan

    names = {at_an_index: "aten::copy_", to_a_part: "aten::fill_", by_a_mask: "aten::index_put_"}
    for write, name in names.items():
        (found,) = looked(lambda write=write: write(torch.zeros(3))).findings()
        assert (found.kind, found.name) == ("produced", name)
        assert re.fullmatch(r"the program wrote nan for input \w+", found.cause)
    (found,) = looked(lambda: torch.ones(2) * torch.nan).findings()
    assert (found.kind, found.cause) == ("produced", "the program wrote nan for input other")


def test_a_tensor_with_one_element_that_the_program_has_is_data():
    data = torch.tensor(torch.nan)

    def write(x):
        x[0] = data
        x[1:2] = data

    found = looked(lambda: write(torch.zeros(3))).findings()
    assert [(one.name, one.kind) for one in found] == [("aten::copy_", "given")]


def test_what_hooks_of_the_program_keep_for_the_backward_pass_may_have_held_what_was_seen_before():
    weight = torch.nn.Parameter(torch.tensor([torch.nan, 1.0]))

    def run():
        x = torch.ones(2, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            loss = (x * weight).sum()
        loss.backward()

    given, after = looked(run).findings()
    assert (given.kind, given.name, given.backward_op) == ("given", "aten::mul", "")
    assert (after.kind, after.backward_op) == ("unread", "MulBackward0")
    assert after.unread.startswith("saved other, which could not be read (hooks of the program keep it) or saved self")
