#include "derivatives.h"

#include <functional>

#include "kernels.h"

namespace amanda::reference::derivative_of {
namespace {

/// The rule of an operator with one result: `fn` takes its gradient.
template <class Fn>
GradientRule rule(Fn fn) {
  return [fn](const Gradients& in) -> Gradients { return fn(std::get<Array>(*in[0])); };
}

Array saved(const Operands& operands, size_t position) { return std::get<Array>(operands[position]).copy(); }

}  // namespace

GradientRule add(const Operands&, const Operands&) {
  return rule([](const Array& grad) { return Gradients{grad, grad}; });
}

GradientRule sub(const Operands&, const Operands&) {
  return rule([](const Array& grad) { return Gradients{grad, map(grad, std::negate<>())}; });
}

GradientRule mul(const Operands& inputs, const Operands&) {
  return rule([a = saved(inputs, 0), b = saved(inputs, 1)](const Array& grad) {
    return Gradients{zip(grad, b, std::multiplies<>()), zip(grad, a, std::multiplies<>())};
  });
}

GradientRule mul_scalar(const Operands& inputs, const Operands&) {
  return rule([by = std::get<double>(inputs[1])](const Array& grad) {
    return Gradients{map(grad, [by](double x) { return x * by; })};
  });
}

GradientRule neg(const Operands&, const Operands&) {
  return rule([](const Array& grad) { return Gradients{map(grad, std::negate<>())}; });
}

// From the result, since relu_ has no input left.
GradientRule relu(const Operands&, const Operands& results) {
  return rule([result = saved(results, 0)](const Array& grad) {
    return Gradients{zip(grad, result, [](double g, double y) { return y > 0 ? g : 0.0; })};
  });
}

GradientRule sum(const Operands& inputs, const Operands&) {
  return rule([shape = std::get<Array>(inputs[0]).shape(), size = std::get<Array>(inputs[0]).size()](
                  const Array& grad) { return Gradients{Array(shape, std::vector<double>(size, grad.data()[0]))}; });
}

GradientRule matmul(const Operands& inputs, const Operands&) {
  return rule([a = saved(inputs, 0), b = saved(inputs, 1)](const Array& grad) {
    return Gradients{reference::matmul(grad, transposed(b)), reference::matmul(transposed(a), grad)};
  });
}

GradientRule concat(const Operands& inputs, const Operands&) {
  std::vector<Shape> shapes;
  for (const Array& array : arrays(inputs)) shapes.push_back(array.shape());
  return rule([shapes](const Array& grad) {
    Gradients parts;
    size_t begin = 0;
    for (const Shape& shape : shapes) {
      const Array part = sliced(grad, begin, shape);
      begin += part.size();
      parts.push_back(part);
    }
    return parts;
  });
}

GradientRule split(const Operands& inputs, const Operands& results) {
  return [shape = std::get<Array>(inputs[0]).shape(), halves = arrays(results)](const Gradients& in) -> Gradients {
    std::vector<Array> grads;
    for (size_t i = 0; i < in.size(); ++i) {
      grads.push_back(in[i] ? std::get<Array>(*in[i]) : map(halves[i], [](double) { return 0.0; }));
    }
    return {reference::concat(grads).reshaped(shape)};
  };
}

GradientRule flatten(const Operands& inputs, const Operands&) {
  return rule(
      [shape = std::get<Array>(inputs[0]).shape()](const Array& grad) { return Gradients{grad.reshaped(shape)}; });
}

}  // namespace amanda::reference::derivative_of
