// A tool that reads and makes TensorFlow's tensors: with amanda/tensorflow.h alone.
#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "amanda/amanda.h"
#include "amanda/tensorflow.h"
#include "amanda/tool_capsule.h"

namespace {

namespace py = pybind11;
using amanda::Values;
using amanda::tensorflow::TensorCall;
using amanda::tensorflow::TensorView;

constexpr int kFloat32 = 1;

/// What a routine saw, for Python: it outlives the tool.
struct Seen {
  void add(double sum) {
    std::lock_guard lock(mutex);
    sums.push_back(sum);
  }
  std::mutex mutex;
  std::vector<double> sums;
};

double sum_of(const TensorView& view) {
  const auto* first = static_cast<const float*>(view.data);
  return std::accumulate(first, first + view.bytes / sizeof(float), 0.0);
}

std::vector<float> elements_of(const TensorView& view) {
  const auto* first = static_cast<const float*>(view.data);
  return {first, first + view.bytes / sizeof(float)};
}

/// A tensor of the same form, with another value for each.
amanda::Value mapped(TensorCall& call, const TensorView& view, const std::function<float(float)>& function) {
  const amanda::tensorflow::NewTensor made = call.allocate(view.dtype, view.sizes);
  auto* to = static_cast<float*>(made.data);
  for (float element : elements_of(view)) *to++ = function(element);
  return made.value;
}

class ArrayTool final : public amanda::Tool {
 public:
  ArrayTool(const std::string& does, std::shared_ptr<Seen> seen) : Tool(does) {
    add_inst_for_op([=](amanda::OpContext& context) {
      if (does == "sum") {
        context.insert_before_op([=](Values& values) { sum(values, *seen); }, {.kind = amanda::RoutineKind::kObserve});
      } else if (does == "double") {
        context.insert_before_op([](Values& values) { scale(values); }, {.inputs = {0}});
      } else if (does == "swap") {
        context.insert_before_op([](Values& values) { values.set(0, values[1]); });
      } else if (does == "widen") {
        context.insert_before_op([](Values& values) { values.set(0, widened(values)); }, {.inputs = {0}});
      } else if (does == "negate") {
        context.replace_op([](Values& values) { negate(values); });
      }
    });
  }

 private:
  static void sum(Values& values, Seen& seen) {
    auto* call = TensorCall::of(values);
    for (size_t i = 0; i < values.size(); ++i) {
      if (const auto view = call->tensor(values[i]); view && view->dtype == kFloat32) seen.add(sum_of(*view));
      for (const auto& member : call->tensors(values[i])) seen.add(member ? sum_of(*member) : -1);
    }
  }
  static void scale(Values& values) {
    auto* call = TensorCall::of(values);
    values.set(0, mapped(*call, *call->tensor(values[0]), [](float x) { return 2 * x; }));
  }
  static amanda::Value widened(Values& values) {
    auto* call = TensorCall::of(values);
    return call->allocate(call->tensor(values[0])->dtype, {1, 2, 3}).value;
  }
  static void negate(Values& values) {
    values.call_original();
    auto* call = TensorCall::of(values);
    values.set_result(0, mapped(*call, *call->tensor(values.result(0)), [](float x) { return -x; }));
  }
};

}  // namespace

PYBIND11_MODULE(amanda_tensorflow_tool, m) {
  py::class_<Seen, std::shared_ptr<Seen>>(m, "Seen").def(py::init<>()).def_property_readonly("sums", [](Seen& seen) {
    std::lock_guard lock(seen.mutex);
    return seen.sums;
  });
  m.def("array_tool", [](const std::string& does, std::shared_ptr<Seen> seen) {
    return amanda::python::capsule_of(std::make_unique<ArrayTool>(does, std::move(seen)));
  });
}
