"""Programs in which autograd finds that a tensor which it needs was written to."""

import torch
import torch.nn.functional as F
from torch import nn

MODIFIED = "modified by an inplace operation"


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y


def result():
    y = leaf(4).exp()
    y.add_(1)
    y.sum().backward()


def operand():
    x, factor = leaf(4), torch.randn(4)
    y = x * factor
    factor.mul_(2)
    y.sum().backward()


def element():
    y = leaf(4, 4).tanh()
    y[0, 0] = 0
    y.sum().backward()


def through_a_view():
    y = leaf(4, 4).sigmoid()
    y.view(-1)[3:].zero_()
    y.sum().backward()


def through_a_detached_tensor():
    y = leaf(4, 4).sqrt()
    y.detach().add_(1)
    y.sum().backward()


def twice():
    y = leaf(4).exp()
    y.add_(1)
    y.mul_(2)
    y.sum().backward()


def of_a_function():
    y = Square.apply(leaf(4))
    y.mul_(3)
    y.sum().backward()


def copied_into():
    y = F.relu(leaf(4, 4) * 1)
    y.copy_(torch.ones(4, 4))
    y.sum().backward()


def masked():
    y = leaf(4, 4).softmax(-1)
    y.masked_fill_(torch.eye(4).bool(), 0.0)
    y.sum().backward()


def attention():
    q = leaf(1, 2, 4, 8)
    y = F.scaled_dot_product_attention(q, q, q)
    y.mul_(2)
    y.sum().backward()


def list_of_tensors():
    found = [one.exp() for one in (leaf(4), leaf(5))]
    torch._foreach_add_(found, 1.0)
    sum(one.sum() for one in found).backward()


def out():
    y = leaf(4).exp()
    with torch.no_grad():
        torch.add(torch.ones(4), 1, out=y.detach())
    y.sum().backward()


# ---- kinds in PyTorch's own tests of autograd -----------------------------------------------------------------------


def only_the_product_needs_it():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x * y
    total, product = z + y, z * y
    z.add_(2)
    total.sum().backward(retain_graph=True)
    product.sum().backward()


def the_last_result_is_right():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x * y
    product = z * y
    z.add_(y).sum().backward(retain_graph=True)
    product.sum().backward()


def by_an_operator_that_saves_its_result():
    x, y = leaf(5, 5), leaf(5, 5)
    z = x / 2 + y / 8
    product, w = z * y, z.exp_()
    w.sum().backward(retain_graph=True)
    product.sum().backward()


def a_leaf_in_no_grad():
    x = leaf(4)
    y = (x * x).sum()
    with torch.no_grad():
        x.mul_(2)
    y.backward()


def the_base_of_a_saved_view():
    base = torch.randn(4, 4)
    y = leaf(4) * base[1]
    base.add_(1)
    y.sum().backward()


def a_view_of_a_saved_base():
    base = leaf(4, 4) * 1
    y = base.pow(3)
    base.detach()[0].fill_(3)
    y.sum().backward()


def an_index():
    index = torch.tensor([0, 2])
    y = leaf(4)[index]
    index.add_(1)
    y.sum().backward()


def in_the_second_derivative():
    x = leaf(4)
    (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    y = gradient * gradient
    with torch.no_grad():
        gradient.add_(1)
    y.sum().backward()


def weights_of_an_lstm():
    lstm = nn.LSTM(3, 3)
    y = lstm(torch.randn(2, 1, 3))[0]
    with torch.no_grad():
        lstm.weight_hh_l0.mul_(2)
    y.sum().backward()


def saved_twice_by_a_function():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * y, gradient * x

    x, y = leaf(4) * 1, leaf(4)
    z = Product.apply(x, y)
    x.mul_(2)
    z.sum().backward()


CASES = [
    (only_the_product_needs_it, "aten::mul", "MulBackward0", "self", ["aten::add_"]),
    (the_last_result_is_right, "aten::mul", "MulBackward0", "self", ["aten::add_"]),
    (by_an_operator_that_saves_its_result, "aten::mul", "MulBackward0", "self", ["aten::exp_"]),
    (a_leaf_in_no_grad, "aten::mul", "MulBackward0", None, ["aten::mul_"]),
    (the_base_of_a_saved_view, "aten::mul", "MulBackward0", "other", ["aten::add_"]),
    (a_view_of_a_saved_base, "aten::pow", "PowBackward0", "self", ["aten::fill_"]),
    (an_index, "aten::index", "IndexBackward0", "indices", ["aten::add_"]),
    (in_the_second_derivative, "aten::mul", "MulBackward0", None, ["aten::add_"]),
    (weights_of_an_lstm, "aten::lstm", None, None, ["aten::mul_"]),
    (saved_twice_by_a_function, "autograd::Product", "ProductBackward", "saved_tensors", ["aten::mul_"]),
    # program, saver, node, its name for the tensor, the writers
    (result, "aten::exp", "ExpBackward0", "result", ["aten::add_"]),
    (operand, "aten::mul", "MulBackward0", "other", ["aten::mul_"]),
    (element, "aten::tanh", "TanhBackward0", "result", ["aten::copy_"]),
    (through_a_view, "aten::sigmoid", "SigmoidBackward0", "result", ["aten::zero_"]),
    (through_a_detached_tensor, "aten::sqrt", "SqrtBackward0", "result", ["aten::add_"]),
    (twice, "aten::exp", "ExpBackward0", "result", ["aten::add_", "aten::mul_"]),
    (of_a_function, "autograd::Square", "SquareBackward", "saved_tensors", ["aten::mul_"]),
    (copied_into, "aten::relu", "ReluBackward0", "result", ["aten::copy_"]),
    (masked, "aten::softmax", "SoftmaxBackward0", "result", ["aten::masked_fill_"]),
    (attention, "aten::scaled_dot_product_attention", None, "output", ["aten::mul_"]),
    (list_of_tensors, "aten::exp", "ExpBackward0", "result", ["aten::_foreach_add_"]),
    (out, "aten::exp", "ExpBackward0", "result", ["aten::add"]),
]
