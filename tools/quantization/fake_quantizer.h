// The routine of FakeQuantization in C++.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "amanda/action.h"
#include "quantization/moving_range.h"

namespace amanda::tools::pytorch {

/// The state that is common to all operands of a tool, and may change at any time.
struct FakeQuantizationState {
  std::atomic<bool> observe{true}, quantize{true};
  std::atomic<uint64_t> generation{0};  ///< of the operands: ranges of an earlier one are not followed
};

/// Quantizes an operand, with the range that Python has made for it. On any thread.
class FakeQuantizer {
 public:
  explicit FakeQuantizer(std::shared_ptr<const FakeQuantizationState> state) : state_(std::move(state)) {}

  uint64_t generation() const { return state_->generation; }
  /// From now on with this range of the operand, which was made in this generation.
  void follow(std::shared_ptr<MovingRange> range, uint64_t generation);

  /// Quantizes the selected operand. Returns false if it has done nothing; Python then does the work.
  bool operator()(Values& values) const;

 private:
  struct Followed {
    std::shared_ptr<MovingRange> range;
    uint64_t generation;
  };
  const std::shared_ptr<const FakeQuantizationState> state_;
  std::atomic<std::shared_ptr<const Followed>> followed_;
};

}  // namespace amanda::tools::pytorch
