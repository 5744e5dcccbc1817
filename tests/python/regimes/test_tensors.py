"""Tensors that are swapped, copied, of other layouts, or of a class of their own."""

import copy
import io
import pickle
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map
from unharmed import reusable

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


def test_weights_may_be_swapped(recorder):
    model, tool = nn.Linear(3, 3), recorder()
    with amanda.apply(tool):
        model(torch.ones(1, 3))
        model.load_state_dict(
            {name: torch.zeros_like(value) for name, value in model.state_dict().items()}, assign=True
        )
        a, b = torch.zeros(2), torch.ones(3)
        torch.utils.swap_tensors(a, b)
        assert a.tolist() == [1.0] * 3
        model.to(torch.float64)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.to(torch.float32)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        assert model(torch.ones(1, 3)).tolist() == [[0.0] * 3]


def test_a_result_can_become_a_parameter(recorder):
    with amanda.apply(recorder()):
        for make in (lambda: torch.randn(3), lambda: torch.relu(X), lambda: (X * 2).detach()):
            assert isinstance(nn.Parameter(make()), nn.Parameter)
        assert isinstance(torch.Tensor._make_subclass(nn.Parameter, torch.relu(X)), nn.Parameter)
        assert isinstance(nn.Parameter(nn.Linear(2, 2)(X).detach()), nn.Parameter)


def test_parametrizations_are_unharmed(recorder):
    with amanda.apply(recorder()):
        for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
            assert wrap(nn.Linear(3, 3))(torch.ones(1, 3)).shape == (1, 3)
        layer = nn.Linear(3, 3)
        nn.utils.parametrize.register_parametrization(layer, "weight", nn.ReLU())
        assert (layer.weight >= 0).all()


def test_a_model_is_copied_and_pickled(recorder):
    model, x = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8)
    expected = model(x)
    with amanda.apply(recorder()):
        model(x)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))
        y = torch.relu(X)
        assert torch.equal(pickle.loads(pickle.dumps(y)), copy.deepcopy(y))
    for each in [model, *copies]:
        assert torch.equal(each(x), expected)


def test_a_subclass_stays_one(recorder):
    class Marked(torch.Tensor):
        pass

    tool, x = recorder(ops="relu"), X.clone().as_subclass(Marked)
    with amanda.apply(tool):
        y = torch.relu(x)
    assert type(y) is Marked
    assert tool.inputs[0][0] is x


def test_a_wrapper_subclass_stays_one(recorder, after):
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    Two = two_tensor.TwoTensor
    tool, x = recorder(ops="relu"), Two(X.clone(), X.clone()).requires_grad_()
    with amanda.apply(tool, after("relu", lambda y: y * 2)):
        y = torch.relu(x)
        y.sum().backward()
    assert type(y) is Two
    assert type(x.grad) is Two
    assert y.a.tolist() == [0.0, 4.0]
    assert x.grad.a.tolist() == [0.0, 1.0]  # straight through


@pytest.mark.filterwarnings("ignore:.*(beta|prototype|deprecated|Sparse).*")
def test_other_layouts_and_types(recorder):
    tool = recorder()
    dense = torch.eye(3)
    with amanda.apply(tool):
        assert torch.equal(dense.to_sparse() @ dense, dense)
        assert torch.equal(dense.to_sparse_csr() @ dense, dense)
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
        assert torch.relu(nested).is_nested
        assert torch.fft.ifft(torch.fft.fft(X)).real.sum().item() == pytest.approx(1.0)
    assert {"matmul", "relu", "fft_fft"} <= set(tool.ran)


# ---- bit-equal, with events where they belong ------------------------------------------------------------------------

convolution = reusable(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)))


def trained(model, *inputs):
    y = model(*inputs)
    y.float().square().sum().backward()
    return y, [each.grad for each in (*inputs, *model.parameters())]


def test_channels_last(unharmed):
    def program():
        model = convolution().to(memory_format=torch.channels_last)
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
        y, gradients = trained(model, x)
        model.to(memory_format=torch.contiguous_format)
        return y, gradients, y.is_contiguous(memory_format=torch.channels_last)

    assert unharmed(program).count["conv2d"] == 1


@pytest.mark.filterwarnings("ignore:.*(beta|Sparse).*")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc"])
def test_sparse_tensors(layout, unharmed):
    dense = torch.eye(4) * torch.arange(4.0)

    def program():
        w = torch.randn(4, 4, requires_grad=True)
        sparse = {
            "sparse": dense.to_sparse,
            "sparse_csr": dense.to_sparse_csr,
            "sparse_csc": dense.to_sparse_csc,
        }[layout]()
        y = sparse @ w
        y.sum().backward()
        results = [sparse, y, w.grad, sparse.to_dense()]
        if layout == "sparse":
            results += [
                sparse + sparse,
                sparse.t(),
                torch.sparse.sum(sparse, 0),
                sparse.coalesce().values(),
                sparse * 2,
            ]
            leaf = torch.eye(4).to_sparse().requires_grad_()
            torch.sparse.mm(leaf, w.detach()).sum().backward()
            results.append(leaf.grad)
        return results

    assert unharmed(program).count["matmul"] == 1


@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout, unharmed):
    layer = reusable(nn.Linear(3, 5))

    def program():
        parts = [torch.randn(n, 3, requires_grad=True) for n in (2, 4)]
        x = torch.nested.as_nested_tensor(parts, layout=layout)
        y = F.gelu(layer()(x))
        padded = torch.nested.to_padded_tensor(y, 0.0)
        padded.sum().backward()
        return list(y.unbind()), padded, [part.grad for part in parts]

    assert unharmed(program).count["linear"] >= 1


@pytest.mark.filterwarnings("ignore:.*(quantiz|deprecat|TypedStorage).*")
def test_quantised_tensors(unharmed):
    def program():
        x = torch.randn(4, 4)
        per_tensor = torch.quantize_per_tensor(x, 0.1, 3, torch.qint8)
        per_channel = torch.quantize_per_channel(x, torch.full((4,), 0.1), torch.zeros(4), 0, torch.quint8)
        fake = torch.fake_quantize_per_tensor_affine(x.requires_grad_(), 0.1, 0, -128, 127)
        fake.sum().backward()
        return (
            per_tensor, per_channel, per_tensor.dequantize(), per_tensor.relu(), per_tensor.int_repr(),
            torch.ops.quantized.add(per_tensor, per_tensor, 0.2, 1), fake, x.grad,
        )  # fmt: skip

    assert unharmed(program).count["quantize_per_tensor"] == 1


@pytest.mark.filterwarnings("ignore:.*(quantiz|deprecat|TypedStorage).*:")
def test_a_model_quantised_dynamically(unharmed):
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no fbgemm")
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert unharmed(lambda: model(x)).count["linear_dynamic"] == 2


def test_complex_tensors_conjugate_and_negative_views(unharmed):
    def program():
        z = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
        conj = z.conj()
        neg = z.detach().conj().imag
        y = (conj @ z).mH + torch.fft.fft2(z) + conj.clone()
        view = torch.view_as_real(z.detach().clone())
        view[..., 1].neg_()
        inplace = z.detach().clone().conj()
        inplace.mul_(2).add_(neg)
        y.abs().sum().backward()
        return y, conj, neg, view, inplace, z.grad, torch.real(conj), neg.neg(), torch.vdot(conj[0], z[0])

    assert unharmed(program).count["matmul"] == 1


def test_types_of_few_bits(unharmed):
    def program():
        x = torch.randn(4)
        kinds = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool]
        return (
            [x.to(kind) for kind in kinds],
            x.half() + 1,
            x.bfloat16().softmax(0),
            x.to(torch.int16) // 3,
            x.view(torch.int32),
        )

    unharmed(program)


def test_views_and_strides(unharmed):
    def program():
        x = torch.randn(4, 6, requires_grad=True)
        views = [
            x.t(), x[1:, ::2], x.as_strided((3, 3), (2, 1), 1), x.expand(2, 4, 6), x.unfold(1, 3, 2), x.diagonal(),
            x.view(2, 12), x.reshape(-1), x.movedim(0, 1), *x.split(2), *x.chunk(3, 1), x.narrow(1, 2, 3), x.squeeze(),
        ]  # fmt: skip
        sum(each.sum() for each in views).backward()
        return [(each, each._is_view(), each._base is x, each.storage_offset()) for each in views], x.grad

    unharmed(program)


def test_empty_and_scalar_tensors(unharmed):
    def program():
        empty, scalar = torch.empty(0, 3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
        y = (empty * scalar).sum() + scalar**2
        y.backward()
        return y, empty.grad, scalar.grad, torch.cat([empty.detach(), torch.ones(1, 3)])

    unharmed(program)


def test_swapped_tensors(unharmed):
    layer = reusable(nn.Linear(3, 3))

    def program():
        model = layer()
        before = model(torch.ones(1, 3))
        new = nn.Parameter(torch.ones(3, 3))
        torch.utils.swap_tensors(model.weight, new)
        model(torch.ones(1, 3)).sum().backward()
        found = before, model.weight, model.weight.grad, new
        model.weight.grad = None
        torch.utils.swap_tensors(model.weight, new)
        return found

    unharmed(program)


def test_copies_and_pickles_inside_a_scope(unharmed):
    layer = reusable(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))

    def program():
        model = layer()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file)
        twin = copy.deepcopy(model)
        twin.load_state_dict(loaded["model"])
        again = pickle.loads(pickle.dumps(model))
        x = torch.randn(4, 3)
        return model(x), twin(x), again(x), loaded["optimizer"]["state"], copy.copy(x), copy.deepcopy(x)

    unharmed(program)


def test_module_conversions(unharmed):
    layer = reusable(nn.Linear(3, 3))

    def program():
        model = layer()
        found = [
            model.double()(torch.ones(1, 3, dtype=torch.double)),
            model.half().weight.clone(),
            model.float().weight,
        ]
        return found, nn.utils.parameters_to_vector(model.parameters())

    unharmed(program)


def test_a_model_on_the_meta_device(recorder):
    with amanda.apply(recorder()), torch.device("meta"):
        model = nn.Linear(3, 3)
        assert model(torch.ones(1, 3)).shape == (1, 3)
        assert model.to_empty(device="cpu").weight.device.type == "cpu"


# ---- subclasses ------------------------------------------------------------------------------------------------------


class Logged(torch.Tensor):
    """Wraps a tensor, and notes each operator that reaches it."""

    calls = []

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad,
            strides=inner.stride(), storage_offset=inner.storage_offset(),
        )  # fmt: skip

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Logged(inner["inner"])

    def __repr__(self):
        return f"Logged({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        Logged.calls.append(str(function))
        unwrap = lambda each: each.inner if isinstance(each, Logged) else each  # noqa: E731
        result = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        wrapped = tree_map(lambda each: Logged(each) if isinstance(each, torch.Tensor) else each, result)
        return return_and_correct_aliasing(function, args, kwargs or {}, wrapped)


def test_a_wrapper_subclass_sees_the_operators_it_saw_without(unharmed):
    layer = reusable(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))

    def program():
        Logged.calls.clear()
        x = Logged(torch.randn(2, 3), requires_grad=True)
        h = x * 2 + 1
        y = layer()(h)
        h2 = y.detach().clone()
        h2.mul_(2).add_(y.detach())
        y.sum().backward()
        return type(y) is Logged, y.inner, type(x.grad) is Logged, x.grad.inner, h2.inner, list(Logged.calls)

    tool = unharmed(program)
    assert tool.count["linear"] == 2
    assert tool.count["AddmmBackward0"] == 2


def test_a_wrapper_subclass_in_place_in_training(unharmed):
    def program():
        Logged.calls.clear()
        x = Logged(torch.randn(2, 3), requires_grad=True)
        y = (x * 2).mul_(3).relu_()
        y.sum().backward()
        return y.inner, x.grad.inner, list(Logged.calls)

    unharmed(program)


class Counting(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counting.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_with_torch_function_sees_the_calls_it_saw_without(unharmed):
    def program():
        Counting.calls.clear()
        x = torch.randn(3).as_subclass(Counting).requires_grad_()
        y = torch.relu(x * 2)
        y.sum().backward()
        return type(y) is Counting, y.as_subclass(torch.Tensor), x.grad.as_subclass(torch.Tensor), list(Counting.calls)

    unharmed(program)


def test_subclasses_that_ship_with_torch(unharmed):
    from torch.masked import masked_tensor

    def program():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            m = masked_tensor(torch.arange(4.0), torch.tensor([True, False, True, True]))
            total = (m * 2).sum().get_data()
        u = nn.parameter.UninitializedParameter()
        u.materialize((2, 2))
        return total, u.shape, nn.Buffer(torch.ones(2)), nn.LazyLinear(2)(torch.ones(1, 3)).shape

    unharmed(program)
