"""Which operators a compiled function is: those of eager mode, with their operands."""

import pytest
import torch
import zoo
from recorded_programs import compiled_operators, difference, eager_operators, record
from torch import nn


def same_operators(function, *args, **kwargs):
    eager = eager_operators(function, *args, **kwargs)
    torch.manual_seed(0)
    expected = function(*args, **kwargs)
    result, recorded = record(function, *args, **kwargs)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert compiled_operators(recorded) == eager
    return recorded


def shown(call):
    """Its arguments as text: symbols as the names of what they are."""

    def text(value):
        if type(value).__name__ == "Ref":
            of = value.node.name if value.call is None else value.call.name
            return "".join([of, *(f"[{i}]" for i in value.path)])
        if type(value).__name__ == "Constant":
            return f"tensor({value.value})"
        return [text(member) for member in value] if isinstance(value, list | tuple) else value

    return [text(value) for value in call.args]


# ---- nodes and their calls -------------------------------------------------------------------------------------------


def test_an_mlp_has_the_operators_of_eager_mode_with_its_parameters():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    recorded = same_operators(net, torch.ones(3, 4))
    first = recorded.calls[0]
    assert first.inputs[1] is net[0].weight
    assert first.inputs[2] is net[0].bias
    assert not isinstance(first.fakes[1], nn.Parameter)
    assert [origin.tensor for origin in first.origins] == [net[0].weight, net[0].bias]
    assert first.outputs[0].shape == (3, 8)
    assert [call.backward for call in recorded.calls] == [
        "AddmmBackward0",
        "ReluBackward0",
        "NativeDropoutBackward0",  # eager mode multiplies by a mask
        "AddmmBackward0",
    ]
    assert first.differentiable == ({1, 2}, {0})


def test_buffers_are_themselves_and_activations_are_not():
    net, x = nn.BatchNorm1d(4), torch.ones(3, 4)
    call = same_operators(net, x).call("aten::batch_norm")
    assert call.inputs[0] is not x
    assert call.inputs[3] is net.running_mean
    assert call.inputs[1] is net.weight


def test_a_node_may_call_several_operators_or_none():
    def function(x):
        y = x[0, 1:]
        x[1] = 3
        x[2] = x[0]
        return y.size(0) * x.mean() + y.sum()

    recorded = same_operators(function, torch.rand(3, 4))
    assert len(recorded.calls) > len({call.node for call in recorded.calls})
    slice_ = recorded.call("aten::slice")
    assert shown(slice_)[:2] == ["aten::select[0]", 0]
    assert shown(recorded.call("aten::fill_")) == ["aten::select[0]", "tensor(3.0)"]


def test_lists_and_numbers_among_the_operands():
    def function(x):
        a, b = x.chunk(2, -1)
        return torch.cat([b, a], -1) * 2 + 1 - x, torch.stack(x.unbind(0))

    recorded = same_operators(function, torch.rand(3, 4))
    assert shown(recorded.call("aten::cat")) == [["b", "a"], -1]
    assert shown(recorded.call("aten::mul"))[1] == 2
    assert recorded.call("aten::mul").inputs[1] == torch.tensor(2)
    assert shown(recorded.call("aten::stack"))[0] == ["getitem_2", "getitem_3", "getitem_4"]


def index_columns(x):
    return x[:, [0, 2]]


def index_by_two_lists(x):
    return x[[0, 1], [1, -1]]


def index_by_a_range(x):
    return x[..., range(2)]


def write_rows(x):
    y = x.clone()
    y[[1, 0]] = 3
    y[:, [2]] = x[:, :1]
    return y


@pytest.mark.parametrize("function", [index_columns, index_by_two_lists, index_by_a_range, write_rows])
def test_a_list_as_an_index_is_a_constant(function):
    x = torch.rand(2, 3)
    eager = [name for name in eager_operators(function, x) if name.partition(".")[0] not in {"aten::empty", "aten::to"}]
    result, recorded = record(function, x)
    assert torch.equal(result, function(x))
    assert compiled_operators(recorded) == eager
    assert {name for name, _ in recorded.unseen} == {"aten::empty", "aten::to"}


def test_the_operands_of_an_index():
    _, recorded = record(index_by_two_lists, torch.rand(2, 3))
    assert shown(recorded.call("aten::index"))[1] == ["tensor([0, 1])", "tensor([1, -1])"]


def test_sizes_that_are_symbols():
    def function(x, y):
        z = x.reshape(x.shape[1], -1) * y.shape[0]
        return nn.functional.interpolate(z[None], scale_factor=2), x.view(-1)

    x = torch.rand(3, 4)
    result, recorded = record(function, x, x, dynamic=True)
    torch.testing.assert_close(result, function(x, x), rtol=0, atol=0)
    reshape = recorded.call("aten::reshape")
    placeholder = reshape.args[1][0].node
    assert placeholder.op == "placeholder"
    assert recorded.call("aten::mul").args[1].node is not placeholder
    size = recorded.call("aten::upsample_nearest1d").outputs[0].shape[-1]
    assert isinstance(size, torch.SymInt)


def test_sizes_that_depend_on_data():
    def function(x):
        count = x.sum().long().item()
        torch._check(count > 0)
        return x[x > 0.5] * 2, torch.zeros(count) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        recorded = same_operators(function, torch.rand(3, 4))
    assert len(recorded.programs) == 1
    assert recorded.unseen == []


def test_python_functions_between_a_node_and_its_operator_are_known():
    _, recorded = record(lambda x: nn.functional.relu(x) + (1 - x), torch.rand(3))
    relu = recorded.call("aten::relu")
    assert [code.co_name for code, _ in relu.frames] == ["relu"]
    assert recorded.call("aten::add").frames == ()
    assert [code.co_name for code, _ in recorded.call("aten::rsub").frames][-1] == "wrapped"


def test_new_tensors_are_results():
    def function(x):
        return torch.ones(2, 3) + torch.zeros_like(x) + torch.rand(2, 3) + torch.arange(3) + x.new_full((3,), 2.0)

    same_operators(function, torch.rand(2, 3))


def test_operators_of_a_transform_are_not_shown():
    def function(x):
        return torch.func.vmap(torch.sin)(x) + 1

    _, recorded = record(function, torch.rand(3), rewrite=False)
    assert compiled_operators(recorded) == ["aten::add.Tensor"]
    assert ("aten::sin", "it runs inside a transform of torch.func, such as vmap, for which taps have no rule") in (
        recorded.unseen
    )


def test_a_node_that_cannot_be_run_is_named():
    @torch.library.custom_op("amanda_tests::no_fake", mutates_args=())
    def no_fake(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    broken = [False]

    @no_fake.register_fake
    def _(x):
        if broken[0]:
            raise RuntimeError("no shape\nat all")
        return torch.empty_like(x)

    recorded = []

    def backend(gm, example_inputs):
        from amanda.drivers.torch_compile.program.program import Program

        broken[0] = True
        recorded.append(Program(gm, example_inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: no_fake(x).sin(), backend=backend)(torch.ones(3))
    (program,) = recorded
    assert [call.name for call in program.calls] == ["aten::sin"]
    ((what, reason),) = program.unseen
    assert "no_fake" in what
    assert reason == "it does not run on fake tensors: RuntimeError: no shape"


def test_nothing_is_left_behind_by_a_run():
    """Guards, symbols, autocast, the state of autograd, random numbers."""

    def function(x):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            y = x @ x.T
        return y.float() + torch.rand(3)

    def backend(gm, example_inputs):
        from amanda.drivers.torch_compile.program.program import Program

        env = gm.graph.find_nodes(op="placeholder")[-1].meta["example_value"].fake_mode.shape_env
        before = len(env.guards), env.counter.copy(), torch.get_rng_state().tolist()
        recorded.append(Program(gm, example_inputs))
        assert (len(env.guards), env.counter, torch.get_rng_state().tolist()) == before
        assert not torch.is_autocast_enabled("cpu")
        return gm.forward

    recorded = []
    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=True)(torch.rand(3, 4))
    assert "aten::matmul" in [call.name for call in recorded[0].calls]


# ---- models ----------------------------------------------------------------------------------------------------------


def test_a_model_has_the_operators_of_eager_mode():
    model, kwargs = zoo.bert()
    recorded = same_operators(model, **kwargs)
    assert recorded.unseen == []


#: What eager mode runs to make a tensor of Python's numbers: a compiled program holds the tensor.
CONSTANTS = {"aten::empty.memory_format", "aten::to.device", "aten::detach_"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("convnext", marks=pytest.mark.slow),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("t5", "vit", "llama", "opt", "gemma", "whisper", "resnet", "distilbert")
        ),
    ],
)
def test_more_models_have_the_operators_of_eager_mode(name):
    model, kwargs = getattr(zoo, name)()
    eager = eager_operators(model, **kwargs)
    _, recorded = record(model, **kwargs)
    only_eager, only_compiled = difference(eager, compiled_operators(recorded))
    assert set(only_eager) <= CONSTANTS
    assert only_compiled == {}
