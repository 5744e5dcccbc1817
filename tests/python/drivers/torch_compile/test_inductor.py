"""What inductor, its caches on disk and what it writes for others make of compiled functions in scopes."""

import zipfile

import amanda
import pytest
import torch
from compiled_tools import Doubled
from compiling import Looks, apply, differentiate
from torch._inductor.utils import run_and_get_code
from unharmed import bits

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


PROGRAM = """
    import amanda
    import torch
    from torch._dynamo.utils import counters

    def times(factor):
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y * factor), ops="relu")
        return tool

    def looks(name):
        def analyze(context):
            context.insert_after_op(lambda y: seen.append((name, y.tolist())))

        def analyze_backward(context):
            context.insert_before_backward_op(lambda y: seen.append((name, y.tolist())))

        seen, tool = [], amanda.Tool()
        tool.add_inst_for_op(analyze, ops="relu")
        tool.add_inst_for_op(analyze_backward, ops="relu", backward=True)
        with amanda.apply(tool, compiled="graph"):
            compiled(x.clone().requires_grad_()).sum().backward()
        return seen

    def run(factor=None):
        if factor is None:
            return compiled(x).tolist()
        with amanda.apply(times(factor), compiled="graph"):
            return compiled(x).tolist()

    x, compiled = torch.tensor([-1.0, 2.0]), torch.compile(lambda x: torch.relu(x) + 1)
    print({runs})
    print(counters["inductor"]["fxgraph_cache_miss"], counters["aot_autograd"]["autograd_cache_miss"])
"""


def test_programs_with_other_tools_share_what_is_cached_on_disk(forked_python):
    first = forked_python(PROGRAM.replace("{runs}", "run(2), run(3), run(), run(2)"))
    assert first.splitlines() == ["[1.0, 5.0] [1.0, 7.0] [1.0, 3.0] [1.0, 5.0]", "2 2"]
    then = forked_python(PROGRAM.replace("{runs}", "run(5), run()"))
    assert then.splitlines() == ["[1.0, 11.0] [1.0, 3.0]", "0 0"]


def test_programs_whose_tools_look_share_what_is_cached_on_disk(forked_python):
    first = forked_python(PROGRAM.replace("{runs}", "looks('first')"))
    assert first.splitlines() == ["[('first', [0.0, 2.0]), ('first', [1.0, 1.0])]", "2 1"]
    then = forked_python(PROGRAM.replace("{runs}", "looks('then')"))
    assert then.splitlines() == ["[('then', [0.0, 2.0]), ('then', [1.0, 1.0])]", "0 0"]


class Sequence(amanda.Tool):
    """The order in which it is shown results and gradients."""

    def __init__(self):
        super().__init__()
        self.shown = []
        self.add_inst_for_op(self.analyze)
        self.add_inst_for_op(self.analyze_backward, backward=True)

    def analyze(self, context):
        context.insert_before_op(self.note, key=("before", context.op_id))
        context.insert_after_op(self.note, key=("after", context.op_id))

    def analyze_backward(self, context):
        context.insert_before_backward_op(self.note, key=("gradient", context.op_id))

    def note(self, *values, key):
        self.shown.append(key)


def layer():
    return torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(2, 8, 32)


def convolutions():
    parts = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)]
    return torch.nn.Sequential(*parts, torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(128, 4)), torch.randn(
        2, 3, 8, 8
    )


def loops():
    """No operator that is called, so that all that is looked at could live until the end."""

    class Loops(torch.nn.Module):
        def forward(self, x):
            for _ in range(6):
                x = torch.sin(x).cumsum(0)
            return x

    return Loops(), torch.randn(64, 64, requires_grad=True)


@pytest.mark.parametrize("make", [layer, convolutions, loops])
def test_a_tool_that_looks_keeps_its_order_and_splits_no_code(make):
    def step(backend="inductor"):
        torch.manual_seed(0)
        differentiate(torch.compile(model, backend=backend)(x))

    model, x = make()
    codes = {}
    codes["none"] = run_and_get_code(step)[1]
    sequences = {}
    for backend in ("inductor", "aot_eager"):
        torch._dynamo.reset()
        with apply(Sequence()) as tool:
            codes[backend] = run_and_get_code(step, backend)[1]
        sequences[backend] = tool.shown
    assert sequences["inductor"] == sequences["aot_eager"]
    assert len(sequences["inductor"]) > 10
    files = {which: sum(code.count("async_compile.cpp_pybinding(") for code in of) for which, of in codes.items()}
    assert files["inductor"] <= files["none"] + 2


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch itself
def test_what_is_exported_has_nothing_of_ours(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1

    x = torch.tensor([-1.0, 2.0])
    with torch.no_grad(), amanda.apply(Doubled(), compiled="graph"):
        assert torch.relu(x).tolist() == [0.0, 4.0]
        program = torch.export.export(Model(), (x,))
        torch.export.save(program, tmp_path / "program.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "package.pt2"))
    for name in ("program.pt2", "package.pt2"):
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert [file for file in archive.namelist() if b"amanda" in archive.read(file)] == []
    assert torch.export.load(tmp_path / "program.pt2").module()(x).tolist() == [1.0, 3.0]
    assert torch._inductor.aoti_load_package(str(tmp_path / "package.pt2"))(x).tolist() == [1.0, 3.0]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixed, self.out = torch.nn.LayerNorm(4), torch.nn.Linear(4, 12), torch.nn.Linear(4, 4)

    def forward(self, x):
        query, key, value = self.mixed(self.norm(x)).chunk(3, -1)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(torch.nn.functional.gelu(attended))


def recomputed(block):
    return lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


WAYS = {
    "reduce-overhead": lambda block, **backend: torch.compile(
        block, mode="reduce-overhead" if not backend else None, **backend
    ),
    "dynamic": lambda block, **backend: torch.compile(block, dynamic=True, **backend),
    "fullgraph": lambda block, **backend: torch.compile(block, fullgraph=True, **backend),
    "checkpoint": lambda block, **backend: torch.compile(recomputed(block), **backend),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_looks_sees_what_it_sees_under_aot_eager_and_changes_nothing(way):
    def step(run):
        left = []
        for x in xs:
            block.zero_grad()
            result = run(x)
            differentiate(result)
            left += [result.detach().clone(), *(parameter.grad.clone() for parameter in block.parameters())]
        return left

    torch.manual_seed(0)
    block, xs = Block(), [torch.randn(2, 3, 4), torch.randn(3, 5, 4)][: 2 if way == "dynamic" else 1]
    seen = []
    for backend in ({"backend": "aot_eager"}, {}):
        torch._dynamo.reset()
        looks, run = Looks(), WAYS[way](block, **backend)
        expected = step(run)
        with apply(looks):
            found = step(run)
        assert bits(step(run)) == bits(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        seen.append((looks.forward, looks.backward))
    assert seen[0] == seen[1]
    assert seen[0][0]["scaled_dot_product_attention"] >= len(xs)


def test_under_autocast_a_look_changes_how_fused_values_are_rounded_and_nothing_else():
    def gated(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x @ weight
            return (torch.nn.functional.gelu(hidden) * torch.sigmoid(hidden) + hidden).sum(-1)

    def left():
        weight.grad = None
        result = compiled(x, weight)
        result.float().sum().backward()
        return result.detach(), weight.grad

    with torch._inductor.config.patch(emulate_precision_casts=True):
        torch.manual_seed(0)
        x, weight, compiled = torch.randn(16, 32), torch.randn(32, 32, requires_grad=True), torch.compile(gated)
        plain = bits(left())
        with apply(Looks()) as looks:
            assert bits(left()) == plain
        assert looks.forward["sigmoid"] == looks.backward["sigmoid"] == 1
        assert bits(left()) == plain
