"""Tools that read values, in transformed programs and on tensors of every kind: what they can't read ends no program,
and is counted. A NaN is found inside a transformation, too."""

import logging
import warnings

import amanda
import pytest
import torch
from amanda.tools.gradients import GradientStatistics
from amanda.tools.histograms import ValueHistograms
from amanda.tools.nonfinite import NaNSentinel
from amanda.tools.statistics import OpStatistics
from amanda.tools.trace import Trace
from torch import func
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

DATA = {
    "finite": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "zeros": torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 4.0]]),
    "NaN": torch.tensor([[torch.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]),
    "infinite": torch.tensor([[torch.inf, 1.0, 2.0], [-torch.inf, 2.0, 3.0]]),
}


def f(x):
    y = torch.empty_like(x).copy_(x).clone()
    y.div_(y - y + 1).mul_(2)
    return torch.softmax(x.log(), -1).sum() + (x.sqrt() / x).sum() + y.norm() / y.norm()


def dual(x):
    with forward_ad.dual_level():
        f(forward_ad.make_dual(x, torch.ones_like(x)))


def dual_that_requires_a_gradient(x):
    with forward_ad.dual_level():
        f(forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x))).backward()


def gradients_in_batches(x):
    x.requires_grad_()
    torch.autograd.grad(f(x) * torch.ones(2), x, torch.eye(2), is_grads_batched=True)


def twice(x):
    x.requires_grad_()
    torch.autograd.grad(torch.autograd.grad(f(x), x, create_graph=True)[0].sum(), x)


def nested(x):
    values = torch.nested.nested_tensor([x[0], x[0, :2]], layout=torch.jagged, requires_grad=True)
    (values / values).sqrt().values().sum().backward()


def quantized(x):
    values = torch.quantize_per_tensor(x.nan_to_num(0, 0, 0), 0.1, 3, torch.quint8)
    torch.nn.functional.relu(values).dequantize() / 0.0


PROGRAMS = {
    "vmap": lambda x: func.vmap(f)(x),
    "vmap of vmap": lambda x: func.vmap(func.vmap(f))(x.expand(2, 2, 3)),
    "vmap of grad": lambda x: func.vmap(func.grad(f))(x),
    "grad": lambda x: func.grad(f)(x),
    "vjp": lambda x: func.vjp(f, x)[1](torch.tensor(1.0)),
    "jvp": lambda x: func.jvp(f, (x,), (x,)),
    "jvp of jvp": lambda x: func.jvp(lambda v: func.jvp(f, (v,), (v,))[1], (x,), (x,)),
    "jacfwd": lambda x: func.jacfwd(f)(x),
    "jacrev": lambda x: func.jacrev(f)(x),
    "hessian": lambda x: func.hessian(f)(x),
    "linearize": lambda x: func.linearize(f, x)[1](x),
    "functionalize": lambda x: func.functionalize(f)(x),
    "dual": dual,
    "dual that requires a gradient": dual_that_requires_a_gradient,
    "gradients in batches": gradients_in_batches,
    "twice": twice,
    "jacobian": lambda x: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "subclass": lambda x: f(TwoTensor(x, x)),
    "sparse": lambda x: (x.to_sparse() * 2 + x.to_sparse()).to_dense() / x,
    "sparse rows": lambda x: f(x.to_sparse_csr() @ torch.ones(3, 3)),
    "nested": nested,
    "quantized": quantized,
    "meta": lambda x: f(x.to("meta")),
    "complex": lambda x: (x.to(torch.complex64).conj() / x).abs().sum(),
    "zero tensor": lambda x: torch._efficientzerotensor((2, 3)) * x,
    "float8": lambda x: torch.stack([x.to(torch.float8_e5m2), x.to(torch.float8_e5m2)]),
    "inference": lambda x: torch.inference_mode()(f)(x.clone()),
    "no elements": lambda x: f(x[:0]),
}


def sentinel(**options):
    made = NaNSentinel(action="warn", **options)
    made._waits = options != {"inf": True}  # the other one is as on a device
    return made


TOOLS = {
    "sentinel": sentinel,
    "sentinel of infinities, on a device": lambda: sentinel(inf=True),
    "statistics": OpStatistics,
    "histograms": ValueHistograms,
    "gradients": GradientStatistics,
    "trace": lambda: Trace("*: output.isnan().sum()", "*: grad_output.norm()"),
}


def outcome(program, x):
    """How the program ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(x.clone())
        except Exception as error:
            return type(error), str(error)
    return None


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, "amanda")


ONCE = {"linearize"}  # it takes seconds
CASES = [
    pytest.param(PROGRAMS[program], TOOLS[tool], id=f"{program}-{tool}")
    for program in PROGRAMS
    for tool in TOOLS
    if program not in ONCE or tool in ("sentinel", "trace")
]


@pytest.mark.parametrize(("program", "make"), CASES)
def test_programs_end_as_without_the_tool(program, make):
    for x in DATA.values():
        expected, tool = outcome(program, x), make()
        with amanda.apply(tool):
            assert outcome(program, x) == expected
        tool.findings() if isinstance(tool, NaNSentinel) else tool.table()


FOUND = ["vmap", "vmap of vmap", "vmap of grad", "grad", "vjp", "jvp", "jacfwd", "jacrev", "hessian", "functionalize"]


@pytest.mark.parametrize("waits", [True, False], ids=["at once", "on a device"])
@pytest.mark.parametrize("program", FOUND)
def test_a_nan_in_a_transformed_program_is_found(program, waits):
    tool = NaNSentinel(action="warn", backward=False)
    tool._waits = waits
    with amanda.apply(tool):
        assert outcome(PROGRAMS[program], DATA["zeros"]) is None
    assert tool.first.name == "aten::log"
    assert tool.first.kind == "produced"
    if waits:
        assert tool.first.outputs[0].nans >= 1


@pytest.mark.parametrize("program", ["jvp", "jvp of jvp", "jacfwd", "dual", "dual that requires a gradient"])
def test_tangents_are_named(program, caplog):
    caplog.set_level(logging.WARNING, "amanda")
    tool = NaNSentinel(action="warn")
    with amanda.apply(tool):
        assert outcome(PROGRAMS[program], DATA["finite"]) is None
    assert tool.findings() == []
    assert tool.skipped["tangent"] >= 5
    told = "[nan] skips what it can't read: the tangent of a forward-mode derivative, which tools are not shown (said once)"
    assert caplog.messages.count(told) == 1
    tool.reset()
    assert "tangent" not in tool.skipped


@pytest.mark.parametrize("program", ["vmap", "grad", "vjp", "jacrev", "functionalize", "inference", "twice"])
def test_other_derivatives_have_no_tangents(program):
    tool = NaNSentinel(action="warn")
    with amanda.apply(tool):
        assert outcome(PROGRAMS[program], DATA["finite"]) is None
    assert "tangent" not in tool.skipped
