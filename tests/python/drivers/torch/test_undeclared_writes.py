"""Operators that write to arguments their schemas call read-only: running statistics stay the program's own."""

import contextlib

import amanda
import pytest
import torch
import torch.nn.functional as F
from faithful import RunOriginal
from sample_inputs import sample_inputs

MOST_SAMPLES = 4  # of each operator


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def same(a, b):
    if a.is_complex():  # memory that nothing was written to may have any value, NaN among them
        a, b = (torch.view_as_real(each.detach().resolve_conj()) for each in (a, b))
    return a.shape == b.shape and torch.isclose(a.detach(), b, rtol=0, atol=0, equal_nan=a.is_floating_point()).all()


class Watch(amanda.Tool):
    """Finds arguments that an operator has written to, on all levels, and that its schema does not name."""

    def __init__(self):
        super().__init__()
        self.found = set()
        self.add_inst_for_op(self.analyse, nested=True)

    def analyse(self, context):
        if context.op.__name__.startswith("resize"):
            return
        context.may_mutate()  # or a first find would end the run
        written = [
            a.alias_info is not None and a.alias_info.is_write
            for a in torch._C.parse_schema(context.op.schema).arguments
        ]
        context.insert_before_op(self.before, with_run=True, written=written)
        context.insert_after_op(self.after, [], with_run=True, op=context.op, written=written)

    def before(self, *values, run, written):
        memory = {
            t.untyped_storage()._cdata
            for value, w in zip(values, written, strict=True)
            if w
            for t in tensors_in(value)
            if t.layout == torch.strided
        }
        run["kept"] = [
            [
                (tensor, tensor.detach().clone(), tensor._version)
                for tensor in tensors_in(value)
                if tensor.layout == torch.strided
                and not tensor.is_nested
                and tensor.untyped_storage()._cdata not in memory
            ]
            for value in values
        ]

    def after(self, *, run, op, written):
        for name, kept, w in zip(op.input_names, run["kept"], written, strict=True):
            for tensor, copy, version in kept:
                if not w and (tensor._version != version or not same(tensor, copy)):
                    self.found.add((op.name, name))


@pytest.fixture(scope="module")
def found():
    """All that PyTorch's operator database shows, in training mode and out of it."""
    from torch.testing._internal.common_methods_invocations import op_db  # it takes seconds

    tool = Watch()
    with torch.random.fork_rng():
        for op in op_db:
            if torch.float32 not in op.supported_dtypes("cpu"):
                continue
            with contextlib.suppress(Exception):  # the sweep compares what raises
                for sample, _ in zip(sample_inputs(op, torch.float32), range(MOST_SAMPLES), strict=False):
                    with amanda.apply(tool):
                        op.op(sample.input, *sample.args, **sample.kwargs)
    return tool.found


@pytest.mark.long  # 600 operators, of which only another PyTorch has others
def test_the_list_has_all_that_the_operator_database_shows(found):
    assert found <= amanda._torch.undeclared_writes()
    assert {("aten::native_batch_norm", "running_mean"), ("aten::instance_norm", "running_var")} <= found


def test_what_is_listed_exists():
    for name, argument in amanda._torch.undeclared_writes():
        if name.startswith("aten::"):
            schemas = torch._C._jit_get_schemas_for_operator(name)
            assert any(argument in [a.name for a in schema.arguments] for schema in schemas), (name, argument)


def norm_of(name, x, mean, variance, training):
    if name == "batch_norm":
        return F.batch_norm(x, mean, variance, training=training)
    return F.instance_norm(x, mean, variance, use_input_stats=training)


def clones(*values):
    return [v.clone() if isinstance(v, torch.Tensor) else None for v in values]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_an_equal_copy_in_place_of_running_statistics_loses_nothing(name, training, before):
    x = torch.randn(4, 3, 2, 2)
    expected = [torch.zeros(3), torch.ones(3)]
    got = [torch.zeros(3), torch.ones(3)]
    y = [norm_of(name, x, *expected, training) for _ in range(2)]
    with amanda.apply(before(name, clones)):
        z = [norm_of(name, x, *got, training) for _ in range(2)]
    for a, b in zip([*y, *expected], [*z, *got], strict=True):
        assert torch.equal(a, b)


def test_below_autograd_too():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.insert_before_op(clones), ops="native_batch_norm", nested=True)
    x, model = torch.randn(4, 3, 2, 2), torch.nn.BatchNorm2d(3)
    other = torch.nn.BatchNorm2d(3)
    other(x)
    with amanda.apply(tool):
        model(x)
    assert torch.equal(model.running_mean, other.running_mean)
    assert torch.equal(model.running_var, other.running_var)


def test_the_tools_own_tensor_is_not_written_to(before):
    own, mean, variance = torch.full((3,), 5.0), torch.zeros(3), torch.ones(3)
    with amanda.apply(before("batch_norm", lambda mean: own, ["running_mean"])):
        F.batch_norm(torch.randn(4, 3), mean, variance, training=True, momentum=0.0)
        F.batch_norm(torch.randn(4, 3), mean, variance, training=True, momentum=0.5)
    assert own.tolist() == [5.0] * 3
    assert mean.tolist() != [0.0] * 3


def test_statistics_that_are_only_read_stay_what_they_were(before):
    mean, variance = torch.zeros(3), torch.ones(3)
    with amanda.apply(before("batch_norm", lambda mean: mean + 1, ["running_mean"])):
        y = F.batch_norm(torch.ones(2, 3), mean, variance)
    assert y.abs().max().item() == 0.0
    assert mean.tolist() == [0.0] * 3


def test_saved_statistics_stay_valid(before):
    """The same layer twice: what the first call saved must not count as changed."""
    model = torch.nn.BatchNorm1d(3)
    x = torch.randn(4, 3, requires_grad=True)
    with amanda.apply(before("batch_norm", clones)):
        (model(x) + model(x * 2)).sum().backward()
    assert x.grad is not None


def test_such_an_operator_is_replaced_by_itself():
    library = torch.library.Library("amanda_test_undeclared", "FRAGMENT")
    library.define("fill(Tensor value, Tensor out) -> (Tensor, Tensor)")
    library.impl("fill", lambda value, out: (out.copy_(value).clone(), value.clone()), "CPU")
    out, mean, variance = torch.zeros(2), torch.zeros(3), torch.ones(3)
    with amanda.apply(RunOriginal()):
        torch.ops.amanda_test_undeclared.fill(torch.ones(2), out)
        F.instance_norm(torch.randn(2, 3, 4), mean, variance)
    assert out.tolist() == [1.0, 1.0]
    assert mean.tolist() != [0.0] * 3


def test_a_replacement_still_must_not_write_itself(replace, says):
    def routine(x):
        x.add_(1)
        return x.relu()

    text = (
        "it changed input 0 (self) in place, and that stays changed; return a new tensor instead, or call "
        "context.may_mutate() at analysis"
    )
    with (
        says(amanda.Error, f"[action] tool: routine replacing aten::relu: {text}"),
        amanda.apply(replace("relu", routine)),
    ):
        torch.relu(torch.ones(2))
