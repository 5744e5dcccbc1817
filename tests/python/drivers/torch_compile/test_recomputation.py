"""A checkpoint around a compiled function: its recomputation runs the code that ran first, in every scope."""

import contextlib
import gc
import itertools

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel
from compiling import Looks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

NO_SCOPE = contextlib.nullcontext()
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class _Scopes:
    """One scope for each way of running compiled functions, with tools that look in both directions."""

    def __init__(self):
        self.tools = {policy: Looks() for policy in ("eager", "graph", "opaque")}
        self.scopes = {policy: amanda.apply(tool, compiled=policy) for policy, tool in self.tools.items()}

    @contextlib.contextmanager
    def around(self, where):
        """ "none", "eager", "graph", "opaque", or one of these with " off": inside, nothing is seen."""
        policy, _, off = where.partition(" ")
        with self.scopes.get(policy, NO_SCOPE), amanda.disabled() if off else NO_SCOPE:
            yield


def _nested(inner, x):
    return checkpoint(lambda x: inner(checkpoint(inner, x.sin(), use_reentrant=False)).cos(), x, use_reentrant=False)


def _without_early_stop(inner, x):
    with set_checkpoint_early_stop(False):
        return checkpoint(inner, x, use_reentrant=False)


CHECKPOINTS = {
    "not reentrant": lambda inner, x: checkpoint(inner, x, use_reentrant=False),
    "reentrant": lambda inner, x: checkpoint(inner, x, use_reentrant=True),
    "nested": _nested,
    "without early stop": _without_early_stop,
    "between operators": lambda inner, x: checkpoint(lambda x: inner(x.sin()).exp(), x, use_reentrant=False),
}


class _Model:
    """A compiled model, and the results and gradients of a step."""

    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Tanh())
        self.compiled = torch.compile(self.model, backend="aot_eager")
        self.x = torch.randn(3, 4, requires_grad=True)

    def step(self, region, forward=NO_SCOPE, backward=NO_SCOPE):
        """`forward`, `backward`: the contexts in which these passes run."""
        torch.manual_seed(0)
        self.model.zero_grad()
        self.x.grad = None
        with forward:
            y = region(self.compiled, self.x)
        with backward:
            y.sum().backward()
        return [y.detach(), self.x.grad, *(p.grad for p in self.model.parameters())]


ALL_PAIRS = list(itertools.permutations(("none", "eager", "graph", "opaque", "eager off"), 2))
SOME_PAIRS = [("eager", "none"), ("none", "eager"), ("graph", "none"), ("eager", "graph"), ("graph", "graph off")]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_backward_pass_in_another_scope_changes_nothing(kind):
    region, model, scopes = CHECKPOINTS[kind], _Model(), _Scopes()
    expected = model.step(region)
    for forward, backward in ALL_PAIRS if kind == "not reentrant" else SOME_PAIRS:
        found = model.step(region, scopes.around(forward), scopes.around(backward))
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other), (forward, backward)


def test_scopes_that_are_gone():
    region, model = CHECKPOINTS["not reentrant"], _Model()
    expected = model.step(region)
    for policy in ("eager", "graph"):
        found = model.step(region, amanda.apply(Looks(), compiled=policy))
        assert all(map(torch.equal, expected, found))


def _draws_first(gm, _):
    """A backend whose code draws other random numbers than the function."""

    def run(*args):
        torch.rand(3)
        return gm(*args)

    return run


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("forward", "backward"), [("eager", "none"), ("none", "eager"), ("graph", "eager")])
def test_the_same_elements_are_dropped(reentrant, forward, backward):
    drop = torch.compile(lambda x: torch.dropout(x, 0.5, True).sin(), backend=_draws_first)
    scopes = _Scopes()
    x = torch.rand(64, requires_grad=True)
    with scopes.around(forward):
        y = checkpoint(drop, x, use_reentrant=reentrant)
    with scopes.around(backward):
        y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


def test_code_with_taps_runs_outside_without_those_that_only_look():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.insert_after_op(lambda y: seen.append("look")), ops="sin")
    x = torch.rand(4, requires_grad=True)
    compiled = torch.compile(lambda x: x.sin().cos(), backend="aot_eager")
    with amanda.apply(tool, compiled="graph"):
        y = checkpoint(compiled, x, use_reentrant=False)
        assert seen == ["look"]
    y.sum().backward()
    assert seen == ["look"]
    with amanda.apply(tool, compiled="graph"):
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
    assert seen == ["look"] * 3  # in the scope, a recomputation is seen


def test_edits_are_not_repeated_outside_their_scope():
    """A tool works in its scope only, compiled or not: the values that are computed again are the function's own."""
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y * 2), ops="sin")

    def gradient(policy, compile):
        x = torch.linspace(0.1, 1, 4).requires_grad_()
        with amanda.apply(tool, compiled=policy):
            y = checkpoint(compile(lambda x: x.sin().exp()), x, use_reentrant=False)
        y.sum().backward()
        return x.grad

    expected = gradient("eager", lambda function: function)
    for policy in ("eager", "graph"):
        assert torch.equal(expected, gradient(policy, torch.compile(backend="aot_eager")))


def test_a_tool_says_what_a_recomputation_did_not_show():
    x = torch.rand(4, requires_grad=True)
    y = checkpoint(torch.compile(lambda x: x.sin().cos(), backend="aot_eager"), x, use_reentrant=False)
    tool = NaNSentinel()
    with amanda.apply(tool):
        y.sum().backward()
    assert "1 compiled function ran compiled, and none of its operators was shown" in str(tool.evidence())


def test_the_compiler_is_its_own_again_when_nothing_can_be_recomputed():
    own = torch._dynamo.eval_frame._callback_from_stance
    x = torch.rand(4, requires_grad=True)
    with amanda.apply(Looks()):
        y = checkpoint(torch.compile(lambda x: x.sin().cos(), backend="aot_eager"), x, use_reentrant=False)
    assert torch._dynamo.eval_frame._callback_from_stance is not own
    y.sum().backward()
    del y
    gc.collect()
    assert torch._dynamo.eval_frame._callback_from_stance is own
