// The state of the generator that an operator draws random numbers from.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <mutex>

namespace amanda::pytorch {

class RandomState {
 public:
  /// The state of the generator among the arguments, or else of the device's default one.
  RandomState(c10::ArrayRef<c10::IValue> arguments, c10::Device device) {
    for (const c10::IValue& argument : arguments) {
      if (argument.isGenerator()) generator_ = argument.toGenerator();
    }
    if (!generator_.defined() && !device.is_meta()) generator_ = at::globalContext().defaultGenerator(device);
    if (!generator_.defined()) return;
    std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }

  void put_back() const {
    if (!generator_.defined()) return;
    at::Generator generator = generator_;
    std::lock_guard lock(generator.mutex());
    generator.set_state(state_);
  }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace amanda::pytorch
