// The fixture of the tests of backward operators. The marks are those of trace_test.h; NegBackward is the operator
// itself.
//
// Each test runs twice, since a framework may let the core run its nodes or run them itself, between hooks.
#pragma once

#include <amanda/reference/gradient.h>

#include "trace_test.h"

namespace amanda {

using reference::gradient;
using reference::leaf;
using reference::NodesRun;

class BackwardTest : public TraceTest, public ::testing::WithParamInterface<NodesRun> {
 protected:
  const Array x = leaf({1, -2});

  static Array run(const std::string& op, Operands inputs, size_t result = 0) {
    return std::get<Array>(reference::call(op, std::move(inputs))[result]);
  }
  static Array square(double value) { return Array({1, 1}, {value}); }
  static std::optional<Array> given(std::initializer_list<double> data) { return Array(data); }

  /// From `y` on, with a gradient of ones.
  static void backward(const Array& y) {
    reference::backward(y, Array(y.shape(), std::vector<double>(y.size(), 1)), GetParam());
  }
  void step() { backward(run("neg", {x})); }
  void linear_step() { backward(run("linear", {leaf(square(2)), leaf(square(3)), leaf(square(4))})); }
  /// What one step leaves in x.
  std::optional<Array> gradient_of_step() {
    reference::clear_gradient(x);
    step();
    return gradient(x);
  }
};

#define INSTANTIATE_BACKWARD_TEST(fixture)                                                                \
  INSTANTIATE_TEST_SUITE_P(Nodes, fixture, ::testing::Values(NodesRun::kInCore, NodesRun::kBetweenHooks), \
                           [](const auto& how) { return how.param == NodesRun::kInCore ? "InCore" : "BetweenHooks"; })

/// An operator's name, forward or backward.
inline std::string name(const OpContext& op) { return op.is_backward() ? op.backward_op()->name : op.op().name; }

}  // namespace amanda
