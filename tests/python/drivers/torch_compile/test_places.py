"""The operators of compiled functions have the ids, modules and source lines that eager mode shows."""

import gc
import weakref

import amanda
import pytest
import torch
import zoo
from torch import nn
from torch.utils.checkpoint import checkpoint

# Dynamo looks at the gradients of all inputs.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

X = torch.arange(8.0).reshape(2, 4)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Shown(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.operators = []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        self.operators.append((context.op.__name__, context.op_id, context.module_path, context.source))


def shown(function, *args, compiled="graph"):
    """(type, id, module, source) of the operators. Eager and compiled functions are called from the same line: outside
    models, ids depend on it."""
    tool = Shown()
    with amanda.apply(tool, compiled=compiled):
        function(*args)
    return sorted(set(tool.operators))


class Graphs:
    """A backend that counts."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


def check(function, *args, graphs=1, only_eager=()):
    """A function shows the same when it is compiled, as so many graphs. `only_eager`: types of operators that its
    compiled program does not have."""
    backend = Graphs()
    expected = shown(function, *args, compiled="eager")
    assert set(only_eager) <= {place[0] for place in expected}
    expected = [place for place in expected if place[0] not in only_eager]
    assert shown(torch.compile(function, backend=backend), *args) == expected != []
    assert backend.count == graphs


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + x
        return x


def run(net, x):
    return net(x) * 2


# ---- ways to compile ----------------------------------------------------------------------------------------------------


def compile_in_place(net, backend):
    net.compile(backend=backend)
    return net


def compile_forward(net, backend):
    net.forward = torch.compile(net.forward, backend=backend)
    return net


@pytest.mark.parametrize("compile", [torch.compile, compile_in_place, compile_forward])
def test_a_compiled_model_has_the_ids_of_the_model(compile):
    net, backend = Net(), Graphs()
    expected = shown(net, X, compiled="eager")
    assert len(expected) == 7
    assert shown(compile(net, backend=backend), X) == expected
    assert backend.count == 1


def test_a_compiled_function_has_the_ids_of_the_function():
    check(run, Net(), X)


def test_a_method_that_its_class_has_compiled():
    backend = Graphs()

    class Decorated(Net):
        forward = torch.compile(Net.forward, backend=backend)

    net = Decorated()
    assert shown(net, X) == shown(net, X, compiled="eager")
    assert backend.count == 1


@pytest.mark.parametrize("compile", [torch.compile, compile_in_place, compile_forward])
def test_layers_that_share_a_graph_are_told_apart(compile):
    net, backend = Net(), Graphs()
    expected = shown(net, X, compiled="eager")
    net.layers = nn.ModuleList(compile(layer, backend=backend) for layer in net.layers)
    assert shown(net, X) == expected
    assert backend.count < len(net.layers)
    assert shown(net, X) == expected


def test_models_that_a_compiled_function_is_called_with_are_told_apart():
    first, second = Net(), Net()
    backend = Graphs()
    compiled = torch.compile(run, backend=backend)
    expected = [shown(run, net, X, compiled="eager") for net in (first, second, first)]
    assert [shown(compiled, net, X) for net in (first, second, first)] == expected
    assert backend.count == 1
    assert expected[0] == expected[2] != expected[1]


def test_a_compiled_layer_inside_a_model_that_runs_eagerly():
    net, backend = Net(), Graphs()
    expected = shown(net, X, compiled="eager")
    net.layers[1].compile(backend=backend)
    assert shown(net, X) == expected
    assert backend.count == 1


def test_a_parameter_that_is_replaced_keeps_its_name():
    net, backend = Net(), Graphs()
    compiled = torch.compile(net, backend=backend)
    expected = shown(net, X, compiled="eager")
    assert shown(compiled, X) == expected
    net.layers[0].linear.weight = nn.Parameter(torch.ones(4, 4))
    assert shown(compiled, X) == expected
    assert backend.count == 1


# ---- what programs do ---------------------------------------------------------------------------------------------------

W, V = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))


def loose(x):
    for weight in (W, V):
        x = x @ weight
    return x


@amanda.root
def rooted(x):
    return torch.sin(x) + 1


@amanda.root("named")
def rooted_by_name(x):
    return rooted(torch.cos(x))


class Losing(Layer):
    def forward(self, x):
        return nn.CrossEntropyLoss()(super().forward(x), x.softmax(1))


class Calling(Layer):
    def __call__(self, x):
        return super().__call__(x.cos()) + 1


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.calling, self.hooked = Calling(), Layer()
        self.hooked.register_forward_hook(lambda module, args, result: result.sin())
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.hooked(self.calling(x) * self.shift)


class Generating(Layer):
    def values(self, x):
        for i in range(2):
            yield self.linear(x) * i

    def forward(self, x):
        return torch.stack([value.sin() for value in self.values(x)]), [y.cos() for y in (x, x)]


class Checkpointed(Net):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x.sin(), use_reentrant=False)
        return x * 2


class Region(Layer):
    @torch.compiler.nested_compile_region
    def forward(self, x):
        return super().forward(x) * 2


class Library(nn.Module):
    """Modules whose operators Python functions of torch call."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x):
        return nn.functional.normalize(self.dropout(self.norm(self.attention(x, x, x)[0]))).norm()


@torch.no_grad()
def without_gradients(net, x):
    return net(x).unflatten(1, (2, 2))


def functional(net, x):
    return torch.func.functional_call(net, dict(net.named_parameters()), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (loose, X),
        lambda: (lambda x: rooted_by_name(rooted(x.sin())), X),
        lambda: (Losing(), X),
        lambda: (Hooked(), X),
        lambda: (Generating(), X),
        lambda: (nn.Sequential(Region(), nn.Linear(4, 4)), X),
        lambda: (Library(), X),
        lambda: (without_gradients, Net(), X),
        lambda: (functional, Net(), X),
        lambda: (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())), X),
    ],
    ids=[
        "loose",
        "rooted",
        "losing",
        "hooked",
        "generating",
        "region",
        "library",
        "no_grad",
        "functional_call",
        "sequential",
    ],
)
def test_a_program_has_the_same_ids_compiled(make):
    check(*make())


# In torch 2.11, checkpoint() of eager mode saves its arguments with a function that makes an empty tensor.
OF_CHECKPOINT = ["empty"] if hasattr(torch.utils.checkpoint, "_NoopSaveInputs") else []


def test_a_checkpointed_program_has_the_same_ids_compiled():
    check(Checkpointed(), X.clone().requires_grad_(), only_eager=OF_CHECKPOINT)


class Breaking(Net):
    def forward(self, x):
        x = super().forward(x)
        torch._dynamo.graph_break()
        x = self.layers[0](x).sin()
        print(end="")
        return x.cos()


def parameter_with_a_view():
    return nn.Parameter(torch.linspace(-1, 1, 8))


LEAVES = {
    "leaf": lambda: torch.linspace(-1, 1, 4).clone().requires_grad_(),
    "leaf that is a view": lambda: torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_(),
    "leaf that is a slice": lambda: torch.linspace(-1, 1, 8)[2:6].requires_grad_(),
    "leaf of a leaf's memory": lambda: torch.linspace(-1, 1, 8).requires_grad_().detach()[:4].requires_grad_(),
    "parameter": lambda: nn.Parameter(torch.linspace(-1, 1, 4)),
    "parameter of a view": lambda: nn.Parameter(torch.linspace(-1, 1, 8).reshape(2, 4)[0]),
    "view of a parameter": lambda: parameter_with_a_view()[:4],
    "view of a view of a parameter": lambda: parameter_with_a_view().reshape(2, 4)[1],
    "no leaf": lambda: parameter_with_a_view()[:4] * 1,
    "without a gradient": lambda: torch.linspace(-1, 1, 8).reshape(2, 4),
}


@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
def test_a_tensor_is_identified_by_that_behind_it(make):
    def function(x, w):
        def inner(x):
            return (x * w.reshape(w.shape)).sin() * w[..., :1]

        return (x + w).cos() + checkpoint(inner, x, use_reentrant=False)

    check(function, X.clone().requires_grad_(), make(), only_eager=OF_CHECKPOINT)


def test_functions_that_graph_breaks_split_count_as_one():
    check(run, Breaking(), X, graphs=4)


def test_a_graph_break_inside_a_call():
    def inner(net, x):
        x = net(x)
        torch._dynamo.graph_break()
        return net.layers[1](x).sin()

    def outer(net, x):
        return inner(net, x.cos()).tan()

    check(outer, Net(), X, graphs=4)


def test_nothing_keeps_a_compiled_model_alive():
    first, second, backend = Net(), Net(), Graphs()
    compiled = torch.compile(run, backend=backend)
    shown(compiled, first, X)
    shown(compiled, second, X)
    alive = [weakref.ref(each.layers[0].linear.weight) for each in (first, second)]
    del first, second
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert backend.count == 1


def seems_exported():
    """True if compiled programs get True from torch.compiler.is_exporting(), as with torch 2.11."""
    return torch.compile(lambda x: x + torch.compiler.is_exporting(), backend="eager")(torch.zeros(1)).item() == 1


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "resnet")] + ["vit"])
def test_an_architecture_has_the_same_ids_compiled(name, monkeypatch):
    if seems_exported():  # then the compiled model computes masks, and in eager mode it does without
        monkeypatch.setattr("transformers.masking_utils.is_torchdynamo_exporting", lambda: False)
    model, inputs = getattr(zoo, name)()
    check(model, *inputs.values())


def test_code_at_the_address_of_dead_code_has_ids_of_its_own():
    compiled = torch.compile(lambda x: x.neg().abs(), backend="eager")
    looked = []

    def analyze(context):
        context.insert_before_op(
            lambda **place: looked.append(place), inputs=[], id=context.op_id, source=context.source
        )

    tool = amanda.Tool()
    tool.add_inst_for_op(analyze, ops=["neg", "abs"])
    programs, addresses = 0, set()
    with amanda.apply(tool, compiled="graph"):
        while programs < 8 or len(addresses) == programs:
            assert programs < 500, "no address came again: this tests nothing"
            names = {"compiled": compiled, "x": torch.ones(2), "__name__": "program"}
            code = "def f():\n" + "\n" * programs + "  return compiled(x)\n"
            exec(compile(code, f"program{programs}.py", "exec"), names)
            names["f"]()
            addresses.add(id(names["f"].__code__))
            names.clear()
            programs += 1
    assert len({place["id"] for place in looked}) == 2 * programs
