#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <unordered_map>

#include "amanda/reference/call.h"
#include "amanda/reference/operator.h"

namespace amanda::reference {
namespace {

// ---- kernels --------------------------------------------------------------------------------------------------------

const Array& at(const Operands& inputs, size_t position) { return std::get<Array>(inputs[position]); }

template <class Fn>
Array map(const Array& a, Fn fn) {
  std::vector<double> data(a.data());
  std::transform(data.begin(), data.end(), data.begin(), fn);
  return Array(a.shape(), std::move(data));
}

template <class Fn>
Array zip(const Array& a, const Array& b, Fn fn) {
  if (a.shape() != b.shape()) {
    throw std::invalid_argument(
        fmt::format("[reference] shapes {} and {} differ", to_string(a.shape()), to_string(b.shape())));
  }
  std::vector<double> data(a.size());
  std::transform(a.data().begin(), a.data().end(), b.data().begin(), data.begin(), fn);
  return Array(a.shape(), std::move(data));
}

double positive_part(double x) { return std::max(x, 0.0); }

Array matmul(const Array& a, const Array& b) {
  if (a.shape().size() != 2 || b.shape().size() != 2 || a.shape()[1] != b.shape()[0]) {
    throw std::invalid_argument(
        fmt::format("[reference] shapes {} and {} do not multiply", to_string(a.shape()), to_string(b.shape())));
  }
  const size_t rows = a.shape()[0], inner = a.shape()[1], columns = b.shape()[1];
  std::vector<double> data(rows * columns, 0.0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < columns; ++j) data[i * columns + j] += a.data()[i * inner + k] * b.data()[k * columns + j];
    }
  }
  return Array({rows, columns}, std::move(data));
}

Array in_place(Array target, const Array& result) {
  target.assign(result.data());
  return target;
}

Operands split(const Array& a) {
  const size_t half = a.size() / 2;
  std::vector<double> first(a.data().begin(), a.data().begin() + half), second(a.data().begin() + half, a.data().end());
  return {Array({first.size()}, first), Array({second.size()}, second)};
}

Array concat(const std::vector<Array>& arrays) {
  std::vector<double> data;
  for (const Array& array : arrays) data.insert(data.end(), array.data().begin(), array.data().end());
  return Array({data.size()}, data);
}

double sum(const Array& a) { return std::accumulate(a.data().begin(), a.data().end(), 0.0); }

// ---- the table ------------------------------------------------------------------------------------------------------

struct Table {
  std::mutex mutex;
  std::deque<Operator> operators;  // grows without moving: references are handed out
  std::unordered_map<std::string, const Operator*> by_name;

  Table();

  Operator& add(Operator op) {
    OpInfo& info = op.info;
    if (info.schema.empty()) {
      info.schema = fmt::format("{}::{}({}) -> ({})", info.ns, info.name, fmt::join(info.inputs, ", "),
                                fmt::join(info.outputs, ", "));
    }
    const std::string name = info.overload.empty() ? info.name : info.name + "." + info.overload;
    std::lock_guard lock(mutex);
    op.type = operators.size();
    Operator& added = operators.emplace_back(std::move(op));
    by_name[name] = &added;
    return added;
  }

  /// An operator with one result, which `kernel` returns.
  template <class Kernel>
  Operator& add(const std::string& name, std::vector<std::string> inputs, Kernel kernel) {
    return add({.info = {"ref", name, "", std::move(inputs), {"result"}, ""},
                .kernel = [kernel](const Operands& in) { return Operands{kernel(in)}; }});
  }
};

Table::Table() {
  using In = const Operands&;
  add("add", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::plus<>()); });
  add("sub", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::minus<>()); });
  add("mul", {"a", "b"}, [](In in) { return zip(at(in, 0), at(in, 1), std::multiplies<>()); });
  add("neg", {"a"}, [](In in) { return map(at(in, 0), std::negate<>()); });
  add("relu", {"a"}, [](In in) { return map(at(in, 0), positive_part); });
  add("sum", {"a"}, [](In in) { return Array{sum(at(in, 0))}; });
  add("matmul", {"a", "b"}, [](In in) { return matmul(at(in, 0), at(in, 1)); });
  add("concat", {"arrays"}, [](In in) { return concat(std::get<std::vector<Array>>(in[0])); });
  add("linear", {"input", "weight", "bias"}, [](In in) {
    const Operand product = call("matmul", {in[0], in[1]})[0];
    return call("add", {product, in[2]})[0];
  });

  add("add_", {"a", "b"}, [](In in) {
    return in_place(at(in, 0), zip(at(in, 0), at(in, 1), std::plus<>()));
  }).in_place = true;
  add("relu_", {"a"}, [](In in) { return in_place(at(in, 0), map(at(in, 0), positive_part)); }).in_place = true;
  add("flatten", {"a"}, [](In in) { return at(in, 0).reshaped({at(in, 0).size()}); }).view = true;

  add({.info = {"ref", "mul", "scalar", {"a", "b"}, {"result"}, ""}, .kernel = [](In in) -> Operands {
         return {map(at(in, 0), [by = std::get<double>(in[1])](double x) { return x * by; })};
       }});
  add({.info = {"ref", "split", "", {"a"}, {"first", "second"}, ""}, .kernel = [](In in) { return split(at(in, 0)); }});
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

const Operator& define(Operator op) { return table().add(std::move(op)); }

}  // namespace amanda::reference
