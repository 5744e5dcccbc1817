"""Tensors that are swapped, copied, of other layouts, or of a class of their own."""

import copy
import io
import pickle

import amanda
import pytest
import torch

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
