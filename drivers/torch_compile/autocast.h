// Autocast around an operator: it has an effect when a graph is traced, and compiled code runs without.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "amanda/base/no_copy.h"

namespace amanda::pytorch {

/// The type of each device for which autocast is on here, and its dtype, in turn.
std::vector<int64_t> autocast_here();

/// Sets autocast to the state that `autocast_here` returned. Keeps no casts of weights: they may belong to a graph that
/// is traced.
class WithAutocast : NoCopy {
 public:
  explicit WithAutocast(c10::ArrayRef<int64_t> wanted);
  ~WithAutocast();

 private:
  struct Before {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Before> changed_;
  bool cache_;
};

}  // namespace amanda::pytorch
