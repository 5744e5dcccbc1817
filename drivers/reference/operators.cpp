#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "amanda/base/mutex.h"
#include "amanda/reference/call.h"
#include "amanda/reference/operator.h"
#include "derivatives.h"
#include "kernels.h"

namespace amanda::reference {
namespace {

// ---- kernels --------------------------------------------------------------------------------------------------------

const Array& at(const Operands& inputs, size_t position) { return std::get<Array>(inputs[position]); }

double positive_part(double x) { return std::max(x, 0.0); }

Array in_place(Array target, const Array& result) {
  target.assign(result.data());
  return target;
}

Operands split(const Array& a) {
  const size_t half = a.size() / 2;
  return {sliced(a, 0, {half}), sliced(a, half, {a.size() - half})};
}

// ---- the table ------------------------------------------------------------------------------------------------------

struct Table {
  Mutex mutex;
  std::deque<Operator> operators;  // grows without moving: there are references to the elements
  std::unordered_map<std::string, const Operator*> by_name;
  OpType accumulate;

  Table();

  Operator& add(Operator op) {
    OpInfo& info = op.info;
    if (info.schema.empty()) {
      info.schema = fmt::format("{}::{}({}) -> ({})", info.ns, info.name, fmt::join(info.inputs, ", "),
                                fmt::join(info.outputs, ", "));
    }
    const std::string name = info.overload.empty() ? info.name : info.name + "." + info.overload;
    std::lock_guard lock(mutex);
    if (op.differentiate) op.gradient_type = add_gradient(info.ns, gradient_name(info.name));
    op.type = operators.size();
    Operator& added = operators.emplace_back(std::move(op));
    by_name[name] = &added;
    return added;
  }

  /// A type of nodes, which programs cannot call. The number of gradients depends on the node.
  OpType add_gradient(const std::string& ns, const std::string& name) {
    const OpType type = operators.size();
    operators.push_back({.info = {ns, name, "", {}, {}, name}, .kernel = {}, .type = type});
    return type;
  }

  /// Adds an operator with one result, which `kernel` returns.
  template <class Kernel>
  Operator& add(const std::string& name, std::vector<std::string> inputs, Kernel kernel,
                decltype(Operator::differentiate) differentiate) {
    return add({.info = {"ref", name, "", std::move(inputs), {"result"}, ""},
                .kernel = [kernel](const Operands& in) { return Operands{kernel(in)}; },
                .differentiate = std::move(differentiate)});
  }

  /// "MulBackward", "ReluBackward" for relu_ too.
  static std::string gradient_name(std::string name) {
    if (name.ends_with('_')) name.pop_back();
    name[0] = std::toupper(name[0]);
    return name + "Backward";
  }
};

Table::Table() {
  using In = const Operands&;
  accumulate = add_gradient("ref", "AccumulateGrad");
  add(
      "add", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::plus<>()); }, derivative_of::add);
  add(
      "sub", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::minus<>()); }, derivative_of::sub);
  add(
      "mul", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::multiplies<>()); }, derivative_of::mul);
  add(
      "neg", {"a"}, [](In in) { return map(at(in, 0), std::negate<>()); }, derivative_of::neg);
  add(
      "relu", {"a"}, [](In in) { return map(at(in, 0), positive_part); }, derivative_of::relu);
  add(
      "sum", {"a"}, [](In in) { return Array{sum(at(in, 0))}; }, derivative_of::sum);
  add(
      "matmul", {"a", "b"}, [](In in) { return matmul(at(in, 0), at(in, 1)); }, derivative_of::matmul);
  add(
      "concat", {"arrays"}, [](In in) { return concat(std::get<std::vector<Array>>(in[0])); }, derivative_of::concat);
  auto linear = [](In in) {
    const Operand product = call("matmul", {in[0], in[1]})[0];
    return call("add", {product, in[2]})[0];
  };
  add("linear", {"input", "weight", "bias"}, linear, nullptr);

  auto add_ = [](In in) { return in_place(at(in, 0), zip(at(in, 0), at(in, 1), std::plus<>())); };
  add("add_", {"a", "b"}, add_, derivative_of::add).in_place = true;
  auto relu_ = [](In in) { return in_place(at(in, 0), map(at(in, 0), positive_part)); };
  add("relu_", {"a"}, relu_, derivative_of::relu).in_place = true;
  auto flatten = [](In in) { return at(in, 0).reshaped({at(in, 0).size()}); };
  add("flatten", {"a"}, flatten, derivative_of::flatten).view = true;

  auto mul_scalar = [](In in) -> Operands {
    return {map(at(in, 0), [by = std::get<double>(in[1])](double x) { return x * by; })};
  };
  add({.info = {"ref", "mul", "scalar", {"a", "b"}, {"result"}, ""},
       .kernel = mul_scalar,
       .differentiate = derivative_of::mul_scalar});
  add({.info = {"ref", "split", "", {"a"}, {"first", "second"}, ""},
       .kernel = [](In in) { return split(at(in, 0)); },
       .differentiate = derivative_of::split});
}

Table& table() {
  static Table all;
  return all;
}

}  // namespace

const Operator& find_operator(std::string_view name) {
  std::lock_guard lock(table().mutex);
  auto found = table().by_name.find(std::string(name));
  if (found == table().by_name.end()) {
    throw std::invalid_argument(fmt::format("[reference] there is no operator '{}'; define() adds one", name));
  }
  return *found->second;
}

const Operator& operator_of(OpType type) {
  std::lock_guard lock(table().mutex);
  return table().operators.at(type);
}

OpType accumulate_type() { return table().accumulate; }

const Operator& define(Operator op) { return table().add(std::move(op)); }

}  // namespace amanda::reference
