"""Flops: the integers of FlopCounterMode, forward and backward, per operator and per module; what is not counted."""

import gc
import re
import sys
import threading
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda import _core, _tools
from amanda.tool import NativeTool
from amanda.tools.flops import Flops
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from zoo import bert, gpt2, llama, resnet, t5, vit

aten = torch.ops.aten


def expected(program):
    with FlopCounterMode(display=False) as counter:
        program()
    return counter


def counted(program, **options):
    flops = Flops(**options)
    with amanda.apply(flops):
        program()
    return flops


def same(program):
    """The same total; returns our counts."""
    flops = counted(program)
    assert flops.total == expected(program).get_total_flops()
    assert sum(flops.by_operator().values()) == flops.total
    return flops


def leaf(*sizes, grad=True):
    return torch.randn(*sizes).requires_grad_(bool(grad))


# ---- whole models -----------------------------------------------------------------------------------------------------


def with_attention(make, attention):
    def made():
        model, inputs = make()
        model.set_attn_implementation(attention)
        return model, inputs

    return made


MODELS = {"resnet": resnet, "bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit, "t5": t5} | {
    f"{make.__name__}, eager": with_attention(make, "eager") for make in (bert, gpt2, llama, vit)
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models(make, training):
    model, inputs = make()
    model.train(training)

    def forward():
        outputs = model(**inputs)
        return outputs.loss if getattr(outputs, "loss", None) is not None else outputs[0].sum()

    assert same(lambda: forward().backward()).total > 0

    oracle, flops = expected(forward), same(forward)
    theirs = {str(op).replace(".", "::"): count for op, count in oracle.get_flop_counts()["Global"].items()}
    assert flops.by_operator() == theirs
    modules = oracle.get_flop_counts()
    root = type(model).__name__
    assert len(modules) > 15
    for path, counts in modules.items():
        ours = "" if path in ("Global", root) else path.removeprefix(f"{root}.")
        assert flops.by_module()[ours] == sum(counts.values()), path


def test_a_backward_operator_counts_for_the_module_of_its_forward_operator():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 2)))
    flops = same(lambda: model(leaf(3, 4)).sum().backward())
    first, second = 3 * 2 * 4 * 8 * 3, 3 * 2 * 8 * 2 * 3  # forward, and a gradient for each of input and weight
    assert flops.by_module() == {"": first + second, "0": first, "1": second, "1.0": second}


# ---- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needed", [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(transposed, dimensions, groups, needed):
    name = f"conv{'_transpose' if transposed else ''}{dimensions}d"
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": groups}
    if transposed:
        options["output_padding"] = 1
    x = leaf(2, 4, *[9] * dimensions, grad=needed[0])
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    weight = leaf(*channels, *[3] * dimensions, grad=needed[1])
    same(lambda: getattr(F, name)(x, weight, **options).sum().backward())


PROGRAMS = {
    "padding='same'": lambda: F.conv2d(leaf(2, 4, 9, 9), leaf(8, 4, 3, 3), padding="same").sum().backward(),
    "no batch": lambda: F.conv2d(leaf(4, 9, 9), leaf(8, 4, 3, 3)).sum().backward(),
    "convolution_backward": lambda: torch.nn.grad.conv2d_weight(
        leaf(2, 4, 9, 9, grad=False), (8, 4, 3, 3), leaf(2, 8, 7, 7, grad=False)
    ),
    "linear": lambda: F.linear(leaf(2, 3, 4), leaf(5, 4), leaf(5)).sum().backward(),
    "matmul": lambda: (leaf(2, 1, 3, 4) @ leaf(5, 4, 6)).sum().backward(),
    "einsum": lambda: torch.einsum("bij,bjk->bik", leaf(2, 3, 4), leaf(2, 4, 5)).sum().backward(),
    "baddbmm": lambda: torch.baddbmm(leaf(2, 3, 5), leaf(2, 3, 4), leaf(2, 4, 5)).sum().backward(),
    "out=": lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5), out=torch.empty(3, 5)),
    "complex": lambda: (leaf(3, 4).cfloat() @ leaf(4, 5).cfloat()).abs().sum().backward(),
    "sparse": lambda: torch.mm(torch.eye(3).to_sparse(), leaf(3, 4)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_operators(program):
    same(program)


@pytest.mark.parametrize("needed", [(1, 1, 1), (1, 0, 0), (0, 0, 1)])
@pytest.mark.parametrize("kind", ["efficient", "flash", "cudnn"])
def test_fused_attention(kind, needed):
    op = getattr(aten, f"_scaled_dot_product_{kind}_attention")
    query, key, value = (
        torch.randn(2, 4, length, 16, device="meta", requires_grad=bool(grad))
        for length, grad in zip((8, 10, 10), needed, strict=True)
    )
    rest = () if kind == "flash" else (None, True)
    assert same(lambda: op(query, key, value, *rest)[0].sum().backward()).total > 0


def test_fused_attention_on_the_cpu_is_counted_if_asked_for():
    def program():
        x = leaf(2, 4, 8, 16)
        F.scaled_dot_product_attention(x, x, x).sum().backward()

    assert same(program).uncounted["aten::_scaled_dot_product_flash_attention_for_cpu"] == 1
    forward = 2 * (2 * 4) * 8 * 8 * 16 * 2
    assert counted(program, cpu_attention=True).by_operator() == {
        "aten::_scaled_dot_product_flash_attention_for_cpu": forward,
        "ScaledDotProductFlashAttentionForCpuBackward0": forward * 5 // 2,
    }


def test_only_what_is_needed_of_a_backward_pass_is_counted():
    a, b = leaf(3, 4), leaf(4, 5)
    product = 2 * 3 * 4 * 5
    assert same(lambda: torch.autograd.grad((a @ b).sum(), a)).total == 2 * product
    assert same(lambda: torch.autograd.grad((a @ b).sum(), [a, b])).total == 3 * product


def test_shapes_may_change_from_run_to_run_at_one_place():
    weights = [torch.ones(2, 4, size, size) for size in (1, 3, 5)]  # frozen: no gradient shows their sizes

    def program():
        losses = [
            F.conv2d(x, weight, stride=weight.shape[2]).sum()
            for weight, x in zip(weights, [leaf(2, 4, 15, side) for side in (15, 18, 15)], strict=True)
        ]
        for loss in losses:
            loss.backward()

    same(program)


def test_double_backward():
    a, b = leaf(3, 4), leaf(4, 5)
    x, weight = leaf(2, 4, 9, 9), leaf(8, 4, 3, 3)

    def twice(y, of):
        (gradient,) = torch.autograd.grad(y.pow(2).sum(), of, create_graph=True)
        gradient.pow(2).sum().backward()

    same(lambda: twice(a @ b, a))
    assert counted(lambda: twice(F.conv2d(x, weight), x)).uncounted["ConvolutionBackwardBackward0"] == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_again_is_counted_again(reentrant):
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    x = leaf(3, 4)
    same(lambda: checkpoint(layers, x, use_reentrant=reentrant).sum().backward())


def test_inference_mode_and_autocast():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))

    def program():
        with torch.inference_mode():
            layers(torch.ones(2, 3, 4))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layers(torch.ones(2, 3, 4)).sum().backward()

    same(program)


REFUSED = {
    "mm": lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
    "mm of a vector": lambda: torch.mm(torch.ones(2, 3), torch.ones(3)),
    "no stride": lambda: F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), stride=0),
    "too many strides": lambda: F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), stride=[1, 1, 1]),
    "a flat filter": lambda: torch.convolution(
        torch.ones(1, 1, 4, 4), torch.ones(1), None, [1], [0], [1], False, [0], 1
    ),
    "a flat gradient": lambda: aten.convolution_backward(
        torch.ones(1), torch.ones(1, 1, 4, 4), torch.ones(1), None, [1], [0], [1], False, [0], 1, [True, True, False]
    ),
    "flat attention": lambda: aten._scaled_dot_product_efficient_attention(*[torch.ones(2)] * 3, None, True),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_an_operator_that_raises_is_not_counted(program):
    x = torch.ones(2)

    def caught():
        with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
            program()
        torch.relu(x)

    flops = counted(caught)
    assert flops.total == 0
    assert flops.uncounted["aten::relu"] == 1


# ---- what is not counted ----------------------------------------------------------------------------------------------


def test_the_uncounted_are_operators_in_which_nothing_was_counted_but_no_views():
    x, weight = torch.ones(3, 4), torch.ones(4, 4)

    def program():
        for _ in range(2):
            torch.relu(F.linear(x, weight).t()).softmax(0)
        torch.linalg.qr(weight)

    assert counted(program).uncounted == {"aten::relu": 2, "aten::softmax": 2, "aten::linalg_qr": 1}
    quiet = counted(program, uncounted=False)
    assert (quiet.uncounted, quiet.total) == ({"aten::linalg_qr": 1}, 2 * 2 * 3 * 4 * 4)


def test_operators_that_nobody_knows():
    with torch.library._scoped_library("flops_test", "FRAGMENT") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", torch.clone, "CPU")
        x = torch.ones(2)
        flops = counted(lambda: torch.ops.flops_test.mystery(x))
    assert flops.uncounted == {"flops_test::mystery": 1}


def test_operands_without_plain_sizes_are_not_counted():
    jagged = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    flops = counted(lambda: F.linear(jagged, torch.ones(5, 4)))
    assert flops.total == 0
    assert flops.uncounted["aten::linear"] == 1


def test_the_evidence_names_products_that_were_not_counted_most_calls_first():
    weight = torch.ones(4, 4)

    def program():
        for _ in range(2):
            torch.linalg.qr(weight)
        torch.linalg.inv(weight + torch.eye(4)).relu()

    flops = counted(program)
    (found,) = flops.evidence().unseen
    assert (found.reason, found.count) == ("uncounted", 2)
    assert found.text == (
        "2 kinds of operator ran uncounted, and may multiply: aten::linalg_qr (2 calls), aten::linalg_inv_ex (1 call)"
    )
    assert counted(multiply).evidence().is_complete
    flops.reset()
    assert flops.evidence().is_complete


# ---- the tool ---------------------------------------------------------------------------------------------------------

PRODUCT = 2 * 3 * 4 * 5


def multiply():
    return torch.mm(torch.ones(3, 4), torch.ones(4, 5))


def test_two_tools_in_two_scopes():
    outer, inner = Flops(), Flops()
    with amanda.apply(outer):
        multiply()
        with amanda.apply(inner):
            multiply()
        multiply()
    assert (outer.total, inner.total) == (3 * PRODUCT, PRODUCT)
    assert "aten::mm" not in outer.uncounted | inner.uncounted


def test_one_tool_in_several_scopes_goes_on_counting():
    flops = Flops()
    for _ in range(2):
        with amanda.apply(flops):
            multiply()
    assert flops.total == 2 * PRODUCT
    flops.reset()
    assert (flops.total, flops.rows(), flops.uncounted) == (0, [], {})
    with amanda.apply(flops):
        multiply()
    assert flops.total == PRODUCT


def test_threads():
    flops = Flops()
    scope = amanda.apply(flops)

    def work():
        a = leaf(3, 4)
        with scope:
            for _ in range(50):
                torch.relu(a @ torch.ones(4, 5)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flops.by_operator() == {"aten::mm": 200 * PRODUCT, "MmBackward0": 200 * PRODUCT}
    assert flops.uncounted["aten::relu"] == 200


def test_rows_and_the_table():
    flops = counted(lambda: (torch.nn.Linear(4, 5)(torch.ones(3, 4)).sum().backward(), multiply()))
    rows = [(row.op, row.module_path, row.backward, row.runs, row.flops) for row in flops.rows()]
    assert sorted(rows) == [
        ("AddmmBackward0", "", True, 1, PRODUCT),
        ("aten::addmm", "", False, 1, PRODUCT),
        ("aten::mm", "", False, 1, PRODUCT),
    ]
    table = flops.to_pandas()
    assert [tuple(row) for row in table.itertuples(index=False)] == rows
    assert [str(kind) for kind in table.dtypes][2:] == ["bool", "int64", "int64"]
    assert list(counted(lambda: None).to_pandas().columns) == list(table.columns)


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"\[flops\] to_pandas needs pandas: pip install 'amanda-nn\[files\]'"):
        Flops().to_pandas()


def test_it_needs_no_framework(fresh_python):
    program = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from amanda.tools.flops import Flops\n"
        "print(Flops().total, 'torch' in sys.modules)\n"
    )
    assert fresh_python(program) == "0 False"


def test_the_example_tells_where_the_operations_go(run_example):
    printed = run_example("count_flops.py")
    shares = re.findall(r"tokens: .* GFLOP: .*attention (\d+)%", printed)
    assert shares == ["8", "42", "85"]


def test_it_changes_nothing():
    model, inputs = bert()

    def train():
        torch.manual_seed(1)
        model.zero_grad()
        outputs = model.train()(**inputs)[0]
        outputs.sum().backward()
        return [outputs, torch.rand(1)] + [leaf.grad for leaf in model.parameters() if leaf.grad is not None]

    plain = train()
    with amanda.apply(Flops()):
        watched = train()
    assert all(map(torch.equal, plain, watched))
    assert len(plain) == len(watched)


# ---- C++ tools in Python ----------------------------------------------------------------------------------------------


def test_a_capsule_gives_one_tool(says):
    capsule = _tools.counting_tool()
    tool = NativeTool(capsule)
    assert tool.name == "counting"
    with says(amanda.Error, "[tool] the tool in this capsule has an owner already; make another one"):
        NativeTool(capsule)
    with says(TypeError, "[tool] a C++ tool comes in a capsule named 'amanda.tool', got 3"):
        NativeTool(3)
    with pytest.raises(TypeError, match=r"named 'amanda\.tool', got <capsule object \"amanda\.bridge\""):
        NativeTool(amanda._torch.bridge())


def test_a_tool_that_nobody_took_goes_with_its_capsule():
    for _ in range(3):
        _tools.make_flops(True, False)
        _tools.counting_tool(backward=True)
    gc.collect()


def test_counts_outlive_the_tool():
    flops = counted(multiply)
    counts = flops._counts
    del flops
    gc.collect()
    assert counts.total() == PRODUCT


def test_a_native_tool_takes_routines_and_dependents():
    seen = []

    class Dependent(amanda.Tool):
        def __init__(self, flops):
            super().__init__()
            self.depends_on(flops)
            self.add_inst_for_op(lambda context: context.insert_after_op(self.look, outputs=[]), ops="mm")
            self.flops = flops

        def look(self):
            seen.append(self.flops.total)

    flops = Flops()
    flops.add_inst_for_op(lambda context: seen.append(context.tool), ops="relu")
    with amanda.apply(Dependent(flops)):  # applies what it depends on
        multiply()
        torch.relu(torch.ones(2))
    assert seen == [PRODUCT, None]


def test_the_counting_tool_sees_every_operator():
    tool = NativeTool(_tools.counting_tool(backward=True))
    with amanda.apply(tool) as scope:
        for _ in range(3):
            (leaf(2) * 2).sum().backward()
    assert scope.cache_info().currsize > 2
    assert isinstance(tool._core, _core.Tool)


def test_a_row_prints_its_fields():
    flops = Flops()
    with amanda.apply(flops):
        torch.mm(torch.ones(2, 3), torch.ones(3, 4))
    (row,) = flops.rows()
    assert repr(row) == "Row(op='aten::mm', module_path='', backward=False, runs=1, flops=48)"


def test_it_can_be_narrowed():
    """By modules, or by what is counted."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 6))

    def run(**options):
        flops = Flops()
        flops.narrow(**options)
        with amanda.apply(flops):
            torch.mm(model(leaf(2, 4)), torch.ones(6, 3)).sum().backward()
        return flops

    layer = expected(lambda: model[1](leaf(2, 5)).sum().backward()).get_total_flops()
    narrowed = run(modules="1")
    assert narrowed.total == narrowed.by_module()["1"] == layer
    assert narrowed.uncounted == {}
    assert set(run(ops="mm").by_operator()) == {"aten::mm", "MmBackward0"}
    with pytest.raises(ValueError, match=r"\[flops\] narrow: nothing is counted in these operators themselves; what"):
        run(ops="linear")


def test_a_program_without_products_is_no_mistake():
    """Unless that is all there is to tell of."""

    x = leaf(2)

    def told(**options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with amanda.apply(flops := Flops(**options)):
                torch.exp(x).sum()
        return flops, [str(one.message) for one in caught]

    flops, texts = told()
    assert (flops.total, flops.uncounted, texts) == (0, {"aten::exp": 1, "aten::sum": 1}, [])
    flops, (text,) = told(uncounted=False)
    assert text.startswith("[scope] ops=['aten::linear', 'aten::matmul', 'aten::einsum', ")
    assert "of tool 'flops' matched nothing that ran" in text


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


@pytest.mark.parametrize("uncounted", [True, False])
def test_the_backward_of_a_custom_function_is_listed(uncounted):
    flops, weight = Flops(uncounted=uncounted), torch.ones(4, 5, requires_grad=True)
    with amanda.apply(flops):
        for _ in range(2):
            Product.apply(torch.ones(3, 4), weight).sum().backward()
    assert flops.total == 2 * 2 * 3 * 4 * 5
    assert flops.uncounted_products == {"ProductBackward": 2}
    assert [one.reason for one in flops.evidence().unseen] == ["uncounted"]
    assert "not counted" in str(flops.table("op"))


@pytest.mark.parametrize(("use_reentrant", "products"), [(True, 4), (False, 3)])
def test_a_checkpoints_products_are_counted_one_by_one(use_reentrant, products):
    flops, layer = Flops(), torch.nn.Linear(4, 5, bias=False)
    with amanda.apply(flops):
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    # Forward, and two gradients. What is not reentrant ends when all that is saved has been recomputed: before the product.
    assert flops.total == products * (2 * 3 * 4 * 5)
    assert flops.uncounted_products == {}
